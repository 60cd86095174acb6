"""Tables in shared memory: where an aggregation keeps the cells of each key and thread, and how they are read.

A table begins with a *directory*: an open-addressing hash table that all threads share and that only ever grows. A
directory word is 0 or ``tag << 32 | number``; ``number`` counts from 1 and names the key's words in ``keys`` and its
cell in every *row*. The key's words are written before the directory word is stored by ``lock cmpxchg``, so whoever
sees the number sees the key, nobody ever waits, and no key is there twice. Each thread has a row of cells that only it
changes; row 0 is shared and changed by atomic operations only. Sums over the rows are exact.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyprobe.data.aggregations import EXTREMES, MAX, NOT_MIN, Aggregation
from anyprobe.data.keys import UNKEYED, Key, KeyShape

if TYPE_CHECKING:
    from anyprobe.data.results import AggregationResult

USED = 0
"""Head: numbers of keys handed out, changed by ``lock xadd``; may exceed the capacity."""
SPARES = 64
SPARE_WORDS = 4
"""Head: numbers given back by who lost a race for a key, 0 for none. Where all are taken, a number is lost."""
HEAD_BYTES = 256
DROPPED = 0
"""Row: updates that found no room for their key."""
ROW_HEAD_BYTES = 64
INSERTING = 64
"""Numbers beyond the capacity: a thread takes one before it knows that another is about to insert the same key."""
PROBES = 128
"""Directory words that are looked at for one key. The directory is at most half full, so no cluster is that long."""
OWN_ROWS_BYTES = 64 << 10
"""Cells of one thread above which all threads share one row, unless it is demanded otherwise."""
ROWS_BYTES_LIMIT = 1 << 30
_TOP = 1 << 63
_ONES = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Where everything is in the region of one aggregation. Zeroed memory is an empty table."""

    aggregation: Aggregation
    shape: KeyShape = UNKEYED
    signed: bool = True
    """Whether values are signed 64-bit numbers."""
    threads: int = 1024
    """Threads that may have rows of their own."""

    @property
    def capacity(self) -> int:
        """Number of keys that fit: what was asked for and some that are on their way in when it is reached."""
        return self.aggregation.capacity + INSERTING if self.shape.parts else 1

    @property
    def slots(self) -> int:
        """Words of the directory, a power of two; 0 without a key."""
        return 1 << (2 * self.capacity - 1).bit_length() if self.shape.parts else 0

    @property
    def cell_bytes(self) -> int:
        """Bytes of one cell."""
        return 8 * self.aggregation.cell.words

    @property
    def directory_offset(self) -> int:
        """Offset of the directory in the region."""
        return HEAD_BYTES

    @property
    def keys_offset(self) -> int:
        """Offset of the keys' words in the region."""
        return self.directory_offset + 8 * self.slots

    @property
    def rows_offset(self) -> int:
        """Offset of row 0, the shared one; a thread's row is its number times the stride further on."""
        return self.keys_offset + 8 * self.shape.words * self.capacity + 4095 & ~4095

    @property
    def stride(self) -> int:
        """Bytes of a row; two threads never share a cache line, nor a pair of lines that are fetched together."""
        return ROW_HEAD_BYTES + self.capacity * self.cell_bytes + 127 & ~127

    @property
    def rows(self) -> int:
        """Number of rows; threads whose number is not below it use the shared one."""
        own = self.aggregation.per_thread
        if own is None:
            own = self.capacity * self.cell_bytes <= OWN_ROWS_BYTES
        return 1 + min(self.threads, ROWS_BYTES_LIMIT // self.stride) if own else 1

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.rows_offset + self.rows * self.stride + 4095 & ~4095


class TableView:
    """One aggregation in one process, as a live view of shared memory; reading never disturbs the target.

    An update under way while ``clear`` runs may be counted before it in one field and after it in another.
    """

    def __init__(self, region: memoryview, layout: TableLayout) -> None:
        """View ``region``, which begins with the table."""
        self._words = np.frombuffer(region, dtype=np.uint64, count=layout.size // 8)
        self.layout = layout
        self.factor = 1
        """What is shown is divided by this."""
        fields = layout.aggregation.cell.fields
        self._extreme = [index for index, name in enumerate(fields) if name in EXTREMES]
        self._base: NDArray[np.uint64] = np.zeros((0, layout.aggregation.cell.words), np.uint64)
        """What was counted when the table was cleared, by number of the key."""
        self._hidden: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Keys that were truncated; one shows again when something is counted for it."""
        self._dropped_base = 0

    def _rows(self, threads: int | None) -> NDArray[np.uint64]:
        layout = self.layout
        rows = layout.rows if threads is None else min(layout.rows, threads + 1)
        first, stride = layout.rows_offset // 8, layout.stride // 8
        return self._words[first : first + rows * stride].reshape(rows, stride)

    def live(self, name: str, threads: int | None = None) -> NDArray[np.uint64]:
        """Return one field or ``buckets`` of all cells as it is, by row and number of the key: a view, not a copy.

        Row 0 is shared by the threads without a number. ``numbers`` and ``keys`` tell which key is where.
        """
        cell = self.layout.aggregation.cell
        cells = self._cells(threads)
        found = cells[:, :, len(cell.fields) :] if name == "buckets" else cells[:, :, cell.fields.index(name)]
        found.flags.writeable = False
        return found

    def _cells(self, threads: int | None = None) -> NDArray[np.uint64]:
        """Return the live cells by row, key and word; ``threads``: how many have a number, all if not given."""
        layout, words = self.layout, self.layout.aggregation.cell.words
        head = ROW_HEAD_BYTES // 8
        used = layout.capacity if not layout.slots else min(int(self._words[USED // 8]), layout.capacity)
        rows = self._rows(threads)[:, head : head + used * words]
        step = rows.strides
        return np.lib.stride_tricks.as_strided(rows, (len(rows), used, words), (step[0], 8 * words, 8), writeable=True)

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of the keys that are in the directory, counted from 0."""
        if not self.layout.slots:
            return np.zeros(1, np.int64)
        first = self.layout.directory_offset // 8
        directory = self._words[first : first + self.layout.slots]
        found: NDArray[np.int64] = (directory[directory != 0] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1
        return np.sort(found)

    def keys(self, numbers: NDArray[np.int64]) -> list[Key]:
        """Return the keys with these numbers."""
        width = self.layout.shape.words
        first = self.layout.keys_offset // 8
        words = self._words[first : first + width * self.layout.capacity].reshape(-1, max(width, 1))
        return self.layout.shape.decode(words[numbers] if width else np.zeros((len(numbers), 0), np.uint64))

    def _sums(self, threads: int | None) -> NDArray[np.uint64]:
        """Return one summed cell per number."""
        cells = self._cells(threads)
        total: NDArray[np.uint64] = cells.sum(axis=0, dtype=np.uint64)
        for index in self._extreme:
            total[:, index] = cells[:, :, index].max(axis=0, initial=0)
        self._carry_squares(cells, total)
        return total

    def _carry_squares(self, cells: NDArray[np.uint64], total: NDArray[np.uint64]) -> None:
        """Carry what the low halves of 128-bit sums overflow by."""
        fields = self.layout.aggregation.cell.fields
        if "squares" in fields:
            low = fields.index("squares")
            running = np.cumsum(cells[:, :, low], axis=0, dtype=np.uint64)
            total[:, low + 1] += (running[1:] < running[:-1]).sum(axis=0).astype(np.uint64)

    def _since_clear(self, total: NDArray[np.uint64]) -> NDArray[np.uint64]:
        known = len(self._base)
        if not known:
            return total
        found = total.copy()
        found[:known] -= self._base
        fields = self.layout.aggregation.cell.fields
        if "squares" in fields:
            low = fields.index("squares")
            found[:known, low + 1] -= (total[:known, low] < self._base[:, low]).astype(np.uint64)
        return found

    def dropped(self, threads: int | None = None) -> int:
        """Return the updates that found no room since the last ``clear``."""
        return int(self._rows(threads)[:, DROPPED // 8].sum()) - self._dropped_base

    def result(self, threads: int | None = None) -> "AggregationResult":
        """Return what has been counted."""
        from anyprobe.data.results import AggregationResult, cell_value

        aggregation = self.layout.aggregation
        numbers = self.numbers()
        found = self._since_clear(self._sums(threads))
        numbers = numbers[numbers < len(found)]
        counts = self._counts(found)
        if len(self._hidden):
            known = len(self._hidden)
            self._hidden &= counts[:known] == 0
            numbers = numbers[~np.pad(self._hidden, (0, len(found) - known))[numbers]]
        if not self.layout.slots:
            numbers = numbers[counts[numbers] > 0]
        bounds = aggregation.bounds()
        rows = found[numbers].tolist()
        entries = {
            key: cell_value(aggregation.cell, row, bounds, signed=self.layout.signed)
            for key, row in zip(self.keys(numbers), rows, strict=True)
        }
        dropped = self.dropped(threads)
        return AggregationResult(aggregation.name, aggregation.kind, aggregation.by, entries, dropped, self.factor)

    def _counts(self, found: NDArray[np.uint64]) -> NDArray[np.uint64]:
        cell = self.layout.aggregation.cell
        if cell.buckets:
            return np.asarray(found[:, len(cell.fields) :].sum(axis=1, dtype=np.uint64))
        return found[:, 0]

    def clear(self, threads: int | None = None) -> None:
        """Set all values to nothing and keep the keys.

        What is summed is not written, since the target may be adding to it: what it holds now is remembered and left
        out from now on. The extremes are set back; the target's update either comes before that or stays.
        """
        cells = self._cells(threads)
        base = self._sums(threads)
        for index in self._extreme:
            cells[:, :, index] = 0
            base[:, index] = 0
        self._base = base
        self._dropped_base += self.dropped(threads)

    def trunc(self, count: int = 0, threads: int | None = None) -> None:
        """Forget all keys but the ``count`` with the largest values, or the smallest if it is negative.

        Their numbers stay taken: a key that is counted again is the old one, with nothing in it.
        """
        kept = set(self.result(threads).trunc(count).entries)
        total = self._sums(threads)
        numbers = self.numbers()
        numbers = numbers[numbers < len(total)]
        gone = [number for number, key in zip(numbers.tolist(), self.keys(numbers), strict=True) if key not in kept]
        base = np.zeros_like(total)
        base[: len(self._base)] = self._base
        hidden = np.zeros(len(total), np.bool_)
        hidden[: len(self._hidden)] = self._hidden
        cells = self._cells(threads)
        for index in self._extreme:
            cells[:, gone, index] = 0
            total[:, index] = 0
        base[gone] = total[gone]
        hidden[gone] = True
        self._base, self._hidden = base, hidden


def decoded_extreme(name: str, word: int, *, signed: bool) -> int:
    """Return the value that an extreme field's word stands for."""
    if name == NOT_MIN:
        word ^= _ONES
    assert name in {NOT_MIN, MAX}
    if not signed:
        return word
    word ^= _TOP
    return word - (1 << 64) if word >= _TOP else word
