"""Live shared memory to numbers. Reading never disturbs the target and works on after its death.

Reading a page of shared memory that was never touched allocates it, and most pages of a bank are never touched.
So only those are read that hold data.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyprobe.core.address import PAGE
from anyprobe.data.histogram import BUCKETS
from anyprobe.data.layout import (
    ANY_THREAD,
    BLOCK_OWNER,
    BLOCK_TID,
    BLOCK_TOP,
    CHILD_BIT,
    CHILD_BYTES,
    CROWDED,
    INSTANCE_BYTES,
    INSTANCE_RECORD,
    INSTANCE_SP,
    INSTANCE_T0,
    JUMPED,
    NEXT_BLOCK,
    NODE_BYTES,
    NODE_COUNT,
    NODE_SELF,
    NODE_SUM,
    RECORD_BUCKETS,
    RECORD_BYTES,
    RECORD_LEARNING,
    RECORD_LEFT,
    RECORD_MAX,
    RECORD_MISSED,
    RECORD_NOT_MIN,
    RECORD_OUTERMOST,
    RECORD_ROOTS,
    RECORD_SELF,
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
    own: int = 0
    """What was not in other timed functions; this and what follows is known where calls are nested."""
    outermost: int = 0
    """The sum without calls within others of the same function."""
    roots: int = 0
    """The sum of calls without a caller that is timed."""
    left: int = 0
    """Calls that were left behind."""


_NOTHING = RecordValues(0, 0, 0, 0, 0, 0, 0, (0,) * BUCKETS)
"""What a record holds that was never written."""


class _Blocks:
    """Header, shared block and blocks of one process, at one moment."""

    def __init__(self, region: memoryview, layout: BankLayout, extents: Extents | None) -> None:
        words = np.frombuffer(region, dtype=np.uint64)
        extents = None if extents is None else list(extents)
        has_header = bool(_present(PAGE, extents)[NEXT_BLOCK // PAGE])
        used = min(int(words[NEXT_BLOCK // 8]), layout.blocks) if has_header else 0
        self.is_full = has_header and bool(words[CROWDED // 8] or words[NEXT_BLOCK // 8] > layout.blocks)
        start, size = layout.shared_offset, (used + 1) * layout.stride
        present = _present(start + size, extents)  # of what is used: the region may be larger than memory
        self.rows = words[start // 8 : (start + size) // 8].reshape(used + 1, layout.stride // 8)
        """The shared block and the blocks in use, one per row."""
        self.chosen: list[int] | slice = slice(used + 1)
        self.present = present[start // PAGE : (start + size) // PAGE].reshape(used + 1, layout.stride // PAGE)
        self.present[1 : 1 + layout.left_out] = False

    @cached_property
    def touched(self) -> list[int]:
        """How many pages before each one are present in any row."""
        return [0, *self.present.any(axis=0).cumsum().tolist()]

    def is_untouched(self, offset: int, size: int) -> bool:
        """Return whether no row holds data at an offset."""
        return self.touched[offset // PAGE] == self.touched[(offset + size + PAGE - 1) // PAGE]

    def with_calls(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the blocks that may have calls in flight, each as it is in memory: a block may be large."""
        touched = self.present[:, BLOCK_TOP // PAGE]
        numbers = range(len(self.rows))[self.chosen] if isinstance(self.chosen, slice) else self.chosen
        return (self.rows[number] for number, used in zip(numbers, touched, strict=True) if used)

    def columns(self, offset: int, size: int) -> NDArray[np.uint64]:
        rows = self.rows[self.chosen, offset // 8 : (offset + size) // 8]
        pages = range(offset // PAGE, (offset + size + PAGE - 1) // PAGE)
        if self.present[:, pages.start : pages.stop].all():
            return rows
        found: NDArray[np.uint64] = np.zeros(rows.shape, dtype=np.uint64)
        for page in pages:
            low, high = max(page * PAGE - offset, 0) // 8, min((page + 1) * PAGE - offset, size) // 8
            touched = self.present[:, page]
            found[touched, low:high] = rows[touched, low:high]
        return found

    def by_thread(self) -> "dict[int, _Blocks]":
        """Return the blocks of each thread, where these are told apart; 0: of several."""
        words = self.columns(BLOCK_TID & ~7, 8)[:, 0] >> np.uint64(8 * (BLOCK_TID & 7))
        rows: dict[int, list[int]] = {}
        for row, tid in enumerate(words.tolist()):
            rows.setdefault(0 if tid == ANY_THREAD else tid, []).append(row)
        return {tid: self._some(own) for tid, own in rows.items()}

    def _some(self, rows: list[int]) -> "_Blocks":
        found = copy(self)
        found.chosen = slice(rows[0], rows[0] + 1) if len(rows) == 1 else rows
        found.present = self.present[found.chosen]
        found.__dict__.pop("touched", None)
        return found


@dataclass(frozen=True, slots=True)
class ForkChild:
    """What tells the blocks of a fork child from others."""

    number: int
    """Of its block, or of its copy of all blocks."""
    tid: int
    """The process, or the thread that came first."""
    has_copy: bool = False
    ended: int = 0
    """Counted from 1, where its copy may be another child's by now, and what it has counted is kept elsewhere."""


class EndedChild:
    """What a fork child has counted that has ended: one block, of which only what is not zero is kept."""

    def __init__(self, reader: "BankReader", child: "ForkChild | OneThread") -> None:
        """Keep what the child's copy holds, or a thread's part of it."""
        values = reader.summed(child)
        self._at = np.flatnonzero(values)
        self._values = values[self._at]
        self.running = reader.in_flight(child)
        self.rows = (None,)
        self._threads: dict[int, EndedChild] = {}
        if isinstance(child, ForkChild) and reader.by_thread:
            self._threads = {tid: EndedChild(reader, OneThread(child, tid)) for tid in reader.threads(child)}

    def by_thread(self) -> "dict[int, EndedChild]":
        """Return the same of each of its threads, where these are told apart; 0: of several."""
        return self._threads

    def is_untouched(self, offset: int, size: int) -> bool:
        """Return whether its block holds nothing at an offset."""
        low, high = np.searchsorted(self._at, (offset // 8, (offset + size) // 8))
        return bool(low == high)

    def columns(self, offset: int, size: int) -> NDArray[np.uint64]:
        """Return what its block holds at an offset."""
        found: NDArray[np.uint64] = np.zeros((1, size // 8), dtype=np.uint64)
        low, high = np.searchsorted(self._at, (offset // 8, (offset + size) // 8))
        found[0, self._at[low:high] - offset // 8] = self._values[low:high]
        return found


@dataclass(frozen=True, slots=True)
class OneThread:
    """One thread of a process; 0: what several have counted that are not told apart."""

    process: Literal["target"] | ForkChild
    tid: int


Whose = Literal["all", "target"] | ForkChild | OneThread
"""Blocks of all processes, of the target itself, of a fork child that has a copy, or of one thread of these."""


class BankReader:
    """Reads one bank of per-thread blocks, as it is at one moment."""

    def __init__(
        self,
        region: memoryview,
        layout: BankLayout,
        extents: Extents | None = None,
        copies: "Callable[[int], tuple[memoryview, Extents]] | None" = None,
        ended: "Mapping[ForkChild, EndedChild] | None" = None,
    ) -> None:
        """Read ``region``, the whole bank; the view is live. ``extents``: the pages with data, all if not given.

        ``copies``: gives the memory of a fork child's copy, and its pages with data, by its number. ``ended``: what is
        kept of other children.
        """
        self._layout = layout
        self._own = _Blocks(region, layout, extents)
        self._region = np.frombuffer(region, dtype=np.uint64)
        self._copies: dict[ForkChild, _Blocks | EndedChild | None] = dict(ended or {})
        """None for those that have not been looked at."""
        self._copy_of = copies
        for number, owner in _owners(region, layout) if copies is not None else ():
            self._copies[ForkChild(number, owner & _TID_MASK, has_copy=True)] = None
        self.by_thread = layout.by_thread
        self._by_thread: dict[Whose, Mapping[int, _Blocks | EndedChild]] = {}
        self.is_full = self._own.is_full
        """Whether threads or fork children have found no block left, and count together with others."""

    @property
    def copies(self) -> list[ForkChild]:
        """The fork children that have copies."""
        return list(self._copies)

    def threads(self, process: "Literal['target'] | ForkChild") -> list[int]:
        """Return the threads of a process that have blocks, where these are told apart; 0: several threads."""
        return list(self._of_threads(process))

    def _of_threads(self, process: "Literal['target'] | ForkChild") -> "Mapping[int, _Blocks | EndedChild]":
        if process not in self._by_thread:
            (blocks,) = self._blocks(process)
            self._by_thread[process] = blocks.by_thread()
        return self._by_thread[process]

    def summed(self, child: "ForkChild | OneThread") -> NDArray[np.uint64]:
        """Return the blocks of a fork child, or of one of its threads, as one, without its instances."""
        layout = self._layout
        end = layout.records_offset + layout.records_used * RECORD_BYTES
        rows = self._columns(layout.counters_offset, end - layout.counters_offset, child)
        total: NDArray[np.uint64] = np.zeros(layout.stride // 8, dtype=np.uint64)
        total[layout.counters_offset // 8 : end // 8] = rows.sum(axis=0, dtype=np.uint64)
        for at in range(layout.records_offset, end, RECORD_BYTES):
            for field in (at + RECORD_NOT_MIN, at + RECORD_MAX):
                total[field // 8] = rows[:, (field - layout.counters_offset) // 8].max()
        if layout.nodes:
            first, size = layout.tree_offset, layout.nodes * NODE_BYTES
            total[first // 8 : (first + size) // 8] = self._columns(first, size, child).sum(axis=0, dtype=np.uint64)
        return total

    def _blocks(self, whose: Whose) -> "list[_Blocks | EndedChild]":
        if isinstance(whose, OneThread):
            return [self._of_threads(whose.process)[whose.tid]]
        if isinstance(whose, ForkChild):
            return [self._copy(whose)]
        return [self._own, *(map(self._copy, self._copies) if whose == "all" else ())]

    def _copy(self, child: ForkChild) -> _Blocks | EndedChild:
        found = self._copies[child]
        if found is None:
            assert self._copy_of is not None
            view, pages = self._copy_of(child.number)
            found = self._copies[child] = _Blocks(view, self._layout, pages)
        return found

    def _columns(self, offset: int, size: int, whose: Whose = "all") -> NDArray[np.uint64]:
        """Return what blocks hold at an offset, one block per row; untouched memory is zero."""
        found = [each.columns(offset, size) for each in self._blocks(whose)]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def counters(self) -> NDArray[np.uint64]:
        """Return all counters, summed over the blocks; index with ``counter_index``."""
        rows = self._columns(self._layout.counters_offset, 8 * self._layout.counters)
        total: NDArray[np.uint64] = rows.sum(axis=0, dtype=np.uint64)
        return total

    def counter(self, offset: int) -> int:
        """Return one counter, summed over the blocks, from its block offset; no other is looked at."""
        return int(self._columns(offset, 8).sum(dtype=np.uint64))

    def forked(self) -> list[ForkChild]:
        """Return the fork children that have counted."""
        owners = self._own.columns(BLOCK_OWNER, 8)[:, 0].tolist()
        blocks = [
            ForkChild(number, owner & _TID_MASK) for number, owner in enumerate(owners) if number and owner >> CHILD_BIT
        ]
        return [*blocks, *self._copies]

    def children(self) -> dict[ForkChild, slice]:
        """Return which blocks are whose, of all fork children: their rows in ``counters_by_block``."""
        found = {}
        at = len(self._own.rows)
        for child in self.forked():
            rows = len(self._copy(child).rows) if child.has_copy else 1
            first = at if child.has_copy else child.number
            found[child] = slice(first, first + rows)
            at += rows if child.has_copy else 0
        return found

    def counters_by_block(self) -> NDArray[np.uint64]:
        """Return the counters of each block, one block per row; index the columns with ``counter_index``."""
        return self._columns(self._layout.counters_offset, 8 * self._layout.counters)

    def counter_index(self, offset: int) -> int:
        """Return the index of a counter from its block offset."""
        return (offset - self._layout.counters_offset) // 8

    def is_written(self, offset: int, whose: Whose = "all") -> bool:
        """Return whether there is anything in a timing record: its buckets are written last, and are not looked at."""
        return any(
            not each.is_untouched(offset, RECORD_BYTES) and each.columns(offset, RECORD_BUCKETS).any()
            for each in self._blocks(whose)
        )

    def record(self, offset: int, whose: Whose = "all") -> RecordValues:
        """Return one timing record, summed over blocks; its count is that of its buckets.

        The program may be writing: a call is recorded once it has its bucket, which it gets last.
        """
        if not self.is_written(offset, whose):
            return _NOTHING  # of most functions: a record is large, and a child has one of each
        rows = self._columns(offset, RECORD_BYTES, whose).copy()
        sums = rows[:, : RECORD_BUCKETS // 8].sum(axis=0, dtype=np.uint64).tolist()
        buckets = rows[:, RECORD_BUCKETS // 8 :].sum(axis=0, dtype=np.uint64)
        count = int(buckets.sum(dtype=np.uint64))
        return RecordValues(
            count=count,
            sum=sums[RECORD_SUM // 8],
            min=_ALL_ONES - int(rows[:, RECORD_NOT_MIN // 8].max()) if count else 0,
            max=int(rows[:, RECORD_MAX // 8].max()),
            tail=sums[RECORD_TAIL // 8],
            unmatched=sums[RECORD_UNMATCHED // 8],
            missed=sums[RECORD_MISSED // 8],
            learning=sums[RECORD_LEARNING // 8],
            own=_signed(sums[RECORD_SELF // 8]),
            outermost=sums[RECORD_OUTERMOST // 8],
            roots=_signed(sums[RECORD_ROOTS // 8]),
            left=sums[RECORD_LEFT // 8],
            buckets=tuple(buckets.tolist()),
        )

    def tree(self) -> dict[int, tuple[int, int, int, int]]:
        """Return of each node of the call tree its key, calls, their ticks and those of the functions themselves."""
        layout = self._layout
        start = layout.nodes_offset // 8
        keys = self._region[start : start + layout.nodes]
        rows = self._columns(layout.tree_offset, layout.nodes * NODE_BYTES)
        sums = rows.sum(axis=0, dtype=np.uint64).reshape(layout.nodes, NODE_BYTES // 8)
        used = np.flatnonzero(sums.any(axis=1) | (keys != 0)).tolist()
        return {
            node: (
                int(keys[node]), int(sums[node, NODE_COUNT // 8]), int(sums[node, NODE_SUM // 8]),
                _signed(int(sums[node, NODE_SELF // 8])),
            )
            for node in used
        }  # fmt: skip

    def in_flight(self, whose: Whose = "all") -> dict[int, int]:
        """Return how many instances are on the threads' stacks, by record offset; leftovers of longjmp included."""
        layout = self._layout
        if not layout.maxactive:
            return {}
        first = layout.instances_offset // 8
        size = layout.maxactive * INSTANCE_BYTES // 8
        those = self._blocks(whose)
        found = dict(sum((Counter(each.running) for each in those if isinstance(each, EndedChild)), Counter[int]()))
        read = (each for each in those if isinstance(each, _Blocks))
        for block in (block for each in read for block in each.with_calls()):
            top = min(int(block[BLOCK_TOP // 8]), layout.maxactive)
            instances = block[first : first + size].reshape(layout.maxactive, INSTANCE_BYTES // 8)[:top]
            alive = instances[instances[:, INSTANCE_SP // 8] > 1][:, INSTANCE_RECORD // 8]
            for record, count in Counter(each & ~JUMPED for each in alive.tolist()).items():
                found[record] = found.get(record, 0) + count
        return found

    def begin_later(self, ticks: int) -> None:
        """Have the calls on the threads' stacks begin so much later: of a program that has been held so long.

        Nothing of it may run meanwhile. Calls of fork children stay as they are.
        """
        layout = self._layout
        first, size = layout.instances_offset // 8, layout.maxactive * INSTANCE_BYTES // 8
        for block in self._own.with_calls() if size else ():
            top = min(int(block[BLOCK_TOP // 8]), layout.maxactive)
            instances = block[first : first + size].reshape(layout.maxactive, INSTANCE_BYTES // 8)[:top]
            instances[instances[:, INSTANCE_SP // 8] > 1, INSTANCE_T0 // 8] += np.uint64(ticks)


class NearReader:
    """Reads near counters: one block, changed by atomic operations."""

    def __init__(self, block: memoryview, extents: Extents | None = None) -> None:
        """Read ``block``; the view is live. ``extents``: the pages with data, all if not given."""
        self._words = np.frombuffer(block, dtype=np.uint64)
        self._present = _present(len(block), extents)

    def counter(self, offset: int) -> int:
        """Return the counter at a block offset."""
        return int(self._words[offset // 8]) if self._present[offset // PAGE] else 0


def _owners(region: memoryview, layout: BankLayout) -> list[tuple[int, int]]:
    """Return the numbers of the copies that fork children have, and whose they are."""
    at = layout.children_offset
    words = np.frombuffer(region[at : at + layout.children * CHILD_BYTES], dtype=np.uint64).copy()  # others write there
    taken = np.flatnonzero(words)
    return list(zip(taken.tolist(), words[taken].tolist(), strict=True))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _present(size: int, extents: Extents | None) -> NDArray[np.bool_]:
    """Return for each page whether it holds data."""
    present = np.full((size + PAGE - 1) // PAGE, extents is None)
    for low, high in extents or ():  # what lies beyond is left out
        present[low // PAGE : (high + PAGE - 1) // PAGE] = True
    return present
