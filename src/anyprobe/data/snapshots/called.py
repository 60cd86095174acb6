"""What was called between two snapshots, in few numbers: for reports of tests and of tasks."""

from collections.abc import Iterable
from typing import NamedTuple

from anyprobe.core.printable import printable
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.snapshot import Snapshot


class Called(NamedTuple):
    """The calls of one function."""

    function: str
    """Its module and name."""
    calls: int
    """How many have ended."""
    timed: int
    """How many of these were timed."""
    ns: int
    """What those took, in nanoseconds."""

    def plus(self, other: "Called") -> "Called":
        """Return the sum with other calls of the function."""
        return Called(self.function, self.calls + other.calls, self.timed + other.timed, self.ns + other.ns)


def called_between(before: Snapshot, after: Snapshot) -> list[Called]:
    """Return the functions that were called in between, those with most time first."""
    found = [
        Called(
            printable(f"{each.shown_module}:{each.label or each.function}"),
            each.count + each.tail_exits + each.learning + each.nmissed + each.left,
            each.count,
            round(max(each.sum_ns, 0.0)),
        )
        for each in since(after, before, "").functions
    ]
    return most_time_first(each for each in found if each.calls)


def add_calls(sums: dict[str, Called], calls: Iterable[Called]) -> None:
    """Add calls to sums by function."""
    for each in calls:
        sums[each.function] = sums[each.function].plus(each) if each.function in sums else each


def most_time_first(calls: Iterable[Called]) -> list[Called]:
    """Return calls in the order in which they are told."""
    return sorted(calls, key=lambda each: (-each.ns, each.function))
