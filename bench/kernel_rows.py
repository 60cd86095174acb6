"""What probes in the kernel cost, in instructions of a guest that counts them: the same on any machine."""

import json
import subprocess
import sys

from measure import HERE, compiled
from rows import Report

ROOT = HERE.parent
UNAVAILABLE = 125
SECONDS = 1_200


def kernel_rows(report: Report, scale: float) -> None:  # noqa: ARG001 - the guest counts, repeating says nothing new
    """Add what one hit costs by each mechanism."""
    program = compiled(HERE / "kernel_calls.c")
    inside = f"PYTHONPATH={ROOT / 'src'} {sys.executable} {HERE / 'kernel_costs.py'} {program}"
    done = subprocess.run(
        [ROOT / "tools/guest", "--icount", "-t", str(SECONDS), inside],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode == UNAVAILABLE:
        report.skip("kernel", done.stderr.strip().splitlines()[-1])
        return
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for each in rows[:-1]:
        added = each["instructions"]
        report.add(f"kernel: {each['row']}", "refused" if added is None else f"{added:.0f} instructions")
    if not rows or rows[-1]["row"] != "kernel":
        report.add("kernel", "failed", "", False, (done.stdout + done.stderr)[-500:])
