"""Runs in a guest: what probes in the kernel cost there, beside bpftrace, as JSON lines. PROGRAM counted|timed.

Both tools start the same program once their probes are in place. It times its own calls in batches that are shorter
than a tick of the kernel's clock; meanwhile the tool sleeps, so the quickest batch has the calls and their hits alone.
Where time counts instructions, what a tool itself takes is the time for which the one processor was not idle; else it
is seconds. Each tool has run once before, so files are in memory.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM, KIND = sys.argv[1:]
COUNTED = KIND == "counted"
BATCHES, CALLS = 30, 1_000
FUNCTION = "__do_sys_getppid"
RECORDED = "tracepoint:raw_syscalls:sys_enter"
MANY = "acpi_*"
MOST = 4_096
"""What bpftrace's limit on probes is set to, 512 by itself."""
NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True)
class Way:
    """What both tools are asked for: our command line, and bpftrace's program."""

    row: str
    ours: str
    theirs: str
    call: str = "getppid"


HITS = (
    Way("count by kprobe", f"count kernel::{FUNCTION} --mechanism kprobe", f"kprobe:{FUNCTION} {{ @ = count(); }}"),
    Way("count by fentry", f"count kernel::{FUNCTION} --mechanism fentry", f"kfunc:{FUNCTION} {{ @ = count(); }}"),
    Way("count by tracepoint", f"count {RECORDED} --mechanism tracepoint", f"{RECORDED} {{ @ = count(); }}"),
    Way(
        "histogram of an argument by process, kprobe",
        "hist kernel::vfs_read --of count --by pid --mechanism kprobe",
        "kprobe:vfs_read { @[pid] = hist(arg2); }",
        "read",
    ),
    Way(
        "histogram of an argument by process, fentry",
        "hist kernel::vfs_read --of count --by pid --mechanism fentry",
        "kfunc:vfs_read { @[pid] = hist(args->count); }",
        "read",
    ),
)
MANY_FUNCTIONS = Way(f"count {MANY}", f"count kernel:vmlinux:{MANY}", f"kprobe:{MANY} {{ @ = count(); }}")


@dataclass(frozen=True)
class Run:
    """What one run of a tool with the program has shown."""

    least: float
    """Instructions of a call."""
    to_first: float
    """From the tool's start to the program's: instructions, or seconds."""
    to_end: float
    """From the program's end to the tool's."""
    output: str


def clock() -> float:
    """Return the time in seconds: that for which the one processor was not idle where time counts instructions."""
    if not COUNTED:
        return time.monotonic()
    up, idle = map(float, Path("/proc/uptime").read_text().split())
    return up - idle


def run(command: Sequence[str], call: str, batches: int, *, after: bool, **environment: str) -> Run:
    """Run a tool that starts the program; ``after``: the program's words follow, else they are one more argument."""
    with tempfile.NamedTemporaryFile(mode="r") as file:
        program = [PROGRAM, call, str(batches), str(CALLS), file.name]
        began = clock()
        whole = [*command, *program] if after else [*command, shlex.join(program)]
        variables = {**os.environ, "BPFTRACE_MAX_PROBES": str(MOST), **environment}
        done = subprocess.run(whole, capture_output=True, text=True, check=True, env=variables)
        ended = clock()
        told = json.load(file)
    first, last = told["busy" if COUNTED else "on"]
    return Run(told["least"], first - began, ended - last, done.stdout + done.stderr)


def ours(way: Way, batches: int = BATCHES, **environment: str) -> Run:
    """Run our command; it leaves nothing out, as bpftrace does not."""
    command = [sys.executable, "-m", "anyprobe", *shlex.split(way.ours), "--include-self", "--"]
    return run(command, way.call, batches, after=True, **environment)


def first(way: Way) -> Run:
    """Run our command where nothing is kept of the kernel, as the first time after boot."""
    with tempfile.TemporaryDirectory() as folder:
        return ours(way, 1, XDG_CACHE_HOME=folder)


def theirs(way: Way, batches: int = BATCHES) -> Run:
    """Run bpftrace."""
    return run(["bpftrace", "-e", way.theirs, "-c"], way.call, batches, after=False)


def hits(output: str) -> int:
    """Return the largest number that a tool has shown, which is its count."""
    return max((int(each.replace(",", "")) for each in NUMBER.findall(output)), default=0)


def both(way: Way, batches: int, times: int) -> tuple[list[Run], list[Run]]:
    """Run our command and bpftrace, some times each after the first time."""
    mine = [ours(way, batches) for _ in range(times + 1)][1:]
    peer = [theirs(way, batches) for _ in range(times + 1)][1:] if shutil.which("bpftrace") else []
    return mine, peer


def say(row: str, unit: str, figures: Sequence[float | None], **more: object) -> None:
    """Print one row: our figure and bpftrace's."""
    print(json.dumps({"row": row, "unit": unit, "ours": figures[0], "bpftrace": figures[1], **more}), flush=True)


def say_life(what: str, runs: Sequence[Sequence[Run]], part: str) -> None:
    """Print the row of a part of a tool's life, the least of its runs."""
    figures = [min((getattr(each, part) for each in some), default=None) for some in runs]
    say(what, "G instructions" if COUNTED else "s", figures)


def main() -> None:
    """Print all rows."""
    if COUNTED:
        bare = {call: run([], call, BATCHES, after=True).least for call in ("getppid", "read")}
    for way in HITS:
        runs = both(way, BATCHES, 2)
        if COUNTED:
            added = [some[0].least - bare[way.call] if some else None for some in runs]
            seen = all(hits(each.output) >= BATCHES * CALLS for some in runs for each in some)
            say(f"{way.row}, added per hit", "instructions", added, complete=seen or way.call != "getppid")
        say_life(f"{way.row}, start to first hit", runs, "to_first")
    runs = both(MANY_FUNCTIONS, 1, 2)
    say_life(f"{MANY_FUNCTIONS.row}, start to first hit", runs, "to_first")
    say_life(f"{MANY_FUNCTIONS.row}, removed", runs, "to_end")
    say_life(
        f"{MANY_FUNCTIONS.row}, the first time after boot",
        ([first(MANY_FUNCTIONS) for _ in range(2)], runs[1]),
        "to_first",
    )
    print(json.dumps({"row": "kernel", "release": os.uname().release}))


if __name__ == "__main__":
    main()
