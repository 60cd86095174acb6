"""What a program that probes itself still knows when its attendant has been killed: all that is counted."""

import ctypes
import os
import signal
import threading

import pytest

import anyprobe
from anyprobe import Count, TargetError, i64

pytestmark = pytest.mark.live
CALLS, THREADS = 500, 4


def call(function, times):
    def work():
        for n in range(times):
            function(n)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return times * THREADS


def test_hits_and_times_are_counted_to_the_end():
    libc, odd = ctypes.CDLL(None), Count("odd")
    with anyprobe.attach_self() as session:
        session.count("libc:labs", "libc:llabs:return")
        session.time("libc:abs")

        @session.entry("libc:labs")
        def on_labs(n: i64):
            if n % 2 == 1:
                odd.add()

        known = call(libc.labs, CALLS)
        assert [site.hits for site in session.snapshot().sites if site.function == "labs"] == [known] * 2
        os.kill(session.attendant, signal.SIGKILL)
        with pytest.raises(TargetError, match="has ended"):
            session.snapshot()
        known += call(libc.labs, CALLS)
        times, returned = call(libc.abs, 100), call(libc.llabs, 50)
    call(libc.labs, CALLS)  # nobody counts any more
    snapshot = session.snapshot()
    assert {(site.function, site.kind, site.hits, site.nmissed) for site in snapshot.sites} == {
        ("labs", "entry", known, 0), ("llabs", "return", returned, 0),
    }  # fmt: skip
    assert not any(site.armed for site in snapshot.sites)
    (timed,) = snapshot.functions
    assert (timed.function, timed.count, timed.nmissed, timed.in_flight) == ("abs", times, 0, 0)
    assert sum(count for _, _, count in timed.buckets) == times
    assert 0 <= timed.min_ns <= timed.max_ns
    assert 0 < (timed.sum_ns + timed.taken.sum_ns) / times <= timed.max_ns + timed.taken.sum_ns
    assert snapshot.aggregation("odd").total.count == known // 2
    assert any("records" in text for text in session.warnings)
