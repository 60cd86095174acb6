"""Where the plain counters and times of a session are, for a program that reads them when nobody else can any more."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.data.readers.near_reader import NearReader
from anyprobe.data.readers.reader import BankReader
from anyprobe.data.snapshots.costs import NO_COSTS, Costs
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot
from anyprobe.data.snapshots.taken import Taken, costs_in
from anyprobe.splice.memory.arena import Arena
from anyprobe.splice.regions.banks import MISSING
from anyprobe.splice.regions.code_region import NearBank, SlotBank

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.probe import Probe


@dataclass(frozen=True, slots=True)
class BankPlace:
    """A bank: the number of a file, a place in it, and its form; ``near``: one block of atomic counters."""

    file: int
    offset: int
    size: int
    layout: BankLayout
    near: bool
    costs: Costs = NO_COSTS


@dataclass(frozen=True, slots=True)
class Counted:
    """One counter or timing record: its bank by number, its place in blocks; ``missing``: misses come after it."""

    bank: int
    place: int
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """A snapshot, and where what it tells goes on being counted, in the order of its sites and functions."""

    snapshot: Snapshot
    banks: tuple[BankPlace, ...]
    sites: tuple[Counted, ...]
    functions: tuple[Counted, ...]
    ns_per_tick: float


Bytes = Callable[[BankPlace], tuple[memoryview, Iterable[tuple[int, int]]]]
"""A bank's memory, and which pages of it hold data."""


class Files:
    """The files of arenas, by the numbers under which another process gets them."""

    def __init__(self) -> None:
        """Have sent none."""
        self._sent: list[Arena] = []
        self._unsent: list[int] = []

    def number_of(self, arena: Arena) -> int:
        """Return the number of an arena's file, which is to be sent if it is a new one."""
        if arena not in self._sent:
            self._sent.append(arena)
            self._unsent.append(arena.descriptor)
        return self._sent.index(arena)

    def take_unsent(self) -> list[int]:
        """Return the descriptors of the files that go along with the next message."""
        descriptors, self._unsent = self._unsent, []
        return descriptors


class _Writing:
    def __init__(self, files: Files) -> None:
        self._files, self._numbers = files, dict[int, int]()
        self.banks: list[BankPlace] = []

    def counted(self, bank: SlotBank | NearBank, place: int, *, missing: bool = False) -> Counted:
        number = self._numbers.get(id(bank))
        if number is None:
            number = self._numbers[id(bank)] = len(self.banks)
            piece, near = bank.piece, isinstance(bank, NearBank)
            costs = NO_COSTS if isinstance(bank, NearBank) else bank.costs
            place_of = BankPlace(self._files.number_of(bank.arena), piece.offset, piece.size, bank.layout, near, costs)
            self.banks.append(place_of)
        return Counted(number, place, missing)


def ledger_of(probes: "Sequence[Probe]", found: Snapshot, files: Files, ns_per_tick: float) -> Ledger:
    """Return where probes go on counting what a snapshot tells."""
    writing = _Writing(files)
    hooks = [place.hook for probe in probes for place in probe.places]
    sites = [
        writing.counted(each.bank, each.offset, missing=each.kind in MISSING) for each in hooks if each.bank is not None
    ]
    groups = [
        timed.group for probe in probes for timed in probe.timed if any(place.hook.strategy for place in timed.places)
    ]
    functions = [writing.counted(each.bank, each.offset) for each in groups if each.bank is not None]
    return Ledger(found, tuple(writing.banks), tuple(sites), tuple(functions), ns_per_tick)


def read(ledger: Ledger, content: Bytes) -> Snapshot:
    """Return the snapshot with what has been counted by now."""
    readers = [_Reading(each, *content(each)) for each in ledger.banks]
    sites = (
        readers[where.bank].site(each, where) for each, where in zip(ledger.snapshot.sites, ledger.sites, strict=True)
    )
    functions = (
        readers[where.bank].function(each, where, ledger.ns_per_tick)
        for each, where in zip(ledger.snapshot.functions, ledger.functions, strict=True)
    )
    return replace(ledger.snapshot, sites=tuple(sites), functions=tuple(functions))


class _Reading:
    """Reads one bank."""

    def __init__(self, bank: BankPlace, region: memoryview, extents: Iterable[tuple[int, int]]) -> None:
        self._near = NearReader(region, extents) if bank.near else None
        self._bank = None if bank.near else BankReader(region, bank.layout, extents)
        self._counters = None if self._bank is None else self._bank.counters()
        self._costs = bank.costs if self._bank is None else costs_in(self._bank, bank.layout, bank.costs)

    def _count(self, place: int) -> int:
        if self._near is not None:
            return self._near.counter(place)
        assert self._bank is not None
        assert self._counters is not None
        return int(self._counters[self._bank.counter_index(place)])

    def site(self, known: SiteResult, where: Counted) -> SiteResult:
        missed = self._count(where.place + 8) if where.missing else 0
        return replace(known, hits=self._count(where.place), nmissed=missed)

    def function(self, known: FunctionTiming, where: Counted, ns_per_tick: float) -> FunctionTiming:
        assert self._bank is not None
        record = self._bank.record(where.place)
        return replace(
            known,
            taken=Taken.of(record, self._costs, ns_per_tick) if known.taken is not None else None,
            count=record.count,
            tail_exits=record.tail,
            learning=record.learning,
            unmatched=record.unmatched,
            sum_ns=record.sum * ns_per_tick,
            min_ns=record.min * ns_per_tick,
            max_ns=record.max * ns_per_tick,
            buckets=histogram.in_ns(record.buckets, ns_per_tick),
            nmissed=record.missed,
            nested=NestedTiming.of(record, ns_per_tick) if known.nested is not None else None,
            in_flight=self._bank.in_flight().get(where.place, 0),
        )
