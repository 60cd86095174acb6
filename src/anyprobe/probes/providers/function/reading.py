"""From hooks and banks to an immutable snapshot."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

from anyprobe.core.refusal import Refusal
from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.layout import CALL_LEARNING, CALL_UNSEEN, CROWDED, NEXT_BLOCK
from anyprobe.data.readers.near_reader import NearReader
from anyprobe.data.readers.reader import BankReader, Extents, ForkChild, Whose
from anyprobe.data.snapshots.processes import ProcessInfo
from anyprobe.data.snapshots.snapshot import ExitKind, FunctionTiming, SiteResult
from anyprobe.data.snapshots.taken import costs_in, settled
from anyprobe.probes.providers.function.probe import Place, Probe, Timed, at_run_time
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.codegen.timing.trampoline import UNREPLACED
from anyprobe.splice.regions.banks import MISSING, Hook, TimingGroup
from anyprobe.splice.regions.code_region import GoroutineBank, NearBank, SlotBank

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.data.findings.calltree import CallNode
    from anyprobe.data.readers.reader import RecordValues
    from anyprobe.data.snapshots.costs import Costs
    from anyprobe.data.snapshots.processes import ProcessCounts
    from anyprobe.data.snapshots.taken import Taken
    from anyprobe.probes.providers.function.forks.children import Children
    from anyprobe.probes.providers.function.timing.threads import ThreadParts


class BankValues:
    """The values of all banks at one moment, each bank read once."""

    def __init__(self, now: int = 0, ran: Callable[[int], int] = lambda _: 0) -> None:
        """Read nothing yet.

        ``now``: this moment by the clock of timing probes; 0: calls that run have no time yet. ``ran``: tells for how
        many ticks a thread has been on processors, where times are of that.
        """
        self._now, self._ran = now, ran
        self._running: dict[SlotBank, Counter[int]] = {}
        self._readers: dict[int, BankReader] = {}
        self._near: dict[int, NearReader] = {}
        self._counters: dict[int, NDArray[np.uint64]] = {}
        self._hits: dict[SlotBank, tuple[list[int], int]] = {}
        """The counters of banks, and where they begin in blocks."""
        self._in_flight: dict[tuple[int, Whose], dict[int, int]] = {}
        self._costs: dict[int, Costs] = {}

    def reader(self, bank: SlotBank) -> BankReader:
        """Return the reader of a bank."""
        reader = self._readers.get(id(bank))
        if reader is None:
            reader = self._readers[id(bank)] = _reader(bank, _extents(bank))
        return reader

    def running(self, bank: SlotBank, offset: int) -> int:
        """Return the ticks so far of the calls of a function that run, of the process's own."""
        if not self._now or isinstance(bank, GoroutineBank):
            return 0
        if bank not in self._running:
            from anyprobe.data.readers.open_calls import running_calls

            times = self._now, (self._ran if bank.layout.on_processors else None)
            each = (running_calls(block, bank.layout, *times) for block in self.reader(bank).open_blocks())
            self._running[bank] = sum(each, Counter[int]())
        return self._running[bank][offset]

    def costs(self, bank: SlotBank) -> "Costs":
        """Return what probes have cost by a bank, on average."""
        if id(bank) not in self._costs:
            self._costs[id(bank)] = costs_in(self.reader(bank), bank.layout, bank.costs)
        return self._costs[id(bank)]

    def hits(self, hook: Hook) -> int:
        """Return a counting hook's hits."""
        bank = hook.bank
        if bank is None or hook.was_set:
            return int(hook.was_set)
        if isinstance(bank, NearBank):
            if id(bank) not in self._near:
                self._near[id(bank)] = NearReader(_view(bank), _extents(bank))
            return at_least_none(self._near[id(bank)].counter(hook.offset))
        known = self._hits.get(bank)
        if known is None:
            known = self._hits[bank] = self._all_counters(bank).tolist(), bank.layout.counters_offset
        return at_least_none(known[0][hook.offset - known[1] >> 3])

    def _all_counters(self, bank: SlotBank) -> "NDArray[np.uint64]":
        if id(bank) not in self._counters:
            self._counters[id(bank)] = self.reader(bank).counters()
        return self._counters[id(bank)]

    def missed(self, hook: Hook) -> int:
        """Return how many hits a hook has seen and not counted: returns that no address could be replaced for."""
        if hook.kind not in MISSING or not isinstance(hook.bank, SlotBank):
            return 0
        return int(self._all_counters(hook.bank)[self.reader(hook.bank).counter_index(hook.offset + 8)])

    def unfollowed(self, hook: Hook) -> tuple[int, int]:
        """Return how many calls a hook saw at a jump: those whose caller was not known yet, and cannot be spliced."""
        if hook.calls is None or not isinstance(hook.bank, SlotBank):
            return 0, 0
        counters, index = self._all_counters(hook.bank), self.reader(hook.bank).counter_index
        return int(counters[index(hook.offset + CALL_LEARNING)]), int(counters[index(hook.offset + CALL_UNSEEN)])

    def unreplaced(self, hook: Hook) -> int:
        """Return how many calls a hook has not followed, since their return address could not be replaced."""
        if hook.kind is not ActionKind.HANDLE_RETURN or not isinstance(hook.bank, SlotBank):
            return 0
        return int(self._all_counters(hook.bank)[self.reader(hook.bank).counter_index(hook.offset + UNREPLACED)])

    def in_flight(self, bank: SlotBank, record: int, whose: Whose = "all") -> int:
        """Return how many calls of a timed function have not come back."""
        if (id(bank), whose) not in self._in_flight:
            running = _open_calls(bank) if isinstance(bank, GoroutineBank) else self.reader(bank).in_flight(whose)
            self._in_flight[id(bank), whose] = running
        return self._in_flight[id(bank), whose].get(record, 0)

    def was_called(self, bank: SlotBank, record: int, whose: Whose) -> bool:
        """Return whether there is anything to say of a timed function's calls."""
        return self.reader(bank).is_written(record, whose) or self.in_flight(bank, record, whose) > 0


def at_least_none(counter: int) -> int:
    """Return the hits that a counter tells of, which a signal handler may have below zero for as long as it runs.

    It takes back what its thread, in the middle of a line when that was armed, has yet to count: see ``viewroutine``.
    """
    return counter if counter < 1 << 63 else 0


def flags_of(bank: NearBank) -> "NDArray[np.uint64]":
    """Return the words of a bank near the code, of which each holds one flag; they go on changing."""
    import numpy as np

    return np.frombuffer(_view(bank), np.uint64)


def hits_alone(hook: Hook) -> int:
    """Return a counting hook's hits and look at nothing else: for one that is read again and again."""
    if not isinstance(hook.bank, SlotBank):
        return BankValues().hits(hook)
    return at_least_none(_reader(hook.bank, None).counter(hook.offset))


def forked_alone(bank: SlotBank, known: tuple[int, int]) -> "tuple[tuple[int, int], list[ForkChild]]":
    """Return how much of a bank is taken, and the fork children that have counted if it is more than was known."""
    blocks = int.from_bytes(_view(bank)[NEXT_BLOCK : NEXT_BLOCK + 8], "little")
    if blocks == known[0] and not bank.layout.children:
        return known, []
    reader = _reader(bank, None)
    taken = blocks, len(reader.copies)
    return taken, reader.forked() if taken != known else []


def _reader(bank: SlotBank, extents: Extents | None) -> BankReader:
    copies = partial(_copy_of, bank) if bank.layout.children else None
    return BankReader(_view(bank), bank.layout, extents, copies, bank.ended)


def _view(bank: SlotBank | NearBank) -> memoryview:
    return bank.arena.view(bank.piece.offset, bank.piece.size) if bank.still is None else bank.still.content


def _extents(bank: SlotBank | NearBank) -> Iterator[tuple[int, int]]:
    if bank.still is not None:
        return iter(bank.still.extents)
    return bank.arena.data_extents(bank.piece.offset, bank.piece.size)


def _open_calls(bank: GoroutineBank) -> dict[int, int]:
    from anyprobe.data.layouts.goroutines import open_calls

    table = bank.table
    assert table is not None
    extents = bank.arena.data_extents(table.offset, table.size)
    return open_calls(bank.arena.view(table.offset, table.size), extents)


def _copy_of(bank: SlotBank, number: int) -> tuple[memoryview, Iterator[tuple[int, int]]]:
    """Return the memory of a fork child's blocks, and which of its pages hold data."""
    at, size = bank.piece.offset + bank.layout.child_offset(number), bank.layout.child_bytes
    return bank.arena.view(at, size), bank.arena.data_extents(at, size)


def calls_by_thread(probes: Iterable[Probe], children: "Children", ns_per_tick: float) -> "ThreadParts":
    """Return the timed calls of all threads, those of fork children's threads included."""
    from anyprobe.probes.providers.function.timing.threads import ThreadParts

    values = BankValues()

    known: dict[int, _Known] = {}

    def read(timed: Timed, group: TimingGroup, bank: SlotBank, whose: Whose) -> FunctionTiming:
        if id(timed) not in known:
            known[id(timed)] = _known(timed)
        return _timing(timed, group, bank, values, ns_per_tick, whose, known[id(timed)])

    return ThreadParts(probes, values, children, read)


def _banks_of(places: Iterable[Place]) -> set[SlotBank | NearBank]:
    banks = {hook.bank for place in places for hook in (*place.earlier, place.hook)}
    return {bank for bank in banks if bank is not None}


def are_crowded(places: Iterable[Place]) -> bool:
    """Return whether there have been more fork children than are told apart at some places."""
    return any(map(_is_crowded, _banks_of(places)))


def _is_crowded(bank: SlotBank | NearBank) -> bool:
    return isinstance(bank, SlotBank) and any(bank.arena.view(bank.piece.offset + CROWDED, 8))


def without_children(
    children: "Children", found: Sequence[SiteResult], armed: Sequence[Place], *, ignored: bool
) -> tuple[tuple[SiteResult, ...], tuple[str, ...]]:
    """Return results without the hits of fork children, and what is to be said of those that are not told apart."""
    values = BankValues()
    sites = [(site.key, [*place.earlier, place.hook], site.hits) for site, place in zip(found, armed, strict=False)]
    theirs = children.apart(sites, values.reader)
    own = tuple(replace(site, hits=max(site.hits - hits, 0)) for site, hits in zip(found, theirs, strict=False))
    told = []
    banks = [hook.bank for _, hooks, _ in sites for hook in hooks]
    if ignored and (near := sum(isinstance(bank, NearBank) for bank in banks)):
        told.append(f"at {near} sites the hits of fork children are counted, too: they are not told apart there")
    if any(values.reader(bank).is_full for bank in {each for each in banks if isinstance(each, SlotBank)}):
        told.append("there are too many fork children to tell them all apart: hits of some are counted, too")
    return (*own, *found[len(own) :]), tuple(told)


def refusals(probes: Iterable[Probe]) -> list[tuple[str, Refusal]]:
    """Return what was asked for and not placed; of single instructions, with the address of what was asked for."""
    found: list[tuple[str, Refusal]] = []
    for probe in probes:
        found += probe.refused
        found += [
            (place.site.canonical, Refusal(why.reason, place.want.address + place.module.bias, why.detail))
            for place in probe.places
            if (why := place.hook.refusal) is not None
        ]
        found += [
            (timed.site.canonical, at_run_time(timed.refusal, timed.places[0].module))
            for timed in probe.timed
            if timed.refusal is not None
        ]
    return found


def _hits(places: Sequence[Place]) -> dict[int, tuple[int, int, int, int]]:
    """Return the hits and the missed hits of places by their identity, ends of functions read first.

    Then how many calls were seen at a jump, since their caller was not known yet, or cannot be spliced.
    """
    found = {}
    for ends in (True, False):
        values = BankValues()
        for place in places:
            if (place.exit is not None) is not ends:
                continue
            hook = place.hook
            if not place.earlier and hook.calls is None and hook.kind not in MISSING:
                found[id(place)] = values.hits(hook), 0, 0, 0
                continue
            hooks = [*place.earlier, hook]
            learning, unseen = (sum(each) for each in zip(*map(values.unfollowed, hooks), strict=True))
            found[id(place)] = sum(map(values.hits, hooks)), sum(map(values.missed, hooks)), learning, unseen
    return found


def armed_once(places: Iterable[Place]) -> list[Place]:
    """Return the places that are, or have been, armed: those of which there are results."""
    return [place for place in places if place.hook.bank is not None or place.earlier]


def sites(places: Iterable[Place], note_of: "Callable[[LoadedObject], str]") -> Iterator[SiteResult]:
    """Yield what was counted at places, but for those that were never armed."""
    armed = armed_once(places)
    counted = _hits(armed)
    values = BankValues()
    undivided = {bank for bank in _banks_of(armed) if isinstance(bank, NearBank) or values.reader(bank).is_full}
    for place in armed:
        found = _site(place, *counted[id(place)], note=note_of(place.site.object))
        if undivided and not undivided.isdisjoint(_banks_of([place])):
            found = replace(found, undivided=True)
        yield found


def _site(
    place: Place, hits: int = 0, missed: int = 0, learning: int = 0, unseen: int = 0, note: str = ""
) -> SiteResult:
    hook = place.hook
    return SiteResult(
        spec=place.site.canonical,
        module=place.site.object.name,
        function=place.site.name,
        offset=place.offset,
        address=place.address,
        strategy=hook.strategy,
        armed=hook.armed and not hook.detached,
        hits=hits,
        nmissed=missed,
        kind=place.site.kind,  # type: ignore[arg-type]
        exit_kind=_exit_kind(place),
        notes=tuple(filter(None, (place.site.note, note, "" if hook.armed else place.note))),
        arming=hook.arming,
        label=place.site.label,
        learning=learning,
        tail_exits=unseen,
        since=place.since,
    )


def _exit_kind(place: Place) -> ExitKind | None:
    if place.at_replaced_return:
        return "trampoline"
    if place.hook.calls is not None and place.exit is None:
        return "caller"
    return None if place.exit is None else place.exit.kind.value


def timings(probes: Iterable[Probe], values: BankValues, ns_per_tick: float) -> Iterator[FunctionTiming]:
    """Yield what was timed in each function, all processes and threads together."""
    for timed in (timed for probe in probes for timed in probe.timed):
        counted = [
            _timing(timed, group, group.bank, values, ns_per_tick)
            for group in ([timed.group] if timed.was_armed else []) + timed.earlier
            if group.bank is not None
        ]
        if counted:
            yield reduce(FunctionTiming.merged, counted)


def timings_by_process(
    probes: Iterable[Probe], children: "Children", ns_per_tick: float
) -> dict["ProcessInfo | None", list[FunctionTiming]]:
    """Return the calls of each fork child that has timed some, and then those of the target itself, under None."""
    values = BankValues()
    all_timed = [timed for probe in probes for timed in probe.timed]
    banks = _by_record(all_timed)
    if not any(values.reader(bank).copies for bank in banks):  # of most sessions: all calls are the target's
        return {}
    parts: dict[ProcessInfo | None, dict[int, list[FunctionTiming]]] = {}
    known: dict[int, _Known] = {}
    for bank, records in banks.items():
        reader = values.reader(bank)
        everyone: list[ForkChild | Literal["target"]] = [*reader.copies, "target"]
        for whose in everyone:
            own = parts.setdefault(children.of(bank, whose) if isinstance(whose, ForkChild) else None, {})
            for offset in reader.compact(whose).records() if isinstance(whose, ForkChild) else records:
                if whose == "target" and not values.was_called(bank, offset, whose):
                    continue
                for number, group in records.get(offset, ()):
                    if number not in known:
                        known[number] = _known(all_timed[number])
                    each = _timing(all_timed[number], group, bank, values, ns_per_tick, whose, known[number])
                    if each.was_called:
                        own.setdefault(number, []).append(each)
    found = {
        process: [reduce(FunctionTiming.merged, own[number]) for number in sorted(own)]
        for process, own in parts.items()
        if own
    }
    return found if found.keys() - {None} else {}


def _by_record(all_timed: Sequence[Timed]) -> dict[SlotBank, dict[int, list[tuple[int, TimingGroup]]]]:
    """Return what functions have been timed by, each with the function's number: by bank and the record's offset."""
    found: dict[SlotBank, dict[int, list[tuple[int, TimingGroup]]]] = {}
    for number, timed in enumerate(all_timed):
        for group in ([timed.group] if timed.was_armed else []) + timed.earlier:
            if group.bank is not None:
                found.setdefault(group.bank, {}).setdefault(group.offset, []).append((number, group))
    return found


def _timing(
    timed: Timed,
    group: TimingGroup,
    bank: SlotBank,
    values: BankValues,
    ns_per_tick: float,
    whose: Whose = "all",
    known: "_Known | None" = None,
) -> FunctionTiming:
    from anyprobe.data.snapshots.nested import NestedTiming

    places, callers, refused, exit_kind = known or _known(timed)
    record = values.reader(bank).record(group.offset, whose)
    taken = _taken(record, values.costs(bank), ns_per_tick) if exit_kind != "trampoline" else None
    sum_ns, taken = settled(record.sum * ns_per_tick, taken)
    running_until = bank.open_at_end.get(group.offset, 0) * ns_per_tick if whose in {"all", "target"} else 0.0
    return FunctionTiming(
        spec=timed.site.canonical,
        module=timed.site.object.name,
        function=timed.site.name,
        label=timed.site.label,
        count=record.count,
        tail_exits=record.tail,
        learning=record.learning,
        unmatched=record.unmatched,
        sum_ns=sum_ns,
        min_ns=record.min * ns_per_tick,
        max_ns=record.max * ns_per_tick,
        buckets=histogram.in_ns(record.buckets, ns_per_tick),
        nmissed=record.missed,
        in_flight=values.in_flight(bank, group.offset, whose),
        open_ns=running_until,
        running_ns=values.running(bank, group.offset) * ns_per_tick if whose in {"all", "target"} else 0.0,
        open_is_bound=running_until > 0 and not bank.end_is_told,
        address=timed.site.address,
        callers=callers,
        callers_refused=refused,
        exit_kind=exit_kind,
        places=places,
        left=record.left,
        nested=NestedTiming.of(record, ns_per_tick, on_processors=bank.layout.on_processors)
        if bank.layout.nested
        else None,
        taken=taken,
    )


def _taken(record: "RecordValues", costs: "Costs", ns_per_tick: float) -> "Taken | None":
    if not costs.whole:
        return None
    from anyprobe.data.snapshots.taken import Taken

    return Taken.of(record, costs, ns_per_tick)


def call_trees(
    probes: Sequence[Probe], children: "Children", ns_per_tick: float, processes: "Sequence[ProcessCounts]"
) -> "tuple[tuple[CallNode, ...], tuple[ProcessCounts, ...]]":
    """Return the tree of all timed calls, and processes, of which the target is the first, with their own ones."""
    from anyprobe.data.findings.calltree import merged
    from anyprobe.probes.providers.function.timing.calltrees import trees_of

    trees = trees_of(probes, BankValues(), children, ns_per_tick)
    own = {(each.pid, each.started): tree for each, tree in trees.items() if each is not None}
    target, *others = processes
    others = [replace(each, tree=own.get((each.process.pid, each.process.started), ())) for each in others]
    return merged(*trees.values()), (replace(target, tree=trees[None]), *others)


class _Known(NamedTuple):
    """What is the same of the calls of a function in all processes and threads."""

    places: tuple[SiteResult, ...]
    callers: int
    callers_refused: tuple[tuple[str, int], ...]
    exit_kind: ExitKind | None


def _known(timed: Timed) -> _Known:
    return _Known(
        places=tuple(map(_site, timed.places)),
        callers=sum(place.hook.armed for place in timed.points.values()),
        callers_refused=_callers_refused(timed),
        exit_kind="trampoline" if any(place.at_replaced_return for place in timed.places) else None,
    )


def _callers_refused(timed: Timed) -> tuple[tuple[str, int], ...]:
    """Return why return points are refused, and how many for each reason."""
    spliced = (place.hook.refusal for place in timed.points.values() if not place.hook.armed)
    refusals = [*timed.unseen.values(), *filter(None, spliced)]
    return tuple(sorted(Counter(why.reason.value for why in refusals).items()))
