"""Targets and statistics of the benchmarks."""

import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
BUILD = Path(tempfile.gettempdir()) / f"anyprobe-bench-{os.getuid()}"


def compiled(source: Path, *options: str) -> Path:
    """Build a C program and return it."""
    BUILD.mkdir(mode=0o700, exist_ok=True)
    program = BUILD / source.stem
    subprocess.run(["gcc", "-O2", "-g", "-pthread", str(source), "-o", str(program), *options], check=True)
    return program


class CallTarget:
    """The program of target.c: told how many calls to make, answers with ns per call of each thread."""

    def __init__(self, threads: int = 1) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [str(BUILD / "target"), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")
        self.pid = self.process.pid

    def run(self, function: str, calls: int) -> list[float]:
        """Return ns per call of each thread."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{function} {calls}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the target died: {self.process.wait()}")
        return [float(word) for word in line.split()]

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def call_target(threads: int = 1) -> Iterator[CallTarget]:
    """Run the program for the length of a ``with`` block."""
    target = CallTarget(threads)
    try:
        yield target
    finally:
        target.close()


@dataclass(frozen=True)
class Estimate:
    """A median with its interval (the order statistics that hold it with 95 % confidence)."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        """Return it as a reader wants it."""
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}] n={self.pairs}"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median and its interval, which needs no assumption about the distribution."""
    ordered = sorted(values)
    n = len(ordered)
    reach = round(0.98 * n**0.5)
    low, high = max(0, n // 2 - reach), min(n - 1, (n - 1) // 2 + reach)
    return Estimate(statistics.median(ordered), ordered[low], ordered[high], n)


def pairs(
    target: CallTarget, function: str, calls: int, count: int, arm: Callable[[], Callable[[], object]]
) -> tuple[Estimate, float, float]:
    """Return the time that a probe adds per call, from interleaved pairs; and the medians without and with it.

    ``arm`` arms and returns what disarms. Each pair is in random order, so that drift of the machine cancels.
    """
    target.run(function, calls // 10)
    added, bare, probed = [], [], []
    for _ in range(count):
        samples = {}
        for with_probe in random.sample([False, True], 2):
            disarm = arm() if with_probe else None
            target.run(function, max(calls // 100, 1))
            samples[with_probe] = statistics.mean(target.run(function, calls))
            if disarm:
                disarm()
        added.append(samples[True] - samples[False])
        bare.append(samples[False])
        probed.append(samples[True])
    return estimate(added), statistics.median(bare), statistics.median(probed)


class Stopwatch:
    """Seconds of a ``with`` block."""

    seconds = 0.0

    def __enter__(self) -> Self:
        """Start."""
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.seconds = time.perf_counter() - self._start


def wait_idle(patience: float = 30.0) -> bool:
    """Wait until the machine does nothing else for half a second; return whether that came."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = _busy_ticks()
        time.sleep(0.5)
        if _busy_ticks() - before <= 5:
            return True
    return False


def _busy_ticks() -> int:
    with open("/proc/stat") as stat:
        fields = [int(word) for word in stat.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4]
