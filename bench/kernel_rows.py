"""What probes in the kernel cost beside bpftrace, in guests: in instructions, which are the same on any machine."""

import json
import subprocess
import sys
from typing import Any

from measure import HERE, compiled
from rows import Report

ROOT = HERE.parent
UNAVAILABLE = 125
SECONDS = 3_600


def kernel_rows(report: Report, scale: float) -> None:  # noqa: ARG001 - the guest counts, repeating says nothing new
    """Add what hits cost by each mechanism, and starts and ends, beside bpftrace: in instructions, then in seconds."""
    program = compiled(HERE / "kernel_calls.c")
    for kind, option in (("counted", "--icount"), ("timed", "-s2")):
        inside = f"PYTHONPATH={ROOT / 'src'} {sys.executable} {HERE / 'kernel_costs.py'} {program} {kind}"
        done = subprocess.run(
            [ROOT / "tools/guest", option, "-t", str(SECONDS), inside],
            check=False,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode == UNAVAILABLE:
            report.skip("kernel", done.stderr.strip().splitlines()[-1])
            return
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for each in rows:
            if "unit" in each:
                add(report, each)
        if not rows or rows[-1]["row"] != "kernel":
            report.add(f"kernel, {kind}", "failed", "", False, (done.stdout + done.stderr)[-500:])


def add(report: Report, row: dict[str, Any]) -> None:
    """Add one row: ours beside bpftrace's."""
    ours, theirs, unit = row["ours"], row["bpftrace"], row["unit"]
    digits = {"instructions": 0}.get(unit, 2)
    figure = f"{ours:.{digits}f} {unit}"
    notes = () if row.get("complete", True) else ("a tool has not counted all calls",)
    if theirs is None:
        report.add(f"kernel: {row['row']}", figure, "", None, "bpftrace is not installed", *notes)
    else:
        must = f"<= bpftrace's {theirs:.{digits}f}"
        holds = ours <= theirs and not notes
        report.add(f"kernel: {row['row']}", f"{figure}, {ours / theirs:.2f} x", must, holds, *notes)
