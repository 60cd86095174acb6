"""Snapshots of a program that runs on: what they show of one function adds up."""

import pytest

import anyprobe
from anyprobe import Count
from support.driver import wait_until
from support.results import hits as hits_of
from support.results import total

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
        wait_until(lambda: hits_of(session.snapshot(), "deep") > SNAPSHOTS, "it runs on")
        target.halt()
    target.finish()


def test_both_ends_of_a_call_are_placed_in_one_change(run_target):
    """The program runs on between the two decorators: no call is seen at its entry alone."""
    entered, left = Count("entered"), Count("left")
    target = run_target("descends.c")
    with anyprobe.attach(target.pid) as session:

        @session.call("a.out:deep")
        def on_deep(ctx):
            entered.add()
            ctx.data.begun = 1

        target.go(10)

        @on_deep.ret
        def on_deep_left(ctx):
            if ctx.data.begun is not None:
                left.add()

        target.go(10)
        session.snapshot()
        assert (total(entered).count, total(left).count) == (100, 100)
    target.finish()


@pytest.mark.parametrize("use", [lambda session: session.snapshot(), lambda session: session.wait(0)])
def test_a_call_without_a_handler_at_its_return(run_target, use):
    """It is placed when the session is used next, be it to wait for the program's end."""
    entered = Count("entered")
    target = run_target("descends.c")
    with anyprobe.attach(target.pid) as session:

        @session.call("a.out:deep")
        def on_deep(ctx):
            entered.add()

        use(session)
        target.go(10)
        assert total(entered).count == 100
    target.finish()
