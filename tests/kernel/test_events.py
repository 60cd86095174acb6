"""Timers and events in the guest's kernel: hits, and handlers that they run."""

import mmap
import os
import resource
import time
from contextlib import suppress

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.target.kernel import bpf

PAGES = 3000


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


def touch_pages():
    """Touch pages for the first time; return how many faults of this process that made."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_minflt - before.ru_minflt


def wait_for(condition, seconds=60):
    """Wait until something has happened; return how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began


def test_timer_goes_as_often_as_it_says(session):
    began = time.monotonic()
    session.count("interval:ms:50", "profile:hz:20")
    wait_for(lambda: all(site.hits >= 10 for site in session.snapshot().sites))
    interval, profile = session.snapshot().sites
    ticks = (time.monotonic() - began) * 20 + 1
    assert interval.strategy == profile.strategy == "perf_event"
    assert interval.hits <= ticks
    assert profile.hits <= ticks * len(bpf.online_processors())
    assert interval.notes  # of timers the kernel does not tell what it misses


def test_every_page_fault_is_counted_or_told_as_missed(session):
    session.count("software:page-faults:1", "software:faults:100")
    made = touch_pages()
    each, hundredth = session.snapshot().sites
    assert made >= PAGES
    assert each.hits + each.nmissed >= made
    assert hundredth.hits + hundredth.nmissed >= made // 100 - len(bpf.online_processors())
    assert not each.notes


def test_counting_again_counts_on(session):
    (probe,) = session.count("software:page-faults:1")
    first = touch_pages()
    session.remove(probe)
    before = next(probe.results())
    assert before.hits + before.nmissed >= first
    touch_pages()
    assert next(probe.results()).hits == before.hits
    session.enable(probe)
    again = touch_pages()
    after = next(probe.results())
    assert after.hits + after.nmissed >= before.hits + before.nmissed + again


@pytest.mark.thorough
def test_handlers_of_timers_and_events(session):
    ticks, faults = Count("ticks"), Count("faults", by=("pid",))

    @session.entry("interval:ms:10")
    def tick(ctx):
        ticks.add()

    @session.entry("software:page-faults:1")
    def fault(ctx):
        faults.add(key=(ctx.pid,))

    assert not session.refused
    made = touch_pages()
    wait_for(lambda: session.snapshot().aggregation("ticks").entries[()].count > 10)
    snapshot = session.snapshot()
    missed = snapshot.sites[1].nmissed
    assert made <= snapshot.aggregation("faults").entries[os.getpid(),].count + missed


def test_handler_of_a_timer_has_no_parameters(session):
    with pytest.raises(anyprobe.HandlerError, match="timers and events pass nothing"):

        @session.entry("interval:s:1")
        def tick(ctx, count):
            pass

    assert not session.probes


def test_event_that_the_processor_does_not_have_is_refused(session):
    session.count("hardware:cache-misses:1000")
    for _, why in session.refused:  # an emulated processor counts nothing
        assert why.reason is anyprobe.Reason.KERNEL_REFUSES
        assert "cache-misses" in why.detail
