"""The tables by which calls that leave their function by a jump find out whether their return point is watched.

A thread looks for the pair of its return point and the offset of the function's timing record among the known ones,
which anyprobe alone writes: an entry is complete before its address is written, and only its state changes later. What
is not known the threads note in the other table, each pair once.
"""

import struct
from collections.abc import Iterator

from anyprobe.data.layouts.layout import (
    CALLER_BYTES,
    CALLER_PROBES,
    CALLER_STATE,
    GOLDEN,
    BankLayout,
)

_ENTRY = struct.Struct("<QII")
_REST = struct.Struct("<II")
_64_BITS = (1 << 64) - 1


def first_entry(point: int, record: int, entries: int) -> int:
    """Return the number of the entry at which a pair is looked for first."""
    return ((record << 32 ^ point) * GOLDEN & _64_BITS) >> (64 - (entries.bit_length() - 1))


class CallerTables:
    """Both tables of one bank."""

    def __init__(self, region: memoryview, layout: BankLayout) -> None:
        """Look at a bank's region; the view is live."""
        self._region, self._layout = region, layout

    def noted(self, but: bytearray | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield what threads have noted: the row, the return point and the offset of the timing record.

        ``but``: has a one for each row that is left out.
        """
        import numpy as np

        start, size = self._layout.callers_offset, self._layout.callers * CALLER_BYTES
        words = np.frombuffer(self._region[start : start + size], dtype=np.uint64).reshape(-1, 2)
        there = words[:, 0] != 0
        if but is not None:
            there &= np.frombuffer(but, dtype=np.uint8) == 0
        rows = zip(there.nonzero()[0].tolist(), words[there].tolist(), strict=True)
        yield from ((row, point, record & 0xFFFF_FFFF) for row, (point, record) in rows if record & 0xFFFF_FFFF)

    def set(self, point: int, record: int, state: int) -> bool:
        """Say what becomes of calls that end at a return point; return whether there is room for it."""
        start, entries = self._layout.known_callers_offset, self._layout.known_callers
        first = first_entry(point, record, entries)
        for number in range(first, first + CALLER_PROBES):
            place = start + number % entries * CALLER_BYTES
            there, own, _ = _ENTRY.unpack_from(self._region, place)
            if (there, own) == (point, record):
                self._region[place + CALLER_STATE : place + CALLER_BYTES] = state.to_bytes(4, "little")
                return True
            if there == 0:
                self._region[place + 8 : place + CALLER_BYTES] = _REST.pack(record, state)
                self._region[place : place + 8] = point.to_bytes(8, "little")
                return True
        return False

    def known(self) -> dict[tuple[int, int], int]:
        """Return the states of all known pairs."""
        start, entries = self._layout.known_callers_offset, self._layout.known_callers
        content = self._region[start : start + entries * CALLER_BYTES]
        return {(point, record): state for point, record, state in _ENTRY.iter_unpack(content) if point}
