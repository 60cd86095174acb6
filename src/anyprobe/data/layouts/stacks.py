"""Stacks of the program in shared memory: each one once, under a number that keys and records hold.

A table has a fixed number of places, each with room for the longest stack. A thread with a stack that is not there
yet takes an empty place by ``lock cmpxchg`` of its hash, writes the addresses and then their number. A thread that
meets a place that is taken and not finished, since its taker was interrupted, writes the same addresses itself; so
no thread waits. A stack for which there is no place is number 0, and counted.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:
    from anyprobe.core.later import np

DROPPED = 0
"""Head: stacks that found no place."""
HEAD_BYTES = 1024
PLACES = 8192
PLACE_BYTES = 1024
HASH, COUNT, FRAMES = 0, 8, 16
"""In a place: the stack's hash, how many addresses it has once they are all written, the addresses, innermost first."""
DEPTH_LIMIT = (PLACE_BYTES - FRAMES) // 8
PROBES = 64
"""Places that are looked at for one stack."""
SIZE = HEAD_BYTES + PLACES * PLACE_BYTES
PYTHON, LAST, MARK_SHIFT, MARK_BITS = 1 << 63, 1 << 62, 48, 14
"""Frames of Python's follow the addresses: each is a code object, with the first bit, and with the second one if C code
has called the interpreter for it; and a mark by which it is seen later that another code object is there."""
PYTHON_DEPTH = 60
"""So many of them there may be more than addresses."""
MARK_FACTOR = 0x9E37_79B9_7F4A_7C15


def mark(code: int, file: int, name: int) -> int:
    """Return a frame of Python's by its code object, and where that has the texts of its file and its name."""
    mixed = (file ^ name * 3) * MARK_FACTOR & (1 << 64) - 1
    return PYTHON | mixed >> 64 - MARK_BITS << MARK_SHIFT | code


def code_of(frame: int) -> int:
    """Return where the code object of a frame of Python's is."""
    return frame & (1 << MARK_SHIFT) - 1


class StackView:
    """The stacks of one process; reading never disturbs the target."""

    def __init__(self, region: memoryview) -> None:
        """View ``region``, which begins with the table."""
        self._words = np.frombuffer(region, np.uint64, count=SIZE // 8)

    @property
    def dropped(self) -> int:
        """Hits whose stack found no place."""
        return int(self._words[DROPPED // 8])

    def taken(self) -> list[int]:
        """Return the numbers of all stacks that are there."""
        counts = self._words[HEAD_BYTES // 8 :].reshape(PLACES, -1)[:, COUNT // 8]
        return [int(each) + 1 for each in counts.nonzero()[0]]

    def addresses(self, number: int) -> list[int]:
        """Return the addresses of a stack: where the hit was, return addresses, then frames of Python's, if wanted.

        None for what is not there.
        """
        if not 0 < number <= PLACES:
            return []
        first = (HEAD_BYTES + (number - 1) * PLACE_BYTES) // 8
        count = int(self._words[first + COUNT // 8])
        if count > DEPTH_LIMIT:  # not written by us
            return []
        return [int(each) for each in self._words[first + FRAMES // 8 : first + FRAMES // 8 + count]]
