"""Acceptance: attach, arm a thousand functions of a busy process of eight threads, detach, again and again."""

import statistics

import pytest

import anyprobe
from live.targets.many_functions import source
from support.driver import Target
from support.image import Image, private_kb


def busy_target(compiled) -> Target:
    """Start a program of 1000 functions and eight threads that call them for ever."""
    return Target([compiled("many_functions_1000.c", text=source(1000)), "8"])


def repeat(target: Target, times: int) -> list[float]:
    """Attach, arm and detach ``times`` times; return the pauses in microseconds."""
    pauses = []
    for _ in range(times):
        with anyprobe.attach(target.pid) as session:
            session.count("a.out:busy_*")
            assert len(session.snapshot().sites) == 1000
            assert not session.refused
            pauses.append(float(session.snapshot().pause_us["arm"]))
        target.check_alive()
    return pauses


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.torture)])
def test_again_and_again(compiled, times):
    """No crash, no leak, and the median pause is printed."""
    target = busy_target(compiled)
    try:
        target.give_way()
        target.go(1)
        repeat(target, 1)  # what the program itself first needs happens now
        before, private = Image.of(target.pid), private_kb(target.pid)
        pauses = repeat(target, times)
        before.assert_restored(target.pid)
        assert private_kb(target.pid) <= private + 64
        print(f"pause_us.arm median {statistics.median(pauses):.0f} over {times} times 1000 functions, 8 threads")
        target.go(1)
        target.finish()
    finally:
        target.close()


@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=pytest.mark.torture)])
def test_sleeping_calls_never_see_eintr(run_target, times):
    """Threads asleep in epoll_wait, sigtimedwait, recv and others with time-outs, attached many times: no EINTR."""
    target = run_target("blocked_calls.c", "50")
    target.run_freely()
    for _ in range(times):
        with anyprobe.attach(target.pid) as session:
            session.count("a.out:waited")
        target.check_alive()
    target.halt()
    target.finish()
