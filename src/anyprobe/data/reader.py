"""Live shared memory to numbers. Reading never disturbs the target and works on after its death.

Reading a page of shared memory that was never touched allocates it, and most pages of a bank are never touched.
So only those are read that hold data.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyprobe.core.address import PAGE
from anyprobe.data.layout import (
    BLOCK_OWNER,
    BLOCK_TOP,
    CHILD_BIT,
    INSTANCE_BYTES,
    INSTANCE_RECORD,
    INSTANCE_SP,
    JUMPED,
    NEXT_BLOCK,
    RECORD_BUCKETS,
    RECORD_BYTES,
    RECORD_LEARNING,
    RECORD_MAX,
    RECORD_MISSED,
    RECORD_NOT_MIN,
    RECORD_SUM,
    RECORD_TAIL,
    RECORD_UNMATCHED,
    BankLayout,
)

_TID_MASK = 0xFFFFFFFF
_ALL_ONES = (1 << 64) - 1
Extents = Iterable[tuple[int, int]]
"""Where memory holds data: ranges of whole pages."""


@dataclass(frozen=True, slots=True)
class RecordValues:
    """One timing record summed over all blocks, durations in TSC ticks."""

    count: int
    sum: int
    min: int
    max: int
    tail: int
    unmatched: int
    missed: int
    buckets: tuple[int, ...]
    learning: int = 0


class BankReader:
    """Reads one bank of per-thread blocks, as it is at one moment."""

    def __init__(self, region: memoryview, layout: BankLayout, extents: Extents | None = None) -> None:
        """Read ``region``, the whole bank; the view is live. ``extents``: the pages with data, all if not given."""
        self._words = np.frombuffer(region, dtype=np.uint64)
        self._layout = layout
        present = _present(len(region), extents)
        used = min(int(self._words[NEXT_BLOCK // 8]), layout.blocks) if present[NEXT_BLOCK // PAGE] else 0
        self.is_full = bool(present[NEXT_BLOCK // PAGE]) and int(self._words[NEXT_BLOCK // 8]) > layout.blocks
        """Whether threads or fork children have found no block left, and count together with others."""
        start, size = layout.shared_offset, (used + 1) * layout.stride
        self._blocks = self._words[start // 8 : (start + size) // 8].reshape(used + 1, layout.stride // 8)
        """The shared block and the blocks in use, one per row."""
        self._present = present[start // PAGE : (start + size) // PAGE].reshape(used + 1, layout.stride // PAGE)
        self._present[1 : 1 + layout.left_out] = False

    def _columns(self, offset: int, size: int) -> NDArray[np.uint64]:
        """Return what all blocks hold at an offset, one block per row; untouched memory is zero."""
        rows = self._blocks[:, offset // 8 : (offset + size) // 8]
        pages = range(offset // PAGE, (offset + size + PAGE - 1) // PAGE)
        if self._present[:, pages.start : pages.stop].all():
            return rows
        found: NDArray[np.uint64] = np.zeros(rows.shape, dtype=np.uint64)
        for page in pages:
            low, high = max(page * PAGE - offset, 0) // 8, min((page + 1) * PAGE - offset, size) // 8
            touched = self._present[:, page]
            found[touched, low:high] = rows[touched, low:high]
        return found

    def counters(self) -> NDArray[np.uint64]:
        """Return all counters, summed over the blocks; index with ``counter_index``."""
        rows = self._columns(self._layout.counters_offset, 8 * self._layout.counters)
        total: NDArray[np.uint64] = rows.sum(axis=0, dtype=np.uint64)
        return total

    def children(self) -> dict[int, int]:
        """Return for each block that is a fork child's, by its number, the number of the thread that came first."""
        owners = self._columns(BLOCK_OWNER, 8)[:, 0].tolist()
        return {number: owner & _TID_MASK for number, owner in enumerate(owners) if number and owner >> CHILD_BIT}

    def counters_by_block(self) -> NDArray[np.uint64]:
        """Return the counters of each block, one block per row; index the columns with ``counter_index``."""
        return self._columns(self._layout.counters_offset, 8 * self._layout.counters)

    def counter_index(self, offset: int) -> int:
        """Return the index of a counter from its block offset."""
        return (offset - self._layout.counters_offset) // 8

    def record(self, offset: int) -> RecordValues:
        """Return one timing record, summed over the blocks; its count is that of its buckets.

        The program may be writing: a call is recorded once it has its bucket, which it gets last.
        """
        rows = self._columns(offset, RECORD_BYTES).copy()

        def total(place: int) -> int:
            return int(rows[:, place // 8].sum(dtype=np.uint64))

        buckets = rows[:, RECORD_BUCKETS // 8 :].sum(axis=0, dtype=np.uint64)
        count = int(buckets.sum(dtype=np.uint64))
        return RecordValues(
            count=count,
            sum=total(RECORD_SUM),
            min=_ALL_ONES - int(rows[:, RECORD_NOT_MIN // 8].max()) if count else 0,
            max=int(rows[:, RECORD_MAX // 8].max()),
            tail=total(RECORD_TAIL),
            unmatched=total(RECORD_UNMATCHED),
            missed=total(RECORD_MISSED),
            learning=total(RECORD_LEARNING),
            buckets=tuple(buckets.tolist()),
        )

    def in_flight(self) -> dict[int, int]:
        """Return how many instances are on the threads' stacks, by record offset; leftovers of longjmp included."""
        layout = self._layout
        if not layout.maxactive:
            return {}
        first = layout.instances_offset // 8
        size = layout.maxactive * INSTANCE_BYTES // 8
        found: dict[int, int] = {}
        for block in self._blocks[self._present[:, BLOCK_TOP // PAGE]]:
            top = min(int(block[BLOCK_TOP // 8]), layout.maxactive)
            instances = block[first : first + size].reshape(layout.maxactive, INSTANCE_BYTES // 8)[:top]
            alive = instances[instances[:, INSTANCE_SP // 8] > 1][:, INSTANCE_RECORD // 8]
            for record, count in Counter(each & ~JUMPED for each in alive.tolist()).items():
                found[record] = found.get(record, 0) + count
        return found


class NearReader:
    """Reads near counters: one block, changed by atomic operations."""

    def __init__(self, block: memoryview, extents: Extents | None = None) -> None:
        """Read ``block``; the view is live. ``extents``: the pages with data, all if not given."""
        self._words = np.frombuffer(block, dtype=np.uint64)
        self._present = _present(len(block), extents)

    def counter(self, offset: int) -> int:
        """Return the counter at a block offset."""
        return int(self._words[offset // 8]) if self._present[offset // PAGE] else 0


def _present(size: int, extents: Extents | None) -> NDArray[np.bool_]:
    """Return for each page whether it holds data."""
    present = np.full((size + PAGE - 1) // PAGE, extents is None)
    for low, high in extents or ():
        present[low // PAGE : (high + PAGE - 1) // PAGE] = True
    return present
