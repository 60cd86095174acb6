"""Ranges of addresses that each carry a reason: what lies in one is found without going through all of them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from anyprobe.core.address import AddressRange


class Areas:
    """Ranges with reasons, sorted; they may overlap."""

    def __init__(self, areas: Sequence[tuple[AddressRange, str]]) -> None:
        """Take the ranges, in the order in which their reasons are to be told."""
        self._order = sorted(range(len(areas)), key=lambda number: areas[number][0].start)
        self._reasons = [reason for _, reason in areas]
        self._starts = [areas[number][0].start for number in self._order]
        self._ends = [areas[number][0].end for number in self._order]
        self._reach = list(accumulate(self._ends, max))
        """How far the ranges up to each one go."""

    def overlapping(self, start: int, end: int) -> list[str]:
        """Return the reasons of the ranges that share a byte with ``[start, end)``, in the order given."""
        found = []
        number = bisect_left(self._starts, end)
        while number and self._reach[number - 1] > start:
            number -= 1
            if self._ends[number] > start:
                found.append(self._order[number])
        return [self._reasons[number] for number in sorted(found)]
