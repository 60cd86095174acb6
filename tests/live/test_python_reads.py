"""Python reads what handlers have counted as it reads numbers and dictionaries, in both kinds of sessions."""

import zlib

import pytest

import anyprobe
from anyprobe import Count, Hist, Map, Sum, u64
from support.driver import build, started

pytestmark = pytest.mark.live


def test_live_objects_and_results_say_what_the_program_has_done():
    calls, total = Count("calls"), Sum("total", by="key")
    sizes, last = Hist("sizes"), Map("last", by="key")
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(value: u64, key: u64):
            calls.add()
            total.add(value & 255, key=(key & 3,))
            sizes.add(value & 1023)
            last.set((key & 3,), key)

        assert (int(calls), len(calls), len(total), len(last)) == (0, 0, 0, 0)
        own = target.go(1).calls["work"]
        for count in (calls, session.snapshot().aggregation("calls")):
            assert int(count) == count.value == own
            assert f"{own:,}" in repr(count)
        for sums in (total, session.snapshot().aggregation("total")):
            assert sorted(sums) == [(0,), (1,), (2,), (3,)]
            assert sum(int(cell) for _, cell in sums.items()) == int(sums) == sums.sum
            assert sums[3].count + sums[0,].count < own == sums.count
        for hist in (sizes, session.snapshot().aggregation("sizes")):
            assert 0 <= hist.p50 <= hist.p90 <= hist.p99 <= hist.max <= 1023
            assert "p99" in repr(hist)
        assert sorted(last) == [(0,), (1,), (2,), (3,)]
        assert all(last[key] & 3 == key for (key,) in last)
        target.finish()
    assert int(calls) == own


def test_a_program_that_probes_itself_reads_them_in_the_same_way():
    calls = Count("calls", by="size")
    with anyprobe.attach_self() as session:

        @session.entry("libz:crc32")
        def on_crc(crc: u64, at: u64, size: u64):
            calls.add(key=(size,))

        for _ in range(5):
            zlib.crc32(b"x" * 100)
        assert int(calls[100]) == calls[100].value == int(session.snapshot().aggregation("calls")[100]) == 5
        assert (100,) in list(calls)
        assert len(calls) == len(list(calls))
    assert int(calls[100]) == 5
    assert repr(calls).startswith("<count 'calls' by size: {")
