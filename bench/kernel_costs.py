"""Runs in a guest that counts instructions: what probes in the kernel add to a call, as JSON lines."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import anyprobe
from anyprobe import Hist, i64

PROGRAM = sys.argv[1]
CALLS = 20_000
FUNCTION = "__do_sys_getppid"
COUNTS = (
    ("count by kprobe", f"kernel::{FUNCTION}", "kprobe"),
    ("count by fentry", f"kernel::{FUNCTION}", "fentry"),
    ("count by tracepoint", "tracepoint:raw_syscalls:sys_enter", "tracepoint"),
    ("count by raw_tp", "rawtracepoint:sys_enter", "raw_tp"),
)


def per_call() -> float:
    """Return how many instructions one call takes, the least of three runs."""
    runs = (subprocess.run([PROGRAM, str(CALLS)], capture_output=True, text=True, check=True) for _ in range(3))
    return min(float(each.stdout) for each in runs)


def say(row: str, added: float | None) -> None:
    """Print one row."""
    print(json.dumps({"row": row, "instructions": added}), flush=True)


def added_by(arm: Callable[[anyprobe.KernelSession], object], bare: float) -> float | None:
    """Return what a session's probes add to a call, ``None`` where the kernel takes none."""
    with anyprobe.kernel() as session:
        arm(session)
        return None if session.refused else per_call() - bare


def histogram(session: anyprobe.KernelSession) -> None:
    """Place a histogram of an argument by process."""
    numbers = Hist("numbers", by=("pid",))

    @session.entry("rawtracepoint:sys_enter")
    def enters(ctx, regs: i64, number: i64):  # noqa: ARG001 - by position
        numbers.add(number, key=(ctx.pid,))


def main() -> None:
    """Print all rows."""
    bare = per_call()
    say("a call without a probe", bare)
    for row, spec, mechanism in COUNTS:
        say(row, added_by(lambda session, spec=spec, how=mechanism: session.count(spec, mechanism=how), bare))
    say("histogram of an argument by process", added_by(histogram, bare))
    print(json.dumps({"row": "kernel", "release": os.uname().release}))


if __name__ == "__main__":
    main()
