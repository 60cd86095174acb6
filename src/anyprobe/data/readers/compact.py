"""What the blocks of a process, or of several, hold together: only what is not zero is kept."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anyprobe.data.layouts.histogram import BUCKETS
from anyprobe.data.layouts.layout import (
    FAR_BYTES,
    FAR_TIMES,
    RECORD_BUCKETS,
    RECORD_BYTES,
    RECORD_MAX,
    RECORD_NOT_MIN,
    BankLayout,
)


class CompactBlock:
    """What the blocks of a process, or of several, hold together, but for the instances; at one moment."""

    def __init__(
        self, layout: BankLayout, at: NDArray[np.int64], values: NDArray[np.uint64], running: Mapping[int, int],
        open_roots: Counter[int],
    ) -> None:  # fmt: skip
        """Add up ``values``, which are in the words ``at``; ``running``: the instances by record offset.

        ``open_roots``: as of ``Blocks``.
        """
        self.running, self.open_roots = running, open_roots
        self._records, self._far = layout.records_offset, layout.far_offset
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
        first = np.flatnonzero(np.diff(at, prepend=-1))
        if len(first) < len(at):
            largest = np.maximum.reduceat(values, first)
            at, values = at[first], np.add.reduceat(values, first)
            inside = 8 * at - self._records
            field = np.where((inside >= 0) & (8 * at < self._far), inside % RECORD_BYTES, -1)
            values = np.where((field == RECORD_NOT_MIN) | (field == RECORD_MAX), largest, values)
        self.at, self.values = at, values

    @classmethod
    def joined(cls, layout: BankLayout, parts: "Sequence[CompactBlock]") -> "CompactBlock":
        """Return what several hold together."""
        running, open_roots = Counter[int](), Counter[int]()
        for each in parts:
            running.update(each.running)
            open_roots.update(each.open_roots)
        at = np.concatenate([np.empty(0, np.int64), *(each.at for each in parts)])
        values = np.concatenate([np.empty(0, np.uint64), *(each.values for each in parts)])
        return cls(layout, at, values, running, open_roots)

    def _between(self, offset: int, size: int) -> slice:
        low, high = self.at.searchsorted((offset // 8, (offset + size) // 8)).tolist()
        return slice(low, high)

    def columns(self, offset: int, size: int) -> NDArray[np.uint64]:
        """Return what is at an offset, as one row."""
        there = self._between(offset, size)
        found: NDArray[np.uint64] = np.zeros((1, size // 8), dtype=np.uint64)
        found[0, self.at[there] - offset // 8] = self.values[there]
        return found

    def words(self, offset: int, size: int) -> dict[int, int]:
        """Return what is not zero at an offset, by word."""
        there = self._between(offset, size)
        return dict(zip((self.at[there] - offset // 8).tolist(), self.values[there].tolist(), strict=True))

    def is_written(self, offset: int) -> bool:
        """Return whether there is anything in a timing record: its buckets are written last, and not looked at."""
        there = self._between(offset, RECORD_BUCKETS)
        return bool(there.start < there.stop)

    def record(self, offset: int) -> dict[int, int]:
        """Return what is not zero of a timing record, by word; buckets as they follow the fields."""
        buckets = self.words(self._far + (offset - self._records) * FAR_TIMES, 8 * BUCKETS)
        return self.words(offset, RECORD_BUCKETS) | {RECORD_BUCKETS // 8 + at: calls for at, calls in buckets.items()}

    def records(self) -> list[int]:
        """Return the offsets of the timing records that hold anything, or of which there are instances, ascending."""
        there = self._between(self._records, self._far - self._records)
        number = (8 * self.at[there] - self._records) // RECORD_BYTES
        written = number[np.flatnonzero(np.diff(number, prepend=-1))] * RECORD_BYTES + self._records
        return sorted({*written.tolist(), *self.running})


def with_far_buckets(
    layout: BankLayout, at: NDArray[np.int64], values: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return ``values``, which are in the words ``at``, with near buckets of timing records where the far ones are."""
    far = layout.far_offset // 8
    number, inside = np.divmod(at - layout.records_offset // 8, RECORD_BYTES // 8)
    bucket = 2 * (inside - RECORD_BUCKETS // 8)
    near = (number >= 0) & (at < far) & (bucket >= 0)
    to = far + number[near] * (FAR_BYTES // 8) + bucket[near]
    pairs = values[near]
    at = np.concatenate([at[~near], to, to + 1])
    values = np.concatenate([values[~near], pairs & np.uint64(0xFFFFFFFF), pairs >> np.uint64(32)])
    there = values != 0
    return at[there], values[there]
