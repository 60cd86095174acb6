"""Unwinding tables in shared memory: for all code of a process, how the caller's frame is found.

The region begins with the offset of a *directory*, which is replaced as a whole when code comes or goes: a number, then
*ranges* by ascending address: first and last address, the address that offsets count from, and where its rows are and
how many. Rows are two arrays of 32-bit numbers: offsets at which they begin, and rules (``binary.unwind.rules``).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CURRENT = 0
"""Head: offset of the directory in use, 0 for none."""
PY_STATE, PY_CURRENT, PY_PART, PY_CODE, PY_PREVIOUS, PY_OWNER, PY_ENTRY, PY_FILE, PY_NAME = range(8, 80, 8)
"""Head: where Python's frames are, 0 in the first of these words if that is not known: where a thread has its state,
from the thread pointer; where that leads to the frame that is executed, and the part between (-1: there is none); in a
frame its code object, the one before and its kind; whether that kind is if C code has called the interpreter; and in a
code object its file and its name."""
NO_PART = (1 << 64) - 1
OF_INTERPRETER = 3
"""The kind of a frame that is no function's (3.12 and later)."""
HEAD_BYTES = 128
RANGE_BYTES = 40
FIRST, LAST, BASE, ROWS, COUNT = range(0, RANGE_BYTES, 8)
"""In a range; ``LAST`` is the address after it."""
WINDOW_BYTES = 512
"""How much of a stack is read at one time."""
_RANGE = struct.Struct("<5Q")


@dataclass(frozen=True, eq=False)
class Range:
    """A range of code, and the rows of its object: none where nothing is known of it."""

    first: int
    last: int
    base: int = 0
    starts: NDArray[np.uint32] | None = None
    rules: NDArray[np.uint32] | None = None


class UnwindRegion:
    """Writes tables into a region; those in use stay until there are others."""

    def __init__(self, region: memoryview) -> None:
        """Begin with an empty region."""
        self._region = region
        self._end = HEAD_BYTES
        self._rows: dict[int, tuple[int, int]] = {}
        """Where the rows of an object are, by the identity of its array."""
        self._kept: list[NDArray[np.uint32]] = []

    def publish(self, ranges: Sequence[Range]) -> bool:
        """Have handlers use some ranges from now on; return whether there was room."""
        placed = []
        for each in sorted(ranges, key=lambda each: each.first):
            rows = self._put(each)
            if rows is None:
                return False
            placed.append(_RANGE.pack(each.first, each.last, each.base, *rows))
        directory = struct.pack("<Q", len(placed)) + b"".join(placed)
        at = self._take(len(directory))
        if at is None:
            return False
        self._region[at : at + len(directory)] = directory
        self._region[CURRENT : CURRENT + 8] = struct.pack("<Q", at)
        return True

    def tell_python(self, words: Sequence[int]) -> None:
        """Have handlers find Python's frames from now on, by the words from ``PY_STATE`` on, the first of them last."""
        self._region[PY_CURRENT : PY_CURRENT + 8 * (len(words) - 1)] = struct.pack(f"<{len(words) - 1}Q", *words[1:])
        self._region[PY_STATE : PY_STATE + 8] = struct.pack("<q", words[0])

    def _put(self, each: Range) -> tuple[int, int] | None:
        if each.starts is None or each.rules is None:
            return 0, 0
        known = self._rows.get(id(each.starts))
        if known is None:
            content = each.starts.tobytes() + each.rules.tobytes()
            at = self._take(len(content))
            if at is None:
                return None
            self._region[at : at + len(content)] = content
            known = self._rows[id(each.starts)] = at, len(each.starts)
            self._kept.append(each.starts)
        return known

    def _take(self, size: int) -> int | None:
        at = self._end
        if at + size > len(self._region):
            return None
        self._end = (at + size + 7) & -8
        return at


def room_for(ranges: Sequence[Range]) -> int:
    """Return the size of a region for some ranges, with room for as much again to come."""
    rows = {id(each.starts): 8 * len(each.starts) for each in ranges if each.starts is not None}
    return HEAD_BYTES + 2 * (sum(rows.values()) + (RANGE_BYTES + 16) * len(ranges)) + (1 << 20)
