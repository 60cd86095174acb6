"""Live shared memory to numbers. Reading never disturbs the target and works on after its death."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyprobe.data.histogram import BUCKETS
from anyprobe.data.layout import (
    BLOCK_TOP,
    INSTANCE_BYTES,
    INSTANCE_RECORD,
    INSTANCE_SP,
    NEXT_BLOCK,
    RECORD_BUCKETS,
    RECORD_COUNT,
    RECORD_MAX,
    RECORD_MISSED,
    RECORD_NOT_MIN,
    RECORD_SUM,
    RECORD_TAIL,
    RECORD_UNMATCHED,
    BankLayout,
)

_ALL_ONES = (1 << 64) - 1


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


class BankReader:
    """Reads one bank of per-thread blocks."""

    def __init__(self, region: memoryview, layout: BankLayout) -> None:
        """Read ``region``, the whole bank; the view is live."""
        self._words = np.frombuffer(region, dtype=np.uint64)
        self._layout = layout

    def _blocks(self) -> NDArray[np.uint64]:
        """Return the shared block and the blocks in use, one per row."""
        layout = self._layout
        used = min(int(self._words[NEXT_BLOCK // 8]), layout.blocks)
        start = layout.shared_offset // 8
        return self._words[start : start + (used + 1) * layout.stride // 8].reshape(used + 1, layout.stride // 8)

    def counters(self) -> NDArray[np.uint64]:
        """Return all counters, summed over the blocks; index with ``counter_index``."""
        first = self._layout.counters_offset // 8
        total: NDArray[np.uint64] = self._blocks()[:, first : first + self._layout.counters].sum(
            axis=0, dtype=np.uint64
        )
        return total

    def counter_index(self, offset: int) -> int:
        """Return the index of a counter from its block offset."""
        return (offset - self._layout.counters_offset) // 8

    def record(self, offset: int) -> RecordValues:
        """Return one timing record, summed over the blocks."""
        rows = self._blocks()[:, offset // 8 : offset // 8 + RECORD_BUCKETS // 8 + BUCKETS]

        def total(place: int) -> int:
            return int(rows[:, place // 8].sum(dtype=np.uint64))

        count = total(RECORD_COUNT)
        return RecordValues(
            count=count,
            sum=total(RECORD_SUM),
            min=_ALL_ONES - int(rows[:, RECORD_NOT_MIN // 8].max()) if count else 0,
            max=int(rows[:, RECORD_MAX // 8].max()),
            tail=total(RECORD_TAIL),
            unmatched=total(RECORD_UNMATCHED),
            missed=total(RECORD_MISSED),
            buckets=tuple(rows[:, RECORD_BUCKETS // 8 :].sum(axis=0, dtype=np.uint64).tolist()),
        )

    def in_flight(self) -> dict[int, int]:
        """Return how many instances are on the threads' stacks, by record offset; leftovers of longjmp included."""
        layout = self._layout
        if not layout.maxactive:
            return {}
        blocks = self._blocks()
        first = layout.instances_offset // 8
        size = layout.maxactive * INSTANCE_BYTES // 8
        found: dict[int, int] = {}
        for block in blocks:
            top = min(int(block[BLOCK_TOP // 8]), layout.maxactive)
            instances = block[first : first + size].reshape(layout.maxactive, INSTANCE_BYTES // 8)[:top]
            alive = instances[instances[:, INSTANCE_SP // 8] > 1][:, INSTANCE_RECORD // 8]
            for record, count in zip(*np.unique(alive, return_counts=True), strict=True):
                found[int(record)] = found.get(int(record), 0) + int(count)
        return found


class NearReader:
    """Reads near counters: one block, changed by atomic operations."""

    def __init__(self, block: memoryview) -> None:
        """Read ``block``; the view is live."""
        self._words = np.frombuffer(block, dtype=np.uint64)

    def counter(self, offset: int) -> int:
        """Return the counter at a block offset."""
        return int(self._words[offset // 8])
