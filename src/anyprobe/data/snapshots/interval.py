"""What was counted between two snapshots of one session."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.findings import calltree
from anyprobe.data.layouts.histogram import Bucket
from anyprobe.data.snapshots.processes import ProcessCounts, ThreadTimes
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

_Counted = TypeVar("_Counted", ProcessCounts, ThreadTimes)
_SAME = 0.25
"""Bounds of one bucket differ by less than this share of its width: nanoseconds of a tick are measured anew."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time from one snapshot to the next, and what each site had counted in all at its end."""

    moment: str
    """The time of day at its end."""
    seconds: float
    totals: Mapping[Hashable, int] = field(default_factory=dict)

    def total(self, site: SiteResult) -> int:
        """Return the hits of a site since the beginning."""
        return self.totals.get(_site(site), site.hits)


def since(after: Snapshot, before: Snapshot | None, moment: str) -> Snapshot:
    """Return what was counted after a snapshot (from the beginning, if there is none) and up to another one."""
    if before is None:
        before = Snapshot(after.target, 0.0)
    seconds = max(after.duration_s - before.duration_s, 0.0)
    earlier_sites = {_site(each): each for each in before.sites}
    earlier_functions = {_function(each): each for each in before.functions}
    earlier_results = {(each.name, each.kind, each.by): each for each in before.aggregations}
    return replace(
        after,
        duration_s=seconds,
        sites=tuple(_site_since(each, earlier_sites.get(_site(each)), before.duration_s) for each in after.sites),
        functions=tuple(_calls_since(each, earlier_functions.get(_function(each))) for each in after.functions),
        aggregations=tuple(
            _result_since(each, earlier_results.get((each.name, each.kind, each.by))) for each in after.aggregations
        ),
        processes=tuple(_processes_since(after.processes, before.processes)),
        threads=tuple(_threads_since(after.threads, before.threads)),
        tree=calltree.since(after.tree, before.tree),
        in_no_row=after.in_no_row.plus(before.in_no_row, -1)
        if after.in_no_row and before.in_no_row
        else after.in_no_row,
        coverage=None if after.coverage is None else after.coverage.beyond(before.coverage),
        interval=Interval(moment, seconds, {_site(each): each.hits for each in after.sites}),
    )


def _processes_since(after: Sequence[ProcessCounts], before: Sequence[ProcessCounts]) -> Iterator[ProcessCounts]:
    """Yield what each process has counted."""
    for each, then in _with_earlier(after, before):
        if then is None:
            yield each
            continue
        hits = {key: hits - then.hits.get(key, 0) for key, hits in each.hits.items()}
        functions, tree = _all_calls_since(each.functions, then.functions), calltree.since(each.tree, then.tree)
        yield replace(each, hits=hits, functions=functions, tree=tree)


def _threads_since(after: Sequence[ThreadTimes], before: Sequence[ThreadTimes]) -> Iterator[ThreadTimes]:
    """Yield the calls of each thread that had any."""
    for each, then in _with_earlier(after, before):
        functions = each.functions if then is None else _all_calls_since(each.functions, then.functions)
        if functions:
            yield replace(each, functions=functions)


def _with_earlier(after: Sequence[_Counted], before: Sequence[_Counted]) -> Iterator[tuple[_Counted, _Counted | None]]:
    """Yield each with what it had counted before; when a process began may have been seen later.

    Numbers are given again: one that has ended is told by when it began from another one that had its number.
    """
    earlier = {_who(each, each.process.started): each for each in before}
    there = {_who(each, each.process.started) for each in after}
    for each in after:
        then, unseen = earlier.get(_who(each, each.process.started)), _who(each, None)
        yield each, earlier.get(unseen) if then is None and unseen not in there else then


def _who(one: ProcessCounts | ThreadTimes, started: float | None) -> Hashable:
    tid = one.tid if isinstance(one, ThreadTimes) else 0
    return one.process.pid, one.process.generation, started, tid


def _all_calls_since(after: Sequence[FunctionTiming], before: Sequence[FunctionTiming]) -> tuple[FunctionTiming, ...]:
    """Return the calls of the interval, of functions that had any."""
    earlier = {_function(each): each for each in before}
    found = (_calls_since(each, earlier.get(_function(each))) for each in after)
    return tuple(each for each in found if each.was_called)


def _site(site: SiteResult) -> Hashable:
    return site.spec, site.address, site.kind, site.exit_kind


def _function(timing: FunctionTiming) -> Hashable:
    return timing.spec, timing.address


def _site_since(after: SiteResult, before: SiteResult | None, passed: float) -> SiteResult:
    later = max(after.since - passed, 0.0)
    if before is None:
        return replace(after, since=later) if after.since else after
    return replace(after, hits=after.hits - before.hits, nmissed=after.nmissed - before.nmissed, since=later)


def _calls_since(after: FunctionTiming, before: FunctionTiming | None) -> FunctionTiming:
    """Return the calls of the interval; the shortest and the longest are known by their buckets."""
    if before is None:
        return after
    buckets = _buckets_since(after.buckets, before.buckets) if before.count else after.buckets
    return replace(
        after,
        count=after.count - before.count,
        tail_exits=after.tail_exits - before.tail_exits,
        learning=after.learning - before.learning,
        unmatched=after.unmatched - before.unmatched,
        sum_ns=after.sum_ns - before.sum_ns,
        running_ns=after.running_ns - before.running_ns,
        measured=after.measured - before.measured,
        min_ns=max(buckets[0][0], after.min_ns) if buckets else 0.0,
        max_ns=min(buckets[-1][1], after.max_ns) if buckets else 0.0,
        buckets=buckets,
        nmissed=after.nmissed - before.nmissed,
        left=after.left - before.left,
        nested=after.nested.plus(before.nested, -1) if after.nested and before.nested else after.nested,
        cpu=after.cpu - before.cpu if after.cpu and before.cpu else after.cpu,
        taken=after.taken.plus(before.taken, -1) if after.taken and before.taken else after.taken,
    )


def _buckets_since(after: Sequence[Bucket], before: Sequence[Bucket]) -> tuple[Bucket, ...]:
    found, at = [], 0
    for low, high, count in after:
        near = _SAME * min(high - low, max(abs(low) / 64, 1.0))  # of one without an end its width says nothing
        while at < len(before) and before[at][0] < low - near:
            at += 1
        earlier = before[at][2] if at < len(before) and abs(before[at][0] - low) <= near else 0
        if count > earlier:
            found.append((low, high, count - earlier))
    return tuple(found)


def _result_since(after: AggregationResult, before: AggregationResult | None) -> AggregationResult:
    """Return what was added; keys to which nothing was added are left out."""
    if before is None:
        return after
    entries = {key: _cell_since(cell, before.entries.get(key)) for key, cell in after.entries.items()}
    kept = {key: cell for key, cell in entries.items() if cell.count}
    return replace(after, entries=kept, dropped=after.dropped - before.dropped)


def _cell_since(after: CellValue, before: CellValue | None) -> CellValue:
    """Return what was added to a cell; the extremes of what has no buckets are those since the beginning."""
    if before is None or after.count < before.count:  # the table was cleared
        return after
    buckets = _buckets_since(after.buckets, before.buckets)
    return CellValue(
        after.count - before.count,
        _difference(after.sum, before.sum),
        int(buckets[0][0]) if buckets and after.min is not None else after.min,
        min(int(buckets[-1][1]) - 1, after.max) if buckets and after.max is not None else after.max,
        _difference(after.squares, before.squares),
        buckets,
        after.kind,
    )


def _difference(after: int | None, before: int | None) -> int | None:
    return after if after is None or before is None else after - before
