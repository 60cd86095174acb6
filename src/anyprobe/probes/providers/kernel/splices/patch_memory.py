"""Memory for the patches of a session: what nothing leads to any more is used again when no task is in it."""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel.driver.device import Applied
from anyprobe.target.kernel.driver.layout import MAX_FIXUPS, Fixup, Write

_CHUNK: Final = 64 << 10
_PAGE: Final = 4096
_ALIGNMENT: Final = 16
_MOST_BYTES: Final = 64 << 10
_MOST_COPIES: Final = 256
"""How much may have been left before the driver is asked whether a task is in it, in bytes and in fix-ups."""


class Giver(Protocol):
    """What the driver does here."""

    def reserve(self, size: int) -> int:
        """Return the address of that much memory for patches."""

    def apply(self, writes: Iterable[Write], fixups: Sequence[Fixup] = ..., *, tries: int = ...) -> Applied:
        """Write, and give fix-ups back."""


@dataclass(frozen=True, order=True, slots=True)
class Piece:
    """Where a patch or a routine lies; ``copies`` are those of instructions that may fault."""

    start: int
    end: int
    copies: tuple[int, ...] = ()


class PatchMemory:
    """Memory for patches of one client of the driver."""

    def __init__(self, driver: Giver) -> None:
        """Have none yet."""
        self._driver = driver
        self._free: list[tuple[int, int]] = []
        """In ascending order, none next to another."""
        self._left: list[Piece] = []

    def reserve(self, size: int) -> Piece:
        """Return so much memory, in reach of all text."""
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        found = next((each for each in self._free if each[1] - each[0] >= size), None)
        if found is None:
            whole = -(-max(size, _CHUNK) // _PAGE) * _PAGE
            start = self._driver.reserve(whole)
            found = start, start + whole
        else:
            self._free.remove(found)
        start, end = found
        self._add(start + size, end)
        return Piece(start, start + size)

    def keep(self, whole: Piece, used: Iterable[Piece]) -> None:
        """Take back what was reserved but for some parts of it; nothing has led to the rest."""
        at = whole.start
        for each in sorted(each for each in used if whole.start <= each.start < whole.end):
            self._add(at, each.start)
            at = each.end
        self._add(at, whole.end)

    def leave(self, several: Iterable[Piece]) -> None:
        """Take back what nothing leads to any more, as soon as no task is in it."""
        self._left += several
        copies = sum(len(each.copies) for each in self._left)
        if copies >= _MOST_COPIES or sum(each.end - each.start for each in self._left) >= _MOST_BYTES:
            self._clear()

    def _clear(self) -> None:
        """Use again what was left, unless a task is in a patch of this client: then it is tried another time."""
        gone = sorted({self._left[0].start, *(copy for each in self._left for copy in each.copies)})
        try:
            for first in range(0, len(gone), MAX_FIXUPS):
                self._driver.apply([], [Fixup(copy, 0) for copy in gone[first : first + MAX_FIXUPS]], tries=1)
        except KernelRefused:
            return
        left, self._left = self._left, []
        for each in left:
            self._add(each.start, each.end)

    def _add(self, start: int, end: int) -> None:
        """Have a range free."""
        if start == end:
            return
        before = next((each for each in self._free if each[1] == start), None)
        after = next((each for each in self._free if each[0] == end), None)
        for each in (before, after):
            if each is not None:
                self._free.remove(each)
        insort(self._free, (before[0] if before else start, after[1] if after else end))
