"""Snapshots of a program that runs on: what they show of one function adds up."""

import pytest

import anyprobe

pytestmark = pytest.mark.live

SNAPSHOTS = 200


def test_ends_are_never_more_than_entries(run_target):
    target = run_target("descends.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:deep%return", "a.out:deep")
        session.count("a.out:leaper", "a.out:leaper%return")
        session.time("a.out:deep")
        target.run_freely()
        for _ in range(SNAPSHOTS):
            snapshot = session.snapshot()
            hits = {(site.function, site.kind): 0 for site in snapshot.sites}
            for site in snapshot.sites:
                hits[site.function, site.kind] += site.hits
            for function in ("deep", "leaper"):
                assert hits[function, "return"] <= hits[function, "entry"]
            (timing,) = snapshot.functions
            assert timing.count == sum(count for _, _, count in timing.buckets)
            assert timing.count + timing.nmissed <= hits["deep", "entry"]
        assert hits["deep", "entry"] > SNAPSHOTS
        target.halt()
    target.finish()
