"""The guest's kernel changes its own code while two processors run it, and goes on: other tests rely on it."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

EVENTS = Path("/sys/kernel/tracing/events")
HOT = ("sched/sched_switch", "sched/sched_wakeup", "raw_syscalls/sys_enter", "timer/hrtimer_start", "kmem/kfree")
ROUNDS = 2


@pytest.fixture
def busy():
    """Keep both processors in the scheduler and in system calls."""
    with ExitStack() as stack:
        for _ in range(2):
            writer = stack.enter_context(subprocess.Popen(["yes"], stdout=subprocess.PIPE))
            reader = stack.enter_context(subprocess.Popen(["cat"], stdin=writer.stdout, stdout=subprocess.DEVNULL))
            stack.callback(reader.kill)
            stack.callback(writer.kill)
        yield


@pytest.mark.usefixtures("busy")
def test_tracepoints_are_switched_on_and_off_in_code_that_runs():
    for _ in range(ROUNDS):
        for state in ("1", "0"):
            for event in HOT:
                switch = EVENTS / event / "enable"
                switch.write_text(state)
                assert switch.read_text().strip() == state
