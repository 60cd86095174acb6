"""Live shared memory to numbers. Reading never disturbs the target and works on after its death.

Reading a page of shared memory that was never touched allocates it, and most pages of a bank are never touched: it has
room for the calls of each function in each thread. So only those are read that hold data.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from anyprobe.core.address import PAGE
from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.histogram import BUCKETS
from anyprobe.data.layouts.layout import BankLayout

if TYPE_CHECKING:
    from anyprobe.data.readers.compact import CompactBlock

_TID_MASK = _LOW = 0xFFFFFFFF
_LARGEST, _BUCKETS = (at.RECORD_NOT_MIN // 8, at.RECORD_MAX // 8), at.RECORD_BUCKETS // 8
_ALL_ONES = (1 << 64) - 1
_PAGE_WORDS = PAGE // 8
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
    buckets: tuple[tuple[int, int], ...]
    """The buckets that hold something, ascending, and how many calls each one has."""
    learning: int = 0
    own: int = 0
    """What was not in other timed functions; this and what follows is known where calls are nested."""
    outermost: int = 0
    """The sum without calls within others of the same function."""
    roots: int = 0
    """The sum of calls without a caller that is timed."""
    left: int = 0
    """Calls that were left behind."""
    cost: int = 0
    """What probes have cost in its calls, in parts of a tick; see ``data.snapshots.costs``."""
    inner_cost: int = 0
    """What probes have cost in the calls that are not in ``outermost``."""
    inner_count: int = 0
    """How many these are."""
    made: int = 0
    """How many calls that are timed those of the function have made, where calls are nested."""
    off: int = 0
    """Ticks of ``own`` calls in which threads were not on processors, where times are those on processors."""


_NOTHING = RecordValues(0, 0, 0, 0, 0, 0, 0, ())
"""What a record holds that was never written."""


class Blocks:
    """Header, shared block and blocks of one process, at one moment."""

    def __init__(self, region: memoryview, layout: BankLayout, extents: Extents | None) -> None:
        """Find which pages of ``region`` hold data: ``extents``, all if not given."""
        words = np.frombuffer(region, dtype=np.uint64)
        extents = None if extents is None else list(extents)
        has_header = bool(pages_present(PAGE, extents)[at.NEXT_BLOCK // PAGE])
        used = min(int(words[at.NEXT_BLOCK // 8]), layout.blocks) if has_header else 0
        self.is_full = has_header and bool(words[at.CROWDED // 8] or words[at.NEXT_BLOCK // 8] > layout.blocks)
        start, size = layout.shared_offset, (used + 1) * layout.stride
        present = pages_present(start + size, extents)  # of what is used: the region may be larger than memory
        self._layout = layout
        self.rows = words[start // 8 : (start + size) // 8].reshape(used + 1, layout.stride // 8)
        """The shared block and the blocks in use, one per row."""
        self.chosen: list[int] | slice = slice(used + 1)
        """Which of the rows are meant."""
        self.present = present[start // PAGE : (start + size) // PAGE].reshape(used + 1, layout.stride // PAGE)
        """The pages of each row that hold data."""
        self.present[1 : 1 + layout.left_out] = False

    @cached_property
    def _touched(self) -> list[int]:
        """How many pages before each one are present in any row."""
        return [0, *self.present.any(axis=0).cumsum().tolist()]

    def is_untouched(self, offset: int, size: int) -> bool:
        """Return whether no row holds data at an offset."""
        return self._touched[offset // PAGE] == self._touched[(offset + size + PAGE - 1) // PAGE]

    def with_calls(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the blocks that may have calls in flight, each as it is in memory: a block may be large."""
        touched = self.present[:, at.BLOCK_TOP // PAGE]
        return (self.rows[number] for number, used in zip(self._numbers(), touched, strict=True) if used)

    def _numbers(self) -> Sequence[int]:
        return range(len(self.rows))[self.chosen] if isinstance(self.chosen, slice) else self.chosen

    def columns(self, offset: int, size: int) -> NDArray[np.uint64]:
        """Return what the blocks hold at an offset, one block per row."""
        rows = self.rows[self.chosen, offset // 8 : (offset + size) // 8]
        pages = range(offset // PAGE, (offset + size + PAGE - 1) // PAGE)
        if self.present[:, pages.start : pages.stop].all():
            return rows
        found: NDArray[np.uint64] = np.zeros(rows.shape, dtype=np.uint64)
        for page in pages:
            touched = self.present[:, page]
            if touched.any():
                low, high = max(page * PAGE - offset, 0) // 8, min((page + 1) * PAGE - offset, size) // 8
                found[touched, low:high] = rows[touched, low:high]
        return found

    @cached_property
    def written(self) -> frozenset[int]:
        """The timing records in which there is anything: buckets are written last, and not looked at."""
        start, found = self._layout.records_offset, set[int]()
        first, end = start // PAGE, -(-self._layout.far_offset // PAGE)
        for row, present in zip(self.rows[self.chosen], self.present, strict=True):
            pages = first + np.flatnonzero(present[first:end])
            there = np.flatnonzero(row.reshape(-1, _PAGE_WORDS)[pages])
            places = 8 * (pages[there // _PAGE_WORDS] * _PAGE_WORDS + there % _PAGE_WORDS) - start
            inside = (places >= 0) & (places < self._layout.far_offset - start)
            fields = inside & (places % at.RECORD_BYTES < at.RECORD_BUCKETS)
            found.update((places[fields] // at.RECORD_BYTES).tolist())
        return frozenset(start + at.RECORD_BYTES * number for number in found)

    def is_written(self, offset: int) -> bool:
        """Return whether there is anything in a timing record."""
        return offset in self.written

    def record(self, offset: int) -> dict[int, int]:
        """Return what is not zero of a timing record, by word: the sums, and the largest of what is no sum; buckets."""
        rows = self.columns(offset, at.RECORD_BYTES).copy()  # at one moment: the program may be writing
        fields, far = at.RECORD_BUCKETS // 8, self._layout.far_of(offset)
        total = np.zeros(fields + BUCKETS, dtype=np.uint64)
        total[:fields] = rows[:, :fields].sum(axis=0)
        total[fields : fields + at.NEAR_BUCKETS] = rows[:, fields:].copy().view(np.uint32).sum(axis=0)
        if not self.is_untouched(far, 8 * BUCKETS):
            total[fields:] += self.columns(far, 8 * BUCKETS).sum(axis=0)
        for field in (at.RECORD_NOT_MIN // 8, at.RECORD_MAX // 8):
            total[field] = rows[:, field].max()
        there = np.flatnonzero(total)
        return dict(zip(there.tolist(), total[there].tolist(), strict=True))

    def by_thread(self) -> "dict[int, Blocks]":
        """Return the blocks of each thread, where these are told apart; 0: of several."""
        words = self.columns(at.BLOCK_TID & ~7, 8)[:, 0] >> np.uint64(8 * (at.BLOCK_TID & 7))
        rows: dict[int, list[int]] = {}
        for row, tid in enumerate(words.tolist()):
            rows.setdefault(0 if tid == at.ANY_THREAD else tid, []).append(row)
        return {tid: self._some(own) for tid, own in rows.items()}

    def _some(self, rows: list[int]) -> "Blocks":
        found = copy(self)
        for name in ("_touched", "open_roots", "written"):
            vars(found).pop(name, None)
        found.chosen = slice(rows[0], rows[0] + 1) if len(rows) == 1 else rows
        found.present = self.present[found.chosen]
        return found

    @property
    def running(self) -> Counter[int]:
        """Return how many instances are on the threads' stacks, by record offset; leftovers of longjmp included."""
        layout, found = self._layout, Counter[int]()
        for block in self.with_calls() if layout.maxactive else ():
            instances = _instances_of(block, layout)
            alive = instances[instances[:, at.INSTANCE_SP // 8] > 1, at.INSTANCE_RECORD // 8]
            found.update(each & ~at.JUMPED for each in alive.tolist())
        return found

    @cached_property
    def open_roots(self) -> Counter[int]:
        """The ticks of calls that are over and that calls which are not have made, by the outermost one's record."""
        layout, found = self._layout, Counter[int]()
        for block in self.with_calls() if layout.nested and layout.maxactive else ():
            found.update(_ticks_in_open_calls(_instances_of(block, layout)))
        return found

    def compact(self) -> "CompactBlock":
        """Return what they hold by now as one block: reads those pages alone that hold data."""
        from anyprobe.data.readers.compact import CompactBlock, with_far_buckets

        first = self._layout.counters_offset // PAGE
        rows, pages = np.nonzero(self.present[:, first:])
        numbers = np.array(self._numbers(), np.int64)[rows]
        pages += first
        words = self.rows.reshape(len(self.rows), -1, _PAGE_WORDS)[numbers, pages].ravel()
        there = np.flatnonzero(words)
        places = pages[there // _PAGE_WORDS] * _PAGE_WORDS + there % _PAGE_WORDS
        wanted = places >= self._layout.counters_offset // 8
        places, values = with_far_buckets(self._layout, places[wanted], words[there][wanted])
        return CompactBlock(self._layout, places, values, self.running, self.open_roots)


@dataclass(frozen=True, slots=True)
class ForkChild:
    """What tells the blocks of a fork child from others."""

    number: int
    """The number of its block, or of its copy of all blocks."""
    tid: int
    """The process, or the thread that came first."""
    has_copy: bool = False
    ended: int = 0
    """Counted from 1, where its copy may be another child's by now, and what it has counted is kept elsewhere."""


class EndedCounts:
    """What fork children have counted that have ended, whose copies are for others."""

    def __init__(self, layout: BankLayout) -> None:
        """Begin with none."""
        self._layout = layout
        self.children: dict[ForkChild, CompactBlock] = {}
        self.threads: dict[ForkChild, Mapping[int, CompactBlock]] = {}
        """The threads of each child, where they are told apart."""
        self._together: list[CompactBlock] = []

    def add(self, child: ForkChild, counts: "CompactBlock", threads: "Mapping[int, CompactBlock]") -> None:
        """Keep what a child has counted, and what each of its threads has, where these are told apart."""
        self.children[child], self.threads[child] = counts, threads
        self._together.append(counts)

    def together(self) -> "CompactBlock":
        """Return what all of them have counted."""
        from anyprobe.data.readers.compact import CompactBlock

        if len(self._together) != 1:
            self._together = [CompactBlock.joined(self._layout, self._together)]
        return self._together[0]


@dataclass(frozen=True, slots=True)
class OneThread:
    """One thread of a process; 0: what several have counted that are not told apart."""

    process: "Process"
    tid: int


Process = Literal["target"] | ForkChild
Whose = Literal["all"] | Process | OneThread
"""Blocks of all processes, of the target itself, of a fork child that has a copy, or of one thread of these."""


class BankReader:
    """Reads one bank of per-thread blocks, as it is at one moment."""

    def __init__(
        self,
        region: memoryview,
        layout: BankLayout,
        extents: Extents | None = None,
        copies: "Callable[[int], tuple[memoryview, Extents]] | None" = None,
        ended: EndedCounts | None = None,
    ) -> None:
        """Read ``region``, the whole bank; the view is live. ``extents``: the pages with data, all if not given.

        ``copies``: gives the memory of a fork child's copy, and its pages with data, by its number. ``ended``: what is
        kept of other children.
        """
        self._layout = layout
        self._own = Blocks(region, layout, extents)
        self._region = np.frombuffer(region, dtype=np.uint64)
        self._ended = ended or EndedCounts(layout)
        self._copy_of = copies
        owners = _owners(region, layout) if copies is not None else ()
        self._alive = [ForkChild(number, owner & _TID_MASK, has_copy=True) for number, owner in owners]
        """The children whose copy cannot be another's yet."""
        self._copies: dict[ForkChild, Blocks] = {}
        self._compact: dict[ForkChild, CompactBlock] = {}
        self.by_thread = layout.by_thread
        self._threads: dict[Process, Mapping[int, CompactBlock]] = dict(self._ended.threads.items())
        self.is_full = self._own.is_full
        """Whether threads or fork children have found no block left, and count together with others."""

    @property
    def copies(self) -> list[ForkChild]:
        """The fork children that have copies."""
        return [*self._ended.children, *self._alive]

    def compact_threads(self, process: Process) -> "Mapping[int, CompactBlock]":
        """Return what each thread of a process has counted, where these are told apart; 0: several threads."""
        if process not in self._threads:
            blocks = self._own if process == "target" else self._copy(process)
            self._threads[process] = {tid: each.compact() for tid, each in blocks.by_thread().items()}
        return self._threads[process]

    def compact(self, whose: "ForkChild | OneThread") -> "CompactBlock":
        """Return what a fork child with a copy has counted, or a thread."""
        if isinstance(whose, OneThread):
            return self.compact_threads(whose.process)[whose.tid]
        if whose.ended:
            return self._ended.children[whose]
        if whose not in self._compact:
            self._compact[whose] = self._copy(whose).compact()
        return self._compact[whose]

    def _copy(self, child: ForkChild) -> Blocks:
        if child not in self._copies:
            assert self._copy_of is not None
            view, pages = self._copy_of(child.number)
            self._copies[child] = Blocks(view, self._layout, pages)
        return self._copies[child]

    @cached_property
    def _children(self) -> "CompactBlock":
        """What all fork children with copies have counted."""
        from anyprobe.data.readers.compact import CompactBlock

        return CompactBlock.joined(self._layout, [self._ended.together(), *map(self.compact, self._alive)])

    def _blocks(self, whose: Whose) -> "list[Blocks | CompactBlock]":
        if whose == "target":
            return [self._own]
        if whose == "all":
            return [self._own, self._children] if self.copies else [self._own]
        return [self.compact(whose)]

    def _columns(self, offset: int, size: int, whose: Whose = "all") -> NDArray[np.uint64]:
        """Return what all blocks hold at an offset, one block per row, or several; untouched memory is zero."""
        found = [each.columns(offset, size) for each in self._blocks(whose)]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def counters(self) -> NDArray[np.uint64]:
        """Return all counters, summed over the blocks; index with ``counter_index``."""
        rows = self._columns(self._layout.counters_offset, 8 * self._layout.counters)
        total: NDArray[np.uint64] = rows.sum(axis=0, dtype=np.uint64)
        return total

    def counter(self, offset: int) -> int:
        """Return one counter, summed over the blocks, from its block offset; no other is looked at."""
        blocks: list[Blocks | CompactBlock] = [self._own, *map(self._copy, self._alive)]
        blocks += [self._ended.together()] if self._ended.children else []
        return sum(int(each.columns(offset, 8).sum(dtype=np.uint64)) for each in blocks) & _ALL_ONES

    def forked(self) -> list[ForkChild]:
        """Return the fork children that have counted."""
        owners = self._own.columns(at.BLOCK_OWNER, 8)[:, 0].tolist()
        blocks = [
            ForkChild(number, owner & _TID_MASK)
            for number, owner in enumerate(owners)
            if number and owner >> at.CHILD_BIT
        ]
        return [*blocks, *self.copies]

    def hits_of(self, child: ForkChild) -> dict[int, int]:
        """Return the counters of a fork child that are not 0, by their index."""
        offset, size = self._layout.counters_offset, 8 * self._layout.counters
        if child.has_copy:
            return self.compact(child).words(offset, size)
        counters = self._own.columns(offset, size)[child.number]
        there = np.flatnonzero(counters)
        return dict(zip(there.tolist(), counters[there].tolist(), strict=True))

    def counter_index(self, offset: int) -> int:
        """Return the index of a counter from its block offset."""
        return (offset - self._layout.counters_offset) // 8

    def is_written(self, offset: int, whose: Whose = "all") -> bool:
        """Return whether there is anything in a timing record."""
        return any(each.is_written(offset) for each in self._blocks(whose))

    def record(self, offset: int, whose: Whose = "all") -> RecordValues:
        """Return one timing record, summed over blocks; its count is that of its buckets.

        The program may be writing: a call is recorded once it has its bucket, which it gets last.
        """
        blocks = self._blocks(whose)
        parts = [each.record(offset) for each in blocks if each.is_written(offset)]
        within = sum(each.open_roots[offset] for each in blocks) if self._layout.nested else 0
        if not parts and not within:
            return _NOTHING
        words = parts[0] if parts else {}
        not_min, most = [max([each.get(word, 0) for each in parts], default=0) for word in _LARGEST]
        for each in parts[1:]:
            words = {word: words.get(word, 0) + each.get(word, 0) for word in words.keys() | each.keys()}
        buckets = tuple(sorted([(word - _BUCKETS, calls) for word, calls in words.items() if word >= _BUCKETS]))
        count = sum([calls for _, calls in buckets])
        return RecordValues(
            count=count,
            sum=_signed(words.get(at.RECORD_SUM // 8, 0)),
            min=_ALL_ONES - not_min if count else 0,
            max=most,
            tail=words.get(at.RECORD_TAIL // 8, 0),
            unmatched=words.get(at.RECORD_UNMATCHED // 8, 0),
            missed=words.get(at.RECORD_MISSED // 8, 0),
            learning=words.get(at.RECORD_LEARNING // 8, 0),
            own=_signed(words.get(at.RECORD_SELF // 8, 0)),
            outermost=_signed(words.get(at.RECORD_OUTERMOST // 8, 0)),
            roots=_signed(words.get(at.RECORD_ROOTS // 8, 0)) + within,
            left=words.get(at.RECORD_LEFT // 8, 0),
            cost=_signed(words.get(at.RECORD_COST // 8, 0)),
            made=words.get(at.RECORD_MADE // 8, 0),
            off=_signed(words.get(at.RECORD_OFF // 8, 0)) if self._layout.on_processors else 0,
            inner_count=words.get(at.RECORD_INNER_COUNT // 8, 0),
            inner_cost=_signed(words.get(at.RECORD_INNER_COST // 8, 0)),
            buckets=buckets,
        )

    def pace_and_cost(self) -> tuple[float | None, int]:
        """Return the ticks of trials on average, None without any, and what probes have cost, in parts of a tick."""
        trials, ticks = self._own.columns(at.BLOCK_TRIALS, 16).sum(axis=0, dtype=np.uint64).tolist()
        return ticks / trials if trials else None, int(self._own.columns(at.BLOCK_COST, 8).sum(dtype=np.int64))

    def threads_asking(self) -> int:
        """Return how many threads have no page by which they see that they were not on a processor."""
        words = self._own.columns(at.BLOCK_PAGE, 16).astype(np.uint64)
        known, paged = words[:, 1] >> np.uint64(32) != 0, words[:, 0] & np.uint64(PAGE - 1) == 0
        return int((known & ~paged).sum())

    def tree(self, whose: Whose = "all") -> dict[int, tuple[int, int, int, int, int]]:
        """Return of each node of the call tree its key, calls, their ticks, and what functions had on and off."""
        layout = self._layout
        start = layout.nodes_offset // 8
        keys = self._region[start : start + layout.nodes]
        rows = self._columns(layout.tree_offset, layout.nodes * at.NODE_BYTES, whose)
        sums = rows.sum(axis=0, dtype=np.uint64).view(np.int64).reshape(layout.nodes, at.NODE_BYTES // 8)
        used = np.flatnonzero(sums.any(axis=1) | (keys != 0)).tolist()
        fields = at.NODE_COUNT, at.NODE_SUM, at.NODE_SELF, at.NODE_OFF
        counts, all_of, own, off = (sums[:, field // 8].tolist() for field in fields)
        return {node: (int(keys[node]), counts[node], all_of[node], own[node], off[node]) for node in used}

    def in_flight(self, whose: Whose = "all") -> Counter[int]:
        """Return how many instances are on the threads' stacks, by record offset; leftovers of longjmp included."""
        return sum((Counter(each.running) for each in self._blocks(whose)), Counter[int]())

    def begin_later(self, ticks: int) -> None:
        """Have the calls on the threads' stacks begin so much later: of a program that has been held so long.

        Nothing of it may run meanwhile. Calls of fork children stay as they are.
        """
        for block in self.open_blocks():
            instances = _instances_of(block, self._layout)
            instances[instances[:, at.INSTANCE_SP // 8] > at.TOMBSTONE, at.INSTANCE_T0 // 8] += np.uint64(ticks)

    def open_calls_of(self, owner: int) -> list[tuple[int, int]]:
        """Return where the calls begin that a thread has open, in bytes of the region, and how many there are."""
        from anyprobe.data.readers.open_calls import opened_by

        return opened_by(owner, self._own.columns(at.BLOCK_OWNER, 16), self._layout)

    def open_blocks(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the blocks of the process's own threads that may have calls open, as they are in memory."""
        return self._own.with_calls() if self._layout.maxactive else iter(())


def _owners(region: memoryview, layout: BankLayout) -> list[tuple[int, int]]:
    """Return the numbers of the copies that fork children have, and whose they are."""
    start = layout.children_offset
    words = np.frombuffer(
        region[start : start + layout.children * at.CHILD_BYTES], dtype=np.uint64
    ).copy()  # others write there
    taken = np.flatnonzero(words)
    return list(zip(taken.tolist(), words[taken].tolist(), strict=True))


def _signed(word: int) -> int:
    word &= _ALL_ONES
    return word - (1 << 64) if word >> 63 else word


def _ticks_in_open_calls(instances: NDArray[np.uint64]) -> Counter[int]:
    """Return how long calls took that are over and that those on a thread's stack have made, by the outermost's record.

    The program may be writing: what says of a caller where none can be has none.
    """
    found, roots = Counter[int](), list[int]()
    for number, words in enumerate(instances.tolist()):
        caller = (int(words[at.INSTANCE_CALLER // 8]) & _LOW) // at.INSTANCE_BYTES - 1
        roots.append(roots[caller] if 0 <= caller < number else number)
        if words[at.INSTANCE_SP // 8] > 1:
            root = int(instances[roots[number], at.INSTANCE_RECORD // 8]) & ~at.JUMPED
            found[root] += _signed(words[at.INSTANCE_WITHIN // 8] - words[at.INSTANCE_CHARGED // 8])
    return found


def _instances_of(block: NDArray[np.uint64], layout: BankLayout) -> NDArray[np.uint64]:
    """Return the instances on a thread's stack, one per row, those that are over among them: a view of the block."""
    first, size = layout.instances_offset // 8, layout.maxactive * at.INSTANCE_BYTES // 8
    top = min(int(block[at.BLOCK_TOP // 8]), layout.maxactive)
    return block[first : first + size].reshape(layout.maxactive, at.INSTANCE_BYTES // 8)[:top]


def pages_present(size: int, extents: Extents | None) -> NDArray[np.bool_]:
    """Return for each page whether it holds data."""
    present = np.full((size + PAGE - 1) // PAGE, extents is None)
    for low, high in extents or ():  # what lies beyond is left out
        present[low // PAGE : (high + PAGE - 1) // PAGE] = True
    return present
