"""What an optimisation was worth: what was compared, what came of it, and why it was kept or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

from anyprobe.data.findings.refused import RefusedSite

_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's distribution at 97.5 %, for 1, 2, 3... degrees of freedom."""
_MOST = 1.96


@dataclass(frozen=True, slots=True)
class Specialised:
    """A function that was made anew for the values that its parameters mostly have."""

    function: str
    values: Mapping[str, int]
    """The values by registers, without a sign."""
    share: float
    """The part of its calls in which all of these are so, at least."""
    jumps: int
    """Conditional jumps that always go one way then."""
    results: int
    """Instructions whose results are known then, or that take less time."""
    dropped: int
    """Blocks that never run then."""

    def as_json(self) -> dict[str, Any]:
        """Return the members of a document."""
        return {
            "function": self.function, "values": dict(self.values), "share": self.share, "jumps": self.jumps,
            "results": self.results, "dropped": self.dropped,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Optimisation:
    """What became of one try to have a program run faster."""

    kept: bool = False
    reason: str = ""
    """Why it was kept, or not."""
    measured: str = ""
    """The function whose calls were timed, with all that the process does between them."""
    before_ns: float | None = None
    """Processor time of the process for each of these calls, as it was."""
    after_ns: float | None = None
    """Processor time for each of them where functions run elsewhere."""
    interval: tuple[float, float] | None = None
    """How many times faster it is: the confidence interval, at 95 %."""
    functions: int = 0
    """How many run elsewhere."""
    calls: int = 0
    """How many calls and jumps lead there."""
    code_bytes: int = 0
    hot_bytes: int = 0
    """Cache lines, in bytes, in which the code lies that has run."""
    stayed: tuple[RefusedSite, ...] = ()
    """The functions that could not be moved, and why."""
    specialised: tuple[Specialised, ...] = ()
    """What the functions were specialised for, where that was asked for."""

    def as_json(self) -> dict[str, Any]:
        """Return the members of a document."""
        return {
            "kept": self.kept,
            "reason": self.reason,
            "measured": self.measured or None,
            "before_ns": self.before_ns,
            "after_ns": self.after_ns,
            "interval": None if self.interval is None else list(self.interval),
            "moved": self.functions,
            "rebound": self.calls,
            "code_bytes": self.code_bytes,
            "hot_bytes": self.hot_bytes,
            "stayed": [each.as_json() for each in self.stayed],
            "specialised": [each.as_json() for each in self.specialised],
        }


def interval_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return how many times faster it is, at 95 %, by pairs of times that were measured one right after the other.

    What changes slowly, the clock of the processor and other programs, is the same for both of a pair.
    """
    gains = [log(one / other) for one, other in zip(before, after, strict=True)]
    count = len(gains)
    if count < 2:
        return 0.0, float("inf")
    mean = sum(gains) / count
    spread = sqrt(sum((each - mean) ** 2 for each in gains) / (count - 1) / count)
    half = spread * (_QUANTILES[count - 2] if count - 2 < len(_QUANTILES) else _MOST)
    return exp(mean - half), exp(mean + half)
