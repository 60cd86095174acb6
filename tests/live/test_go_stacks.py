"""Go programs in which no thread is on a stack of its own: calls of anyprobe's need other memory than goroutines'."""

import time

import pytest

import anyprobe
from anyprobe.target.process.process import Process
from anyprobe.target.remote.spare_stack import SpareStacks
from support.driver import wait_until
from support.results import timing

pytestmark = pytest.mark.live


WAIT = 100.0
"""Seconds for which a thread is waited for: longer than it takes without, however busy the machine is."""


@pytest.fixture(params=[(), ("-buildmode=pie",)], ids=["plain", "position independent"])
def target(request, run_target):
    return run_target("go_stacks.go", options=request.param)


def test_no_frame_is_put_among_the_stacks_of_goroutines(target):
    process = Process.open(target.pid)
    try:
        with process.stop() as stop:
            assert len(stop.threads) > 24
            stacks = SpareStacks(process, stop.mappings)
            assert {stacks.own(thread) for thread in stop.threads} == {0}
        with process.borrow() as remote:
            assert remote.syscall(39) == target.pid
        assert process.paused_us > 0  # all were stopped for it
        process.paused_us = 0
        with pytest.raises(ZeroDivisionError), process.borrow():
            1 / 0  # noqa: B018
        assert process.paused_us > 0
    finally:
        process.close()
    target.go(1)
    target.finish()


@pytest.mark.parametrize("live", [False, True])
def test_attaching_waits_for_no_thread_and_warns_of_nothing(target, live, monkeypatch):
    for method in (Process.borrow, Process.helper_thread, Process.waiting_helper_thread.__wrapped__):
        monkeypatch.setattr(method, "__defaults__", (WAIT,))
    began = time.monotonic()
    with anyprobe.attach(target.pid, live=live) as session:
        session.time("a.out:main.Work", "a.out:main.Wait")
        took = time.monotonic() - began
        before = target.counts.calls.get("main.Work", 0)
        calls = target.go(3).calls["main.Work"] - before
        snapshot = session.snapshot()
        assert timing(snapshot, "main.Work").count == calls
        assert not session.refused
        assert not session.warnings
    assert took < WAIT, took
    target.go(1)
    target.finish()


def test_a_pause_does_not_grow_with_the_heap(run_target):
    """Signal frames are looked for on stacks, not in all the memory among which stacks are."""
    small, large = (run_target("go_stacks.go", megabytes) for megabytes in ("4", "400"))
    best = {small.pid: {}, large.pid: {}}

    def are_alike():
        """Whether the shortest pauses of both are; on a busy machine a pause may be long."""
        for pid, shortest in best.items():
            with anyprobe.attach(pid) as session:
                session.time("a.out:main.Work")
            for what, pause in session.snapshot().pause_us.items():
                shortest[what] = min(pause, shortest.get(what, pause))
        return all(best[large.pid][what] < pause + 50_000 for what, pause in best[small.pid].items())

    wait_until(are_alike, "no pause is longer")
    for target in (small, large):
        target.finish()
