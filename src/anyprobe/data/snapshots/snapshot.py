"""What a session knows at one moment, as immutable values: the only thing that reports ever see."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from anyprobe.core.bulk import bulk_dataclass
from anyprobe.core.printable import Brief, Tables
from anyprobe.core.quoting import shown_module
from anyprobe.data.findings.refused import RefusedSite, documents_of
from anyprobe.data.layouts import histogram
from anyprobe.data.snapshots.processes import Key, ProcessCounts, ProcessInfo, TargetInfo, ThreadTimes, by_spec
from anyprobe.data.snapshots.sums import total
from anyprobe.data.snapshots.taken import Taken, all_taken, share_taken

if TYPE_CHECKING:
    from anyprobe.data.aggregates.results import AggregationResult, MapResult
    from anyprobe.data.findings.calltree import CallNode
    from anyprobe.data.findings.coverage import Coverage
    from anyprobe.data.findings.pending import PendingSpec
    from anyprobe.data.snapshots.cpu_time import CpuTime
    from anyprobe.data.snapshots.interval import Interval
    from anyprobe.data.snapshots.nested import NestedTiming

Json = dict[str, Any]
Kind = Literal["entry", "return", "offset", "insn", "block", "run", "call", "store", "taken", "undecided", "usdt"]
ExitKind = Literal["ret", "tail", "trampoline", "caller"]
"""How a return is seen: at the instruction, at a jump to another function, at a replaced return address, or only where
the caller goes on."""
MARKERS: frozenset[Kind] = frozenset({"usdt"})
"""Kinds of which all places together are what was asked for."""
_CALLS = ("count", "tail_exits", "unmatched", "sum_ns", "nmissed", "in_flight", "learning", "left", "callers")
_ADDED = (*_CALLS, "open_ns", "running_ns", "measured")
"""What of calls is added up."""
_MANY: frozenset[Kind] = MARKERS | {"insn", "block", "run", "call", "store", "taken", "undecided"}
"""Kinds of which one spec may mean many places that can be told of as one."""


@bulk_dataclass(frozen=True, slots=True)
class SiteResult(Brief):
    """The hits of one probe at one address."""

    spec: str
    module: str
    function: str
    offset: int
    address: int
    strategy: str
    armed: bool
    hits: int
    nmissed: int = 0
    kind: Kind = "entry"
    exit_kind: ExitKind | None = None
    notes: tuple[str, ...] = ()
    arming: str = ""
    """``live``, or ``stop`` and why, where it was wanted that nothing is stopped."""
    folded_sites: int = 0
    """How many sites of the function this is the sum of; 0 unless they were folded."""
    label: str = ""
    """What tables call the function, if not by its name: ``memcpy → avx_unaligned`` of one chosen at load time, or a
    marker with its provider."""
    learning: int = 0
    """Hits seen at a jump whose caller was not known yet, where handlers follow calls to their callers."""
    tail_exits: int = 0
    """Hits seen at a jump whose caller cannot be spliced, where handlers follow calls to their callers."""
    undivided: bool = False
    """Whether hits of fork children are among those of the process, since they are not told apart there."""
    since: float = 0.0
    """Seconds after the beginning from which on it counts: 0, or when what it is in was loaded."""
    __repr__ = Brief.__repr__

    @property
    def key(self) -> Key:
        """What it has in common with the same site of another process."""
        return self.spec, self.module, self.function, self.offset, self.kind

    @property
    def shown_module(self) -> str:
        """The module's name as a spec may have it."""
        return shown_module(self.module) if self.module else ""

    def as_json(self) -> Json:
        """Return the JSON object; ``exit_kind`` and what is below it only where there is any."""
        from anyprobe.data.snapshots.documents import SITE

        return SITE.of(self)

    def folded(self, other: "SiteResult") -> "SiteResult":
        """Return one site for this one and another of the same function or marker: the lower address, all hits."""
        first = min(self, other, key=lambda site: site.address)
        strategy = self.strategy if self.strategy == other.strategy else "mixed"
        return dataclasses.replace(
            self.merged(other),
            offset=first.offset,
            address=first.address,
            strategy=strategy,
            folded_sites=self.folded_sites + other.folded_sites,
        )

    def merged(self, other: "SiteResult") -> "SiteResult":
        """Return this site with the other's hits added: itself where that adds nothing, as mostly in many programs."""
        counted = other.hits or other.nmissed or other.learning or other.tail_exits
        if not (counted or other.notes or other.undivided) and self.armed >= other.armed and self.since <= other.since:
            return self
        return dataclasses.replace(
            self,
            hits=self.hits + other.hits,
            nmissed=self.nmissed + other.nmissed,
            learning=self.learning + other.learning,
            tail_exits=self.tail_exits + other.tail_exits,
            armed=self.armed or other.armed,
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
            undivided=self.undivided or other.undivided,
            since=min(self.since, other.since),
        )


@bulk_dataclass(frozen=True, slots=True, repr=False)
class FunctionTiming(Brief, histogram.Percentiles):
    """The durations of one function's calls. ``min_ns`` and ``max_ns`` mean nothing while ``count`` is 0."""

    spec: str
    module: str
    function: str
    count: int
    tail_exits: int = 0
    unmatched: int = 0
    sum_ns: float = 0.0
    min_ns: float = 0.0
    max_ns: float = 0.0
    buckets: tuple[histogram.Bucket, ...] = ()
    nmissed: int = 0
    in_flight: int = 0
    open_ns: float = 0.0
    """The time, up to the program's end, of calls that it has ended in: of recursion the outermost one's."""
    running_ns: float = 0.0
    """The time so far of calls that run when the results are read: of recursion the outermost one's."""
    measured: float = 0.0  # the sum over its calls of what a metric's own handlers have measured
    open_is_bound: bool = False
    """Whether they have taken no more than that, as the program's end was seen, and not told by itself."""
    exit_kind: ExitKind | None = None
    """``trampoline`` where the ends are seen at replaced return addresses."""
    address: int = 0
    """Where the function starts."""
    places: tuple[SiteResult, ...] = ()
    """Its entry and its exits, of which none has a counter of its own."""
    label: str = ""  # as in SiteResult
    learning: int = 0
    """Calls that left by a jump and whose caller was not known yet, so that they were not timed."""
    callers: int = 0
    """The places in callers at which calls that left by a jump are seen to end."""
    callers_refused: tuple[tuple[str, int], ...] = ()
    """Why other such places cannot be spliced, and how many they are: calls from there are ``tail_exits``."""
    left: int = 0
    """Calls that an exception, a panic or ``longjmp`` was seen to leave behind: what they took is their callers'."""
    nested: "NestedTiming | None" = None
    """What is known by which calls made which, where that was asked for."""
    cpu: "CpuTime | None" = None
    """How long calls were on processors, where that was asked for."""
    taken: Taken | None = None
    """What probes have taken, which is in none of the times; None: that is not known, and in all of them."""
    keys: tuple[tuple[str, int | str], ...] = ()  # by what calls of one function are told apart, with names

    @property
    def sites(self) -> tuple[SiteResult, ...]:
        """Its entry as a site, whose hits are the calls that were seen to their ends."""
        hits = self.count + self.tail_exits + self.learning
        return tuple(dataclasses.replace(each, hits=hits, nmissed=self.nmissed) for each in self.places[:1])

    @property
    def shown_module(self) -> str:
        """The module's name as a spec may have it."""
        return shown_module(self.module)

    @property
    def was_called(self) -> bool:
        """Whether there is more to say than that it was not called."""
        ended = self.count, self.tail_exits, self.learning, self.unmatched, self.nmissed, self.left
        return any((*ended, self.in_flight, self.running_ns, self.measured))

    @property
    def complete(self) -> bool:
        """Whether all calls that have ended were timed, but for those that began before the probes were there."""
        return not (self.tail_exits or self.learning or self.nmissed or self.left)

    @property
    def mean_ns(self) -> float | None:
        """The mean duration, None without calls."""
        return self.sum_ns / self.count if self.count else None

    def quantile(self, share: float) -> histogram.Quantile | None:
        """Return the duration that ``share`` (0 to 1) of the calls do not exceed, None without calls."""
        found = histogram.quantile(self.buckets, share)
        return None if found is None else found.within(self.min_ns, self.max_ns)

    @property
    def p50_ns(self) -> float | None:
        """The median."""
        return self.percentile(0.50)

    @property
    def p90_ns(self) -> float | None:
        """The duration that nine of ten calls stayed below."""
        return self.percentile(0.90)

    @property
    def p99_ns(self) -> float | None:
        """The duration that 99 of 100 calls stayed below."""
        return self.percentile(0.99)

    def as_json(self) -> Json:
        """Return the JSON object; durations that do not exist are null, ``exit_kind`` is there only if it is set."""
        from anyprobe.data.snapshots.documents import FUNCTION

        return FUNCTION.of(self)

    def merged(self, *others: "FunctionTiming") -> "FunctionTiming":
        """Return this function with the calls of others added."""
        from anyprobe.data.snapshots.sums import both, summed, sums_by_name

        every = (self, *others)
        with_calls = [timing for timing in every if timing.count]
        return dataclasses.replace(
            self,
            **sums_by_name(every, _ADDED),
            open_is_bound=any(timing.open_is_bound for timing in every),
            min_ns=min((timing.min_ns for timing in with_calls), default=0.0),
            max_ns=max((timing.max_ns for timing in with_calls), default=0.0),
            buckets=histogram.added(*(timing.buckets for timing in with_calls)),
            callers_refused=summed(timing.callers_refused for timing in every),
            nested=reduce(both, (timing.nested for timing in every), None),
            cpu=reduce(both, (timing.cpu for timing in with_calls), None),
            taken=all_taken(timing.taken for timing in with_calls) if with_calls else self.taken,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot(Tables):
    """Everything a session has counted and refused so far.

    ``pause_us`` says how long the target's threads stood still, under ``prepare`` (a stop of its own in which memory is
    mapped, where there is not enough yet), ``arm`` and ``disarm``; ``setup_s`` how long ``resolve``, ``plan``,
    ``prepare`` and ``arm`` took.
    """

    target: TargetInfo
    duration_s: float
    pause_us: dict[str, float] = field(default_factory=dict)
    setup_s: dict[str, float] = field(default_factory=dict)
    sites: tuple[SiteResult, ...] = ()
    functions: tuple[FunctionTiming, ...] = ()
    refused: tuple[RefusedSite, ...] = ()
    pending: "tuple[PendingSpec, ...]" = ()
    """What waits for libraries that are loaded later."""
    to_place: int = 0
    """How many sites do not count yet as their turn to be placed has not come, where that is done meanwhile."""
    warnings: tuple[str, ...] = ()
    aggregations: "tuple[AggregationResult, ...]" = ()
    """What handlers have counted."""
    dropped: Mapping[str, dict[str, int]] = field(default_factory=dict)
    """What maps and records have lost, by their names and the cause."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """What handlers could not do, by kind: ``fault``, ``division``, and runs that were ``abandoned`` for that."""
    maps: "tuple[MapResult, ...]" = ()
    """What maps held, where that was asked for."""
    others: tuple[TargetInfo, ...] = ()
    """The further processes of a merged snapshot."""
    clock_step_ns: float = 0.0
    """By how much the clock of times goes on at once, 0 where nothing is timed."""
    tail_exits: int | None = None
    learning: int | None = None
    """Calls of which aggregations know no time or result: left by a jump, or of unknown callers; None: not known."""
    processes: tuple[ProcessCounts, ...] = ()
    """What each process has counted: the target, its fork children that have, and so on for those of merged ones."""
    threads: tuple[ThreadTimes, ...] = ()
    """The timed calls of each thread, where that was asked for."""
    tree: "tuple[CallNode, ...]" = ()
    """The tree of timed calls, where that was asked for: see ``data.findings.calltree``."""
    waited: float = 0.0
    stolen: float = 0.0
    """What share of the session a thread (one that has most) waited for a processor, or a hypervisor has taken."""
    on_processors: bool = False
    """Whether times are those of threads on processors."""
    in_no_row: "NestedTiming | None" = None
    """What timed calls have taken that is no function's own time, where self times are known."""
    coverage: "Coverage | None" = None
    """Which blocks and lines have run, where that was asked for."""
    interval: "Interval | None" = None
    """The time in which this was counted, where that is a part of the session."""

    @property
    def all_sites(self) -> tuple[SiteResult, ...]:
        """What was counted at sites, and the entries of timed functions, whose hits are their calls."""
        return (*self.sites, *(site for each in self.functions for site in each.sites))

    @property
    def hits(self) -> int:
        """The hits of all sites, each once under whatever names."""
        return total((site, site.hits) for site in self.sites)

    @property
    def by_process(self) -> dict[ProcessInfo, dict[str, int]]:
        """The hits of each process, by spec: the target's, its fork children's, those of programs that it executes."""
        return by_spec(self.processes, [(site.spec, site.key) for site in self.sites])

    @property
    def partly_timed(self) -> frozenset[tuple[str, str]]:
        """The functions of which not all calls were timed, by module and by the name that trees have of them."""
        return frozenset((each.module, each.label or each.function) for each in self.functions if not each.complete)

    @property
    def probe_share(self) -> float | None:
        """What share of the time that was measured probes have taken (0 to 1); None if that is not known."""
        return share_taken((each.taken, each.sum_ns, each.nested) for each in self.functions if each.count)

    @property
    def nmissed(self) -> int:
        """The hits whose action did not run."""
        return sum(site.nmissed for site in self.sites) + sum(timing.nmissed for timing in self.functions)

    def as_json(self) -> Json:
        """Return the document of ``--json``."""
        document: Json = {
            "target": self.target.as_json(),
            "duration_s": round(self.duration_s, 6),
            "pause_us": {"arm": 0, "disarm": 0} | {name: round(us) for name, us in self.pause_us.items()},
            "setup_s": {name: round(self.setup_s.get(name, 0.0), 6) for name in ("resolve", "plan", "prepare", "arm")},
            "sites": [site.as_json() for site in self.all_sites],
            **documents_of(self.refused),
        }
        document |= {"pending": [each.as_json() for each in self.pending]} if self.pending else {}
        document |= {"to_place": self.to_place} if self.to_place else {}
        if self.functions:
            document["functions"] = [timing.as_json() for timing in self.functions]
            document |= {"in_no_row": self.in_no_row.as_rest()} if self.in_no_row else {}
            document |= {"probe_share": self.probe_share, "waited": self.waited, "stolen": self.stolen}
            document["clock"] = "cpu" if self.on_processors else "wall"
        if self.aggregations:
            from anyprobe.data.findings.waiting import document_of

            document |= document_of(self.aggregations)
        document |= {"maps": {each.name: each.as_json() for each in self.maps}} if self.maps else {}
        full = {result.name: {"no room": result.dropped} for result in self.aggregations if result.dropped}
        document |= {"dropped": {**self.dropped, **full}} if full or self.dropped else {}
        document |= {"missing": dict(self.missing)} if self.missing else {}
        if self.tree:
            from anyprobe.data.findings.calltree import by_caller

            partial = self.partly_timed
            document["tree"] = [each.as_json(partial) for each in self.tree]
            document["by_caller"] = [each.as_json(partial) for each in by_caller(self.tree)]
        if self.clock_step_ns:
            document["clock_step_ns"] = _rounded(self.clock_step_ns)
        document |= {"tail_exits": self.tail_exits} if self.tail_exits is not None else {}
        document |= {"learning": self.learning} if self.learning is not None else {}
        if len(self.processes) > 1:
            document["processes"] = [each.process.as_json() for each in self.processes]
        document |= {"threads": [each.as_json() for each in self.threads]} if self.threads else {}
        document |= {"warnings": list(self.warnings)} if self.warnings else {}
        document |= self.coverage.as_json() if self.coverage else {}
        return document

    def nonzero(self) -> "tuple[Snapshot, dict[str, int]]":
        """Return what was hit alone, and how many sites and functions were left out."""
        sites = tuple(each for each in self.sites if each.hits or each.nmissed or not each.armed)
        functions = tuple(each for each in self.functions if each.was_called)
        left_out = {"sites": len(self.sites) - len(sites), "functions": len(self.functions) - len(functions)}
        return dataclasses.replace(self, sites=sites, functions=functions), left_out

    def aggregation(self, name: str) -> "AggregationResult":
        """Return what the aggregation with this name has counted.

        Args:
            name: that was given when it was made.

        Raises:
            KeyError: there is none.
        """
        for result in self.aggregations:
            if result.name == name:
                return result
        raise KeyError(name)

    def folded(self, kinds: frozenset[Kind] = _MANY) -> "Snapshot":
        """Return a snapshot with one site for the instructions, blocks or calls of a function, or a marker's places.

        Args:
            kinds: of the sites that are added up.
        """
        from anyprobe.data.snapshots.sums import added

        marked = [dataclasses.replace(each, folded_sites=1) if each.kind in kinds else each for each in self.sites]
        return dataclasses.replace(
            self,
            sites=added(
                marked,
                lambda site: (site.spec, site.module, site.label or site.function) if site.folded_sites else site,
                SiteResult.folded,
            ),
        )

    def distinct(self) -> "Snapshot":
        """Return a snapshot with each probe once, for specs that overlap: nothing is to be added to itself."""
        from anyprobe.data.snapshots.sums import once

        return dataclasses.replace(
            self,
            sites=once(self.sites, lambda each: (each.spec, each.address, each.kind, each.exit_kind)),
            functions=once(self.functions, lambda each: (each.spec, each.address)),
            processes=tuple(each.distinct() for each in self.processes),
            threads=tuple(each.distinct() for each in self.threads),
            refused=tuple(dict.fromkeys(self.refused)),
        )

    def merge(self, other: "Snapshot") -> "Snapshot":
        """Return the sum of two snapshots, for one table over several processes or over parts of a session.

        Probes are the same when their spec, place in the function and kind are; the addresses are this snapshot's, and
        so is the target; the other's is among ``others``. Pauses and set-up times are of different moments, so the
        longer is kept.
        """
        from anyprobe.data.aggregates.results import AggregationResult, MapResult
        from anyprobe.data.findings.calltree import merged as merged_trees
        from anyprobe.data.snapshots.sums import added, both, longest, sums, sums_of, union

        return Snapshot(
            target=self.target,
            duration_s=max(self.duration_s, other.duration_s),
            pause_us=longest(self.pause_us, other.pause_us),
            setup_s=longest(self.setup_s, other.setup_s),
            sites=added((*self.sites, *other.sites), lambda site: site.key, SiteResult.merged),
            functions=added(
                (*self.functions, *other.functions),
                lambda timing: (timing.spec, timing.module, timing.function, timing.keys),
                FunctionTiming.merged,
            ),
            refused=union(self.refused, other.refused),
            pending=union(self.pending, other.pending),
            to_place=self.to_place + other.to_place,
            warnings=union(self.warnings, other.warnings),
            aggregations=added(
                (*self.aggregations, *other.aggregations),
                lambda result: (result.name, result.kind, result.by),
                AggregationResult.merged,
            ),
            maps=added((*self.maps, *other.maps), lambda each: (each.name, each.by), MapResult.merged),
            dropped=sums_of(self.dropped, other.dropped),
            missing=sums(self.missing, other.missing),
            others=self._others(other),
            processes=(*self.processes, *other.processes),
            threads=(*self.threads, *other.threads),
            clock_step_ns=max(self.clock_step_ns, other.clock_step_ns),
            waited=max(self.waited, other.waited),
            stolen=max(self.stolen, other.stolen),
            on_processors=self.on_processors or other.on_processors,
            tree=merged_trees(self.tree, other.tree) if self.tree or other.tree else (),
            tail_exits=both(self.tail_exits, other.tail_exits),
            learning=both(self.learning, other.learning),
            in_no_row=both(self.in_no_row, other.in_no_row),
            coverage=both(self.coverage, other.coverage),
        )

    def _others(self, other: "Snapshot") -> tuple[TargetInfo, ...]:
        """Return the targets of both but this one's; parts of one session have one target."""
        further = {(each.pid, each.exe): each for each in (self.target, *self.others, other.target, *other.others)}
        return tuple(further.values())[1:]


def _rounded(value: float | None) -> float | None:
    return value if value is None else round(value, 3)
