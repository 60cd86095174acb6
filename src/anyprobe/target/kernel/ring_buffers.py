"""Ring buffers of the kernel, read through shared memory: what programs write comes in the order of their places.

The kernel maps the data twice in a row, so that what goes over the end is in one piece. (kernel/bpf/ringbuf.c)
"""

import mmap
import os
from typing import TYPE_CHECKING, Final

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import bpf, descriptors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

_HEAD_BYTES: Final = 8
_BUSY: Final = 1 << 31
"""In the first half of a record's head: it is being written."""


class RingBuffer:
    """One ring buffer with records of one size."""

    def __init__(self, size: int, record_bytes: int) -> None:
        """Make one of ``size`` bytes, a power of two and at least a page, for records of whole words."""
        self.descriptor = bpf.create_ring(size)
        self._size, self._stride = size, _HEAD_BYTES + record_bytes
        both = mmap.PAGESIZE + 2 * size
        try:  # each map of Python's has a descriptor of its own
            self._consumed = descriptors.made("map a ring", lambda: mmap.mmap(self.descriptor, mmap.PAGESIZE))
            self._shared = descriptors.made(
                "map a ring",
                lambda: mmap.mmap(self.descriptor, both, prot=mmap.PROT_READ, offset=mmap.PAGESIZE),
            )
        except KernelRefused:
            os.close(self.descriptor)
            raise
        # each word is read and written at once
        self._positions = [memoryview(each).cast("Q") for each in (self._consumed, self._shared)]

    def take(self) -> "NDArray[np.uint8]":
        """Return what has been written since the last time, a row for each record, and give its room back."""
        consumed, produced = (words[0] for words in self._positions)
        count = (produced - consumed) // self._stride
        start = mmap.PAGESIZE + (consumed & self._size - 1)
        raw = np.frombuffer(self._shared, np.uint8, count * self._stride, start).reshape(count, self._stride)
        # reading what others write: a head that is whole says that its record is
        busy = np.flatnonzero(np.ascontiguousarray(raw[:, :4]).view("<u4")[:, 0] & _BUSY)
        done = int(busy[0]) if len(busy) else count
        found = raw[:done, _HEAD_BYTES:].copy()
        self._positions[0][0] = consumed + done * self._stride
        return found

    def close(self) -> None:
        """Give it back; the kernel keeps it as long as a program uses it."""
        for each in self._positions:
            each.release()
        self._consumed.close()
        self._shared.close()
        os.close(self.descriptor)
