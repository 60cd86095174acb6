"""Rows of archives: how long it takes to add up those of many machines."""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import Report

from anyprobe.data.archives import runs
from anyprobe.data.layouts.histogram import in_ns, index
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot

FUNCTIONS, BUCKETS, ARCHIVES, CLOCKS = 10_000, 12, 100, 10


def archive_rows(report: Report, scale: float) -> None:
    """How long ``merge`` takes for a hundred archives of ten clocks, each of which is read ten times."""
    count = ARCHIVES if scale >= 0.1 else ARCHIVES // 10
    with tempfile.TemporaryDirectory() as folder:
        paths, calls = [], 0
        for clock in range(CLOCKS):
            paths.append(Path(folder, f"{clock}.aprobe"))
            calls += _write(paths[-1], clock)
        every = paths * (count // CLOCKS)
        command = [sys.executable, "-m", "anyprobe", "merge", *map(str, every), "--json", "--no-buckets"]
        began = time.monotonic()
        document = json.loads(subprocess.check_output(command, text=True))
        took = (time.monotonic() - began) * ARCHIVES / count
    right = sum(each["count"] for each in document["functions"]) == calls * count // CLOCKS
    detail = f"{count} archives, a dozen buckets per function, ten clocks; {'sums right' if right else 'WRONG SUMS'}"
    report.add("archives: merge of 100 with 10,000 functions", f"{took:.1f} s", "<= 10 s", took <= 10 and right, detail)


def _write(path: Path, clock: int) -> int:
    """Write an archive of functions that have latencies of their own, by a clock of its own; return their calls."""
    functions, calls = [], 0
    for number in range(FUNCTIONS):
        values = random.Random(number)
        ticks = sorted({index(int(2 ** values.uniform(6, 10))) for _ in range(BUCKETS)})
        buckets = in_ns(((each, values.randrange(1, 99)) for each in ticks), 0.385 + clock * 1e-5)
        count = sum(each for _, _, each in buckets)
        timing = FunctionTiming(f"pid:server:f{number}:entry", "server", f"f{number}", count, buckets=buckets)
        functions.append(timing)
        calls += count
    snapshot = Snapshot(TargetInfo(1, "/usr/bin/server"), 10.0, {"arm": 1, "disarm": 1}, functions=tuple(functions))
    with path.open("wb") as file:
        runs.write(file, runs.Run(runs.info_of("time"), (snapshot,)))
    return calls
