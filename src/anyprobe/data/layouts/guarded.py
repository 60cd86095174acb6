"""What handlers are told of memory whose reading may wait for the program itself: one structure in shared memory.

A word that says whether there may be such memory, how often the program has asked for some, the number of the ranges
that are never read, and these.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise

WATCHED, ASKED, COUNT, RANGES = 0, 4, 8, 16
"""Where what is."""
UNKNOWN, KNOWN = 1, 2
"""What the first word says: the program has just asked for some, and where it is is not known; or it is known."""
MOST_RANGES = 64
GUARD_BYTES = RANGES + 16 * MOST_RANGES
_RANGE = struct.Struct("<QQ")


def fewer(ranges: Iterable[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return ranges that cover all of the given ones, and no more than there is room for: those next to each other."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    while len(found) > MOST_RANGES:
        gaps = [after[0] - before[1] for before, after in pairwise(found)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return found


def write_ranges(view: memoryview, ranges: Sequence[tuple[int, int]]) -> None:
    """Write the ranges, and that memory is to be watched. Threads that read meanwhile see more of them, or the same."""
    content = b"".join(_RANGE.pack(*each) for each in ranges)
    words = view.cast("Q")
    words[COUNT // 8] = max(words[COUNT // 8], len(ranges))
    view[RANGES : RANGES + len(content)] = content
    words[COUNT // 8] = len(ranges)
    view[WATCHED : WATCHED + 4] = KNOWN.to_bytes(4, "little")
