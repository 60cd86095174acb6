"""Tables in shared memory: where an aggregation keeps the cells of each key and thread, and how they are read.

A table begins with a *directory*: an open-addressing hash table that all threads share and that only ever grows. A
directory word is 0 or ``tag << 32 | number``; ``number`` counts from 1 and names the key's words in ``keys`` and its
cell in every *row*. The key's words are written before the directory word is stored by ``lock cmpxchg``, so a thread
that sees the number sees the key, no thread ever waits, and no key is there twice. Each thread has a row of cells that
only it changes; row 0 is shared and changed by atomic operations only. Sums over the rows are exact.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.arrays import unique
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.layouts.cells import EXTREMES, SQUARES, SUM, WIDE_SQUARES, WRAPS, CellValue, Key, cell_value
from anyprobe.data.layouts.keys import UNKEYED, KeyShape, Names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.data.aggregates.results import AggregationResult
else:
    from anyprobe.core.later import np

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
MULTIPLIER = 0x9E37_79B9_7F4A_7C15
"""By which the words of a key are mixed: all code that looks for a key begins at the same directory word."""
PROBES = 128
"""Directory words that are looked at for one key. The directory is at most half full, so no cluster is that long."""
OWN_ROWS_BYTES = 64 << 20
"""Cells of all threads together above which they share one row, unless it is demanded otherwise."""
ROWS_BYTES_LIMIT = 1 << 30
_SUM_WORDS = 2


class TableLayout(NamedTuple):
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
        """Bytes of a row; two threads never share a cache line, nor a pair of lines that are fetched together.

        Rows begin with a page or lie within one, so that reading one row does not touch the pages of the next.
        """
        size = ROW_HEAD_BYTES + self.capacity * self.cell_bytes
        return size + 4095 & ~4095 if size > 2048 else max(1 << (size - 1).bit_length(), 128)

    @property
    def rows(self) -> int:
        """Number of rows; threads whose number is not below it use the shared one."""
        own = self.aggregation.per_thread
        if own is None:
            own = self.capacity * self.cell_bytes * self.threads <= OWN_ROWS_BYTES
        return 1 + min(self.threads, ROWS_BYTES_LIMIT // self.stride) if own else 1

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.rows_offset + self.rows * self.stride + 4095 & ~4095


class TableView:
    """One aggregation in one process, as a live view of shared memory; reading never disturbs the target.

    Reading a page of shared memory that was never touched allocates it: with ``extents``, which returns the
    ranges of the region that hold data, only rows that were written to are read. An update under way while
    ``clear`` runs may be counted before it in one field and after it in another.
    """

    def __init__(
        self, region: memoryview, layout: TableLayout, extents: Callable[[], Iterable[tuple[int, int]]] | None = None
    ) -> None:
        """View ``region``, which begins with the table."""
        self._words = np.frombuffer(region, dtype=np.uint64, count=layout.size // 8)
        self._extents = extents
        self.layout = layout
        self.names: Names | None = None
        """How addresses of code in keys are shown."""
        fields = layout.aggregation.cell.fields
        self._extreme = [index for index, name in enumerate(fields) if name in EXTREMES]
        wide: list[tuple[str, ...]] = [(SUM, WRAPS)] if SUM in fields else []
        wide += [WIDE_SQUARES] if SQUARES in fields else []
        self._wide = [tuple(map(fields.index, each)) for each in wide]
        """Where the words of numbers are that have several, the lowest first."""
        self._base: NDArray[np.uint64] = np.zeros((0, layout.aggregation.cell.words), np.uint64)
        """What was counted when the table was cleared, by number of the key."""
        self._hidden: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Keys that were truncated; one shows again when something is counted for it."""
        self._dropped_base = 0

    def _rows(self) -> "NDArray[np.uint64]":
        layout = self.layout
        first, stride = layout.rows_offset // 8, layout.stride // 8
        return self._words[first : first + layout.rows * stride].reshape(layout.rows, stride)

    def _touched(self) -> list[slice]:
        """Return the rows that may hold something."""
        if self._extents is None:
            return [slice(0, self.layout.rows)]
        found: list[slice] = []
        for low, high in self._extents():
            first = max(low - self.layout.rows_offset, 0) // self.layout.stride
            end = min(-(-(high - self.layout.rows_offset) // self.layout.stride), self.layout.rows)
            if found:
                first = max(first, found[-1].stop)
            if first < end:
                found.append(slice(first, end))
        return found

    def live(self, name: str, threads: int | None = None) -> "NDArray[np.uint64]":
        """Return one field or ``buckets`` of all cells as it is, by row and number of the key: a view, not a copy.

        Row 0 is shared by the threads without a number. ``numbers`` and ``keys`` tell which key is where. ``threads``
        is how many have a number, all if it is not given.
        """
        cell = self.layout.aggregation.cell
        cells = self._cells()[: None if threads is None else threads + 1]
        found = cells[:, :, len(cell.fields) :] if name == "buckets" else cells[:, :, cell.fields.index(name)]
        found.flags.writeable = False
        return found

    def _cells(self) -> "NDArray[np.uint64]":
        """Return the live cells by row, key and word."""
        layout, words = self.layout, self.layout.aggregation.cell.words
        head = ROW_HEAD_BYTES // 8
        used = layout.capacity if not layout.slots else min(int(self._words[USED // 8]), layout.capacity)
        rows = self._rows()[:, head : head + used * words]
        step = rows.strides
        return np.lib.stride_tricks.as_strided(rows, (len(rows), used, words), (step[0], 8 * words, 8), writeable=True)

    def numbers(self) -> "NDArray[np.int64]":
        """Return the numbers of the keys that are in the directory, counted from 0."""
        if not self.layout.slots:
            return np.zeros(1, np.int64)
        first = self.layout.directory_offset // 8
        directory = self._words[first : first + self.layout.slots]
        found: NDArray[np.int64] = unique((directory & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1)
        # what is out of bounds was not written by us
        return found[(found >= 0) & (found < self.layout.capacity)]

    def keys(self, numbers: "NDArray[np.int64]") -> list[Key]:
        """Return the keys with these numbers."""
        width = self.layout.shape.words
        first = self.layout.keys_offset // 8
        words = self._words[first : first + width * self.layout.capacity].reshape(-1, max(width, 1))
        return self.layout.shape.decode(words[numbers] if width else np.zeros((len(numbers), 0), np.uint64), self.names)

    def _sums(self) -> "NDArray[np.uint64]":
        """Return one summed cell per number."""
        cells = self._cells()
        total = np.zeros(cells.shape[1:], np.uint64)
        for rows in self._touched():
            part: NDArray[np.uint64] = cells[rows].sum(axis=0, dtype=np.uint64)
            for index in self._extreme:
                part[:, index] = np.maximum(total[:, index], cells[rows, :, index].max(axis=0, initial=0))
                total[:, index] = 0
            for places in self._wide:
                carry = np.zeros(len(total), np.uint64)
                for words, at in zip(self._upper(cells[rows][:, :, places]), places, strict=True):
                    running = np.cumsum(np.vstack([total[None, :, at], carry[None], words]), axis=0, dtype=np.uint64)
                    carry = (running[1:] < running[:-1]).sum(axis=0).astype(np.uint64)
                    part[:, at], total[:, at] = running[-1], 0
            total += part
        for places in self._wide:
            total[:, places] = np.stack(self._upper(total[:, places], back=True), axis=-1)
        return total

    def _upper(self, words: "NDArray[np.uint64]", *, back: bool = False) -> "list[NDArray[np.uint64]]":
        """Return the words of numbers one by one, as digits of two's complement: of a sum the wraps are the upper one.

        ``back``: the wraps, from the upper word.
        """
        digits = [words[..., at] for at in range(words.shape[-1])]
        if len(digits) == _SUM_WORDS and self.layout.signed:
            sign = digits[0] >> np.uint64(63)
            digits[1] = digits[1] + sign if back else digits[1] - sign
        return digits

    def _since_clear(self, total: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
        known = len(self._base)
        if not known:
            return total
        found = total.copy()
        found[:known] -= self._base
        for places in self._wide:
            borrow, differences = np.zeros(known, np.uint64), []
            then = self._upper(self._base[:, places])
            for now, before in zip(self._upper(total[:known, places]), then, strict=True):
                difference = now - before
                differences.append(difference - borrow)
                borrow = ((now < before) | (difference < borrow)).astype(np.uint64)
            found[:known, places] = np.stack(self._upper(np.stack(differences, axis=-1), back=True), axis=-1)
        return found

    def _all_dropped(self) -> int:
        rows = self._rows()
        return sum(int(rows[touched, DROPPED // 8].sum()) for touched in self._touched())

    @property
    def dropped(self) -> int:
        """Updates that found no room since the last ``clear``."""
        return self._all_dropped() - self._dropped_base

    def result(self) -> "AggregationResult":
        """Return what has been counted."""
        from anyprobe.data.aggregates.results import AggregationResult

        aggregation = self.layout.aggregation
        numbers = self.numbers()
        found = self._since_clear(self._sums())
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
        entries: dict[Key, CellValue] = {}
        for key, row in zip(self.keys(numbers), rows, strict=True):
            value = cell_value(aggregation.cell, row, bounds, signed=self.layout.signed, kind=aggregation.kind)
            # what is shown by name may have the name of something else
            entries[key] = entries[key].merged(value) if key in entries else value
        return AggregationResult(aggregation.name, aggregation.kind, aggregation.by, entries, self.dropped)

    def _counts(self, found: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
        cell = self.layout.aggregation.cell
        if cell.buckets:
            return np.asarray(found[:, len(cell.fields) :].sum(axis=1, dtype=np.uint64))
        return found[:, 0]

    def clear(self) -> None:
        """Set all values to nothing and keep the keys.

        What is summed is not written, since the target may be adding to it: what it holds now is remembered and left
        out from now on. The extremes are set back; the target's update either comes before that or stays.
        """
        self._base = self._sums()
        self._base[:, self._extreme] = 0
        self._forget_extremes(slice(None))
        self._dropped_base = self._all_dropped()

    def _forget_extremes(self, numbers: "slice | list[int]") -> None:
        cells = self._cells()
        for rows in self._touched():
            for index in self._extreme:
                cells[rows][:, numbers, index] = 0

    def trunc(self, count: int = 0) -> None:
        """Forget all keys but the ``count`` with the largest values, or the smallest if it is negative.

        Their numbers stay taken: a key that is counted again is the old one, with nothing in it.
        """
        kept = set(self.result().trunc(count).entries)
        total = self._sums()
        numbers = self.numbers()
        numbers = numbers[numbers < len(total)]
        gone = [number for number, key in zip(numbers.tolist(), self.keys(numbers), strict=True) if key not in kept]
        base, hidden = np.zeros_like(total), np.zeros(len(total), np.bool_)
        base[: len(self._base)], hidden[: len(self._hidden)] = self._base, self._hidden
        total[:, self._extreme] = 0
        base[gone], hidden[gone] = total[gone], True
        self._forget_extremes(gone)
        self._base, self._hidden = base, hidden
