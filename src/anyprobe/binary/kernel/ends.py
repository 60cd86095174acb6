"""Where a kernel's functions end: their symbols have no sizes, and reach to the next one's, padding included."""

import re
import struct

import numpy as np
from numpy.typing import NDArray

from anyprobe.core.address import AddressRange

_NOP = rb"(?:[\x66\x2e]*(?:\x90|\x0f\x1f(?:\x84\0\0\0\0\0|\x80\0\0\0\0|\x44\0\0|\x40\0|\0)))"
_LAST = re.compile(rb"(?:\xc3|\x0f\x0b|[\xe8\xe9]([\x00-\xff]{4}))(?=\xcc*(?:\x0f\xb9\xcc)?" + _NOP + rb"*\xcc*\Z)")
"""What a function mostly ends with, and padding after it."""
_LOOKED_AT = 64
"""Bytes at the end of a function, with more padding than there is before almost any other."""


def trimmed(
    starts: NDArray[np.int64], ends: NDArray[np.int64], padding: NDArray[np.int64], area: AddressRange, text: bytes
) -> NDArray[np.int64]:
    """Return the ends without padding where a return, a jump or a trap shows them; others stay.

    ``padding`` is where some functions' padding begins, as symbols say, in ascending order.
    """
    rows = np.searchsorted(padding, starts, side="right")
    known = np.append(padding, np.iinfo(np.int64).max)[rows]
    limits = np.minimum(ends, known)
    base, search, unpack = area.start, _LAST.search, struct.unpack
    found = limits.tolist()
    for number, (start, end) in enumerate(zip(starts.tolist(), found, strict=True)):
        low = max(start, end - _LOOKED_AT) - base
        last = search(text, low, end - base)
        if last is None:
            continue
        after = last.end() + base
        if last[1] is None or after + unpack("<i", last[1])[0] in area:
            found[number] = after
    return np.array(found, np.int64)
