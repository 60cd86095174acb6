"""What ``anyprobe locks`` adds to a pair of lock and unlock of a mutex that is free."""

import os
import subprocess
import sys

from measure import HERE, compiled
from rows import Report

PAIRS = 2_000_000


def _measured(program: str, pairs: int, *options: str) -> tuple[float, float]:
    """Return nanoseconds of a pair, and of two readings of the clock: with options as those of ``anyprobe locks``."""
    command = [program, str(pairs)]
    if options:
        command = [sys.executable, "-m", "anyprobe", "locks", "--quiet", "-o", os.devnull, *options[1:], "--", *command]
    pair, readings = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(pair), float(readings)


def lock_rows(report: Report, share: float) -> None:
    """Rows: counts and waits alone, and hold times with who holds."""
    program, pairs = str(compiled(HERE / "lock_pairs.c")), int(PAIRS * share)
    bare, readings = _measured(program, pairs)
    counted, _ = _measured(program, pairs, "locks", "--no-hold")
    held, _ = _measured(program, pairs, "locks")
    pair = f"a pair takes {bare:.1f} ns, two readings of the clock {readings:.1f}"
    added = counted - bare
    report.add("locks: acquisitions and waits, uncontended pair", f"{added:.1f} ns added", "<= 3 ns", added <= 3, pair)
    most, added = readings + 10, held - bare
    report.add("locks: with hold times", f"{added:.1f} ns added", f"<= {most:.1f} ns", added <= most, pair)
