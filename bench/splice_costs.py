"""Runs in a guest that counts instructions: what splices cost there beside the kernel's own engines. PROGRAM.

KernInst's tables (OSDI 1999) have the steps of inserting a counter, and its paper the cost of a hit. One nanosecond of
such a guest is one instruction.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyprobe
from anyprobe.core import kept
from anyprobe.probes.providers.kernel.session import KernelSession
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.patches import PatchMaker
from anyprobe.target.kernel.driver import building, loading
from anyprobe.target.kernel.driver.device import Driver

(PROGRAM,) = sys.argv[1:]
BATCHES, CALLS = 30, 1_000
FUNCTION = "__do_sys_getppid"
PLACES = "vfs_read", "vfs_write", "pipe_read", "pipe_write", "do_sys_openat2", "vfs_statx", "ksys_read", "ksys_write"
OPTIMIZATION = Path("/proc/sys/debug/kprobes-optimization")


def say(row: str, value: float, unit: str) -> None:
    """Print one row."""
    print(json.dumps({"row": row, "value": value, "unit": unit}), flush=True)


def a_call() -> float:
    """Return the instructions of a system call, in the quickest batch."""
    with tempfile.NamedTemporaryFile(mode="r") as file:
        subprocess.run([PROGRAM, "getppid", str(BATCHES), str(CALLS), file.name], check=True)
        return float(json.load(file)["least"])


def added(bare: float, mechanism: str, spec: str) -> float:
    """Return the instructions that a hit adds."""
    with anyprobe.kernel(mechanism=mechanism) as session:
        session.count(spec)
        assert session.refused == []
        time.sleep(1)  # the kernel makes jumps of kprobes some time later
        return a_call() - bare


@contextmanager
def traps() -> Iterator[None]:
    """Let no kprobe be a jump."""
    before = OPTIMIZATION.read_text()
    OPTIMIZATION.write_text("0")
    try:
        yield
    finally:
        OPTIMIZATION.write_text(before)


def hits() -> None:
    """Print what a hit of each kind adds."""
    bare = a_call()
    with anyprobe.kernel() as session:
        shown = session.explain(f"kernel::{FUNCTION}")
    inside = f"kernel::{FUNCTION}:{shown.disassembly[3].address - shown.function_start:#x}"
    say("a hit by splice", added(bare, "splice", f"kernel::{FUNCTION}"), "instructions")
    say("a hit by BPF, fentry", added(bare, "fentry", f"kernel::{FUNCTION}"), "instructions")
    say("a hit by BPF, kprobe by ftrace", added(bare, "kprobe", f"kernel::{FUNCTION}"), "instructions")
    say("a hit by BPF, kprobe as it is optimized", added(bare, "kprobe", inside), "instructions")
    with traps():
        say("a hit by BPF, kprobe by int3", added(bare, "kprobe", inside), "instructions")


def steps() -> None:
    """Print what the steps of inserting a counter take, where the session and the kernel's code are known."""
    took: dict[str, list[float]] = {}

    def timed(what: str, owner: object, name: str) -> None:
        whole: Callable[..., object] = getattr(owner, name)

        @functools.wraps(whole)
        def measured(*arguments: object, **options: object) -> object:
            began = time.monotonic_ns()
            try:
                return whole(*arguments, **options)
            finally:
                took.setdefault(what, []).append(time.monotonic_ns() - began)

        setattr(owner, name, measured)

    with anyprobe.kernel(mechanism="splice") as session:
        first = session.count(f"kernel::{FUNCTION}")
        timed("insert a counter, all of it", KernelSession, "count")
        timed("of that: plan the splice", planning, "plan")
        timed("of that: make the patch", PatchMaker, "make")
        timed("of that: write the patch", Driver, "write_patch")
        timed("of that: check and write the jump", Driver, "apply")
        made = [session.count(f"kernel::{name}") for name in PLACES]
        del took["of that: check and write the jump"][len(made) :]
        timed("take a counter out", KernelSession, "remove")
        for each in made:
            session.remove(*each)
        session.remove(*first)
    for what, figures in took.items():
        say(what, statistics.median(figures) / 1e6, "M instructions")


def main() -> None:
    """Print all rows."""
    loading.load(building.build(building.running_release(), f"{kept.directory()}/driver"))
    hits()
    steps()
    print(json.dumps({"row": "splices", "release": os.uname().release}))


if __name__ == "__main__":
    main()
