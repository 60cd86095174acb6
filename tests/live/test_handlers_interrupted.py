"""Handlers that are interrupted by signal handlers which hit probes, too: each call is a hit or a miss."""

import pytest

import anyprobe
from anyprobe import Count, Hist, Max, u64
from support.driver import build, started

pytestmark = pytest.mark.live


def test_malloc_in_signal_handlers_is_counted_or_missed():
    sizes, calls, sums = Hist("sizes"), Count("calls"), Max("sums")
    with started(build("malloc_in_signals.c")) as target:
        with anyprobe.attach(target.pid) as session:
            before = target.go(1).calls["malloc"]

            @session.entry("a.out:malloc")
            def on_malloc(size: u64):
                total = 0
                for n in range(1000):  # long enough to be interrupted now and then
                    total = (total * 5 + size) ^ n
                sums.add(total)
                calls.add()
                sizes.add(size)

            rounds, missed = 0, 0
            while rounds < 40 and (rounds < 3 or not missed):
                after = target.go(1).calls["malloc"]
                (site,) = session.snapshot().sites
                missed, rounds = site.nmissed, rounds + 1
        target.finish()
    assert missed
    assert site.hits + site.nmissed == after - before
    assert calls.result().total.count == sizes.result().total.count == site.hits
