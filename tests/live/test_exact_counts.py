"""Acceptance: hits equal the program's own counts exactly, with threads, while other probes come and go."""

import random

import pytest

import anyprobe
from support.image import Image
from support.results import hits, missed, timing

CALLS = 10_000_000


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_ten_million_calls_while_others_come_and_go(run_target, threads):
    """One function is counted all the time; two others are armed and removed at random while it runs."""
    target = run_target("counts.c", str(threads))
    chance = random.Random(threads)
    specs = ["a.out:leaf4", "a.out:side", "a.out:side%return", "a.out:leaf4%return"]
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work")
        comings = 0
        while comings < 3:  # a busy machine may let the program do all of it meanwhile
            target.start(16 * CALLS // threads)
            while not target.answers():
                others = session.count(*chance.sample(specs, 2))
                target.idle(chance.random() * 0.02)
                session.remove(*others)
                comings += 1
            counts = target.wait_done()
        snapshot = session.snapshot()
        assert hits(snapshot, "work") == counts.calls["work"]
        assert missed(snapshot) == 0
    target.finish()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_everything_exact(run_target, threads):
    """Entries and exits of three functions, one of them of four bytes, over ten million calls in all."""
    target = run_target("counts.c", str(threads))
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        names = ("work", "leaf4", "side")
        session.count(*(f"a.out:{name}" for name in names), *(f"a.out:{name}%return" for name in names))
        assert not session.refused
        counts = target.go(CALLS // (3 * threads) + 1)
        snapshot = session.snapshot()
        assert {n: hits(snapshot, n) for n in names} == {n: counts.calls[n] for n in names}
        assert {n: hits(snapshot, n, "return") for n in names} == {n: counts.calls[n] for n in names}
    before.assert_restored(target.pid)
    target.finish()


@pytest.mark.parametrize("threads", [1, 8])
def test_timing_is_complete(run_target, threads):
    """Every call is timed once, and the buckets add up."""
    target = run_target("counts.c", str(threads))
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:work", "a.out:leaf4")
        counts = target.go(200_000)
        snapshot = session.snapshot()
        for name in ("work", "leaf4"):
            record = timing(snapshot, name)
            assert record.count == counts.calls[name]
            assert sum(bucket[2] for bucket in record.buckets) == record.count
            assert record.min_ns <= record.p50_ns <= record.p99_ns <= record.max_ns
            assert record.sum_ns >= record.min_ns * record.count
    target.finish()


def test_rearming_keeps_counting(run_target):
    """The same function armed and removed a hundred times, a known number of calls each time."""
    target = run_target("counts.c", "2")
    with anyprobe.attach(target.pid) as session:
        for _ in range(100):
            before = target.counts.calls.get("leaf4", 0)
            counted = hits(session.snapshot(), "leaf4")
            probes = session.count("a.out:leaf4")
            counts = target.go(50)
            assert hits(session.snapshot(), "leaf4") - counted == counts.calls["leaf4"] - before
            session.remove(*probes)
            target.go(20)
    target.finish()


def test_more_threads_than_blocks_are_timed_where_they_come_and_go(run_target):
    """A thread takes over the block of the one that had its place: stacks that are unmapped come back there."""
    target = run_target("thread_churn.c")
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:churned")
        counts = target.go(500)  # of eight threads each, too many for glibc to keep all their stacks
        result = timing(session.snapshot(), "churned")
        assert (result.count, result.unmatched, result.nmissed) == (counts.calls["churned"], 0, 0)
    target.finish()
