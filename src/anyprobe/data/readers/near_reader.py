"""Counters within reach of code, which all threads share."""

import numpy as np

from anyprobe.core.address import PAGE
from anyprobe.data.readers.reader import Extents, pages_present


class NearReader:
    """Reads near counters: one block, changed by atomic operations."""

    def __init__(self, block: memoryview, extents: Extents | None = None) -> None:
        """Read ``block``; the view is live. ``extents``: the pages with data, all if not given."""
        self._words = np.frombuffer(block, dtype=np.uint64)
        self._present = pages_present(len(block), extents)

    def counter(self, offset: int) -> int:
        """Return the counter at a block offset."""
        return int(self._words[offset // 8]) if self._present[offset // PAGE] else 0
