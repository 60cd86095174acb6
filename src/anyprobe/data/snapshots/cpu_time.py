"""How long calls were on processors, and how long they were not: the rest of the time that they took."""

from dataclasses import dataclass
from typing import Self

CALLS, CPU, TAILS, READING = "calls_ns", "on processors_ns", "left by a jump", "one reading of the clock_ns"
"""The names of the aggregations of handlers that measure it."""
OF_CPU = frozenset({CALLS, CPU, TAILS, READING})


@dataclass(frozen=True, slots=True)
class CpuTime:
    """The time on processors of a function's calls, what these called included."""

    cpu_ns: float
    off_ns: float
    """The time not on processors: asleep, or waiting for one."""
    error_ns: float
    """How far both may be off, together, in one direction or the other."""

    @classmethod
    def of(cls, wall_ns: float, cpu_ns: float, calls: int, reading_ns: float) -> Self:
        """Return the time of calls that took ``wall_ns``; ``reading_ns``: what a reading of the clock takes."""
        return cls(min(cpu_ns, wall_ns), max(wall_ns - cpu_ns, 0.0), calls * reading_ns)

    def __add__(self, other: "CpuTime") -> "CpuTime":
        """Return the sum."""
        return CpuTime(self.cpu_ns + other.cpu_ns, self.off_ns + other.off_ns, self.error_ns + other.error_ns)

    def __sub__(self, other: "CpuTime") -> "CpuTime":
        """Return what is more than another one."""
        return CpuTime(self.cpu_ns - other.cpu_ns, self.off_ns - other.off_ns, self.error_ns - other.error_ns)
