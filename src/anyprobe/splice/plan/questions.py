"""What a plan has asked of what may be different the next time: claimed bytes, and places for springboards.

A plan that is kept holds where all that it asked has the same answers.
"""

from collections.abc import Callable
from typing import NamedTuple

from anyprobe.splice.plan.splices import Pun

_APART = 256
"""Ranges that are not further apart than this are one."""

Reach = dict[tuple[int, int], bool]
"""Whether a punned jump, by its lowest target and its free bytes, had a place for its springboard."""


class Place(NamedTuple):
    """Where the springboard of a punned jump was when another one was to depend on it; link-time."""

    pun: Pun
    address: int | None


class Questions:
    """What is asked while one plan is made."""

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self._spans: list[tuple[int, int]] = []
        self.reach: Reach = {}
        self.places: set[Place] = set()
        self.is_steady = True
        """Whether the same was always answered in the same way."""

    def note(self, start: int, end: int) -> None:
        """Take note that the claims of ``[start, end)`` were looked at."""
        self._spans.append((start, end))

    def note_place(self, pun: Pun, address: int | None) -> None:
        """Take note that it was looked at where the springboard of a punned jump is."""
        self.places.add(Place(pun, address))

    def asking(self, reachable: Callable[[Pun], bool]) -> Callable[[Pun], bool]:
        """Return what asks the same, and is taken note of."""

        def asked(pun: Pun) -> bool:
            key = pun.base, pun.free
            found = reachable(pun)
            self.is_steady &= self.reach.setdefault(key, found) == found
            return found

        return asked

    def spans(self) -> list[tuple[int, int]]:
        """Return the ranges that were looked at, ascending; those between that are small belong to them."""
        found: list[tuple[int, int]] = []
        low = high = 0
        for start, end in sorted(set(self._spans)):
            if found and start <= high + _APART:
                high = max(high, end)
                found[-1] = low, high
            elif start < end:
                low, high = start, end
                found.append((low, high))
        return found
