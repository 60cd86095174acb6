"""What it costs to record calls, and to make a timeline of them."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import call_target, pairs
from rows import Report

import anyprobe
from anyprobe.data.archives import runs
from anyprobe.data.calls.recorded import ENTRY, RETURN, Events
from anyprobe.handlers.types.annotations import u64
from anyprobe.handlers.x86.recorder import recorders
from anyprobe.probes.specs.spec import parse

CALLS_OF_A_RUN, PAIRS = 16_000, 101
"""Fewer than a ring of a mebibyte has room for, which is emptied before each run."""
EVENTS = 10_000_000
PARENTS, FRAMES = 100, (0, 32, 80, 80, 32, 0)
"""Functions of each depth, and where calls of three depths are on the stack."""


def record_rows(report: Report, scale: float) -> None:
    """Print the rows."""
    _call_row(report)
    _timeline_row(report, int(EVENTS * min(1, 10 * scale)))


def _call_row(report: Report) -> None:
    with call_target() as target, anyprobe.attach(target.pid) as session:
        clock = min(target.run("rdtsc", 10_000_000)[0] for _ in range(5))
        call = session.handling.place_call([parse("a.out:work")], *recorders(1 << 20), retval=u64)
        probes = [*call.entry, *call.returns]
        session.remove(*probes)
        seen = 0

        def arm():
            nonlocal seen
            seen += sum(len(batch) for _, _, batch in session.handling.records())
            session.enable(*probes)
            return lambda: session.remove(*probes)

        added, bare, probed = pairs(target, "work", CALLS_OF_A_RUN, PAIRS, arm)
        seen += sum(len(batch) for _, _, batch in session.handling.records(final=True))
        lost = session.handling.dropped()
        reader = session.handling.reader_of("call")
        written = 8 * reader.words_taken / (seen / 2)
    limit = 2 * clock + 15
    report.add(
        "record: entry + return of a call, added",
        f"{added} ns",
        f"<= {limit:.1f} (2 rdtsc of {clock:.1f} + 15)",
        added.median <= limit and not lost,
        f"{bare:.2f} -> {probed:.2f} ns per call; {seen:,} events, {written:.2f} bytes per call, none lost",
    )


def _timeline_row(report: Report, count: int) -> None:
    """How long a timeline of many events takes, and how large archive and timeline are."""
    with tempfile.TemporaryDirectory() as folder:
        path, trace = Path(folder, "run.aprobe"), Path(folder, "run.pftrace")
        written = _archive(path, count)
        began = time.monotonic()
        command = f"""
import resource, sys
from anyprobe.cli import main
main(["replay", {str(path)!r}, "--format", "perfetto", "-o", {str(trace)!r}])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
        memory = int(subprocess.check_output([sys.executable, "-c", command], text=True)) / 1024
        took = (time.monotonic() - began) * EVENTS / written
        report.add(
            "record: Perfetto file of 10^7 events",
            f"{took:.1f} s, {memory:.0f} MiB",
            "<= 5 s, <= 300 MB",
            took <= 5 and memory <= 300e6 / 2**20,
            f"{written:,} events: {path.stat().st_size / written:.1f} bytes each in the archive, "
            f"{trace.stat().st_size / written:.0f} in the file",
        )


def _archive(path: Path, count: int) -> int:
    """Write an archive of calls three deep on four threads, which take any time; return how many events it has."""
    numbers, now, written, groups = np.random.default_rng(1), 1 << 44, 0, 4096
    with path.open("wb") as file:
        writer = runs.Writer(file, runs.RunInfo("record"))
        writer.put({"functions": [["a.out", f"f{each}", False] for each in range(3 * PARENTS)]})
        writer.put({"threads": [[7, 7 + each, f"t{each}"] for each in range(4)]})
        while written < count:
            outer = numbers.integers(0, PARENTS, (groups, 1, 4)).astype(np.uint32)
            depths = np.array([0, 1, 2, 2, 1, 0], np.uint32)[:, None]
            ends = np.array([ENTRY] * 3 + [RETURN] * 3, np.uint32)[:, None]
            what = (outer + depths * PARENTS) * 4 + ends
            threads = np.broadcast_to(np.arange(4, dtype=np.uint32), what.shape)
            frames = 0x7FFF_0000 - np.array(FRAMES, np.uint32)[:, None] - threads * 0x100_0000
            times = now + np.cumsum(numbers.integers(1, 200, what.size))
            writer.put({"events": Events(times, threads.ravel(), what.ravel(), frames.ravel()).document()})
            now, written = int(times[-1]), written + what.size
        writer.put({"end": {"builds": {}}})
    return written
