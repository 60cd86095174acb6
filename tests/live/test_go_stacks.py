"""Go programs in which no thread is on a stack of its own: calls of anyprobe's need other memory than goroutines'."""

import time

import pytest

import anyprobe
from anyprobe.target.process.process import Process
from anyprobe.target.remote.calls import NO_STACK, fitness
from support.results import timing

pytestmark = pytest.mark.live


@pytest.fixture(params=[(), ("-buildmode=pie",)], ids=["plain", "position independent"])
def target(request, run_target):
    return run_target("go_stacks.go", options=request.param)


def test_no_frame_is_put_among_the_stacks_of_goroutines(target):
    process = Process.open(target.pid)
    try:
        with process.stop() as stop:
            assert len(stop.threads) > 24
            assert {fitness(thread, process, stop.mappings) for thread in stop.threads} == {NO_STACK}
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
def test_attaching_waits_for_no_thread_and_warns_of_nothing(target, live):
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
    assert took < 1.5, took  # where a thread was waited for it was two seconds more
    target.go(1)
    target.finish()


def test_a_pause_does_not_grow_with_the_heap(run_target):
    """Signal frames are looked for on stacks, not in all the memory among which stacks are."""
    pauses = []
    for megabytes in (4, 400):
        target = run_target("go_stacks.go", str(megabytes))
        best = {}
        for _ in range(3):
            with anyprobe.attach(target.pid) as session:
                session.time("a.out:main.Work")
            for what, pause in session.snapshot().pause_us.items():
                best[what] = min(pause, best.get(what, pause))
        pauses.append(best)
        target.finish()
    for what, small in pauses[0].items():
        assert pauses[1][what] < small + 50_000, pauses
