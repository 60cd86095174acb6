"""What has changed from one run to another, of functions, sites, samples and aggregations that either has."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar

from anyprobe.core.errors import UsageError
from anyprobe.core.quoting import shown_module
from anyprobe.data.aggregates.results import CellValue
from anyprobe.data.archives.runs import Run, different_builds
from anyprobe.data.findings.coverage import Coverage
from anyprobe.data.snapshots.metrics import Metric, Series, metric_named, series_of, shown_keys
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

Numbers = Mapping[str, float | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in both runs; its numbers have the same names in both."""

    name: str
    module: str
    before: Numbers | None
    """None: the first run does not have it."""
    after: Numbers | None
    error: float | None = None
    """Means that differ by less may be the same; None: that is not known."""

    def of(self, name: str) -> tuple[float | None, float | None]:
        """Return a number before and after."""
        return tuple(None if each is None else each.get(name) for each in (self.before, self.after))  # type: ignore[return-value]

    def difference(self, name: str) -> float:
        """Return by how much a number is more in the second run; what is not there is 0."""
        before, after = self.of(name)
        return (after or 0) - (before or 0)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        document: dict[str, Any] = {"name": self.name, "module": self.module}
        for which, numbers in (("before", self.before), ("after", self.after)):
            document[which] = numbers and {name: each and round(each, 9) for name, each in numbers.items()}
        return document if self.error is None else {**document, "mean_error_ns": round(self.error, 3)}


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs, and what has changed: of functions, sites, samples and aggregations, what changed most first."""

    before: Snapshot
    after: Snapshot
    changes: Mapping[str, Sequence[Change]]
    warnings: tuple[str, ...] = ()
    whole: bool = False
    """Whether both programs have run to their ends: then all their time is compared, and else that of each second."""
    coverage: Coverage | None = None
    """What ran in the second and not in the first."""
    metric: Metric | None = None
    """What the numbers are, where both runs are of ``metric``."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        document: dict[str, Any] = {
            name: {"target": each.target.as_json(), "duration_s": round(each.duration_s, 6)}
            for name, each in (("before", self.before), ("after", self.after))
        }
        document |= {kind: [each.as_json() for each in changes] for kind, changes in self.changes.items()}
        document |= self.coverage.as_json() if self.coverage is not None else {}
        document |= {"of": str(self.metric), "unit": self.metric.unit} if self.metric is not None else {}
        return document | {"whole": self.whole, "warnings": list(self.warnings)}


ORDER = {"samples": "self_share", "aggregations": "count", "metrics": "value"}
"""By which number's change things are ordered; functions by time, sites by hits, of each second or of whole runs."""


def difference(before: Run, after: Run) -> Difference:
    """Return what has changed from one run to another.

    Raises:
        UsageError: one has samples of stacks and the other has not, or they are of different metrics.
    """
    if before.info.metric != after.info.metric:
        kinds = [each.info.metric or each.info.command for each in (before, after)]
        raise UsageError(f"{kinds[0]} and {kinds[1]} are not compared: they are different numbers")
    metric = metric_named(before.info.metric) if before.info.metric else None
    if (before.profile is None) != (after.profile is None):
        raise UsageError("samples of stacks are not compared with counts or times")
    one, other = together(before), together(after)
    changed = [module for module, build in after.builds.items() if before.builds.get(module, build) != build]
    found: dict[str, Iterable[Change]] = {
        "functions": _paired(
            one.functions, other.functions, _function, one, other, _of_function, FunctionTiming.merged
        ),
        "sites": _paired(one.sites, other.sites, _site, one, other, _of_site, SiteResult.merged),
        "samples": _samples(before, after),
        "aggregations": _aggregations(one, other),
    }
    if metric is not None:
        found = {"metrics": _numbers(metric, (before, one), (after, other))}
    whole = one.target.is_over and other.target.is_over
    order = {**ORDER, "functions": "time_ns" if whole else "time_per_s", "sites": "hits" if whole else "hits_per_s"}
    changes = {
        kind: sorted(some, key=lambda each: (-abs(each.difference(order[kind])), each.name))
        for kind, some in ((kind, list(each)) for kind, each in found.items())
        if some
    }
    new = None
    if other.coverage is not None:
        new = other.coverage.beyond(one.coverage or Coverage())
    warnings = dict.fromkeys((*before.warnings, *after.warnings, *different_builds(changed)))
    return Difference(one, replace(other, coverage=new), changes, tuple(warnings), whole, new, metric)


def together(run: Run) -> Snapshot:
    """Return the results of all processes of a run; of samples their tree."""
    if run.profile is not None:
        return Snapshot(run.profile.targets[0], run.profile.duration_s, tree=run.profile.tree)
    return reduce(Snapshot.merge, run.snapshots)


def _paired(
    before: Iterable[T],
    after: Iterable[T],
    key: Callable[[T], Hashable],
    one: Snapshot,
    other: Snapshot,
    change: Callable[[T | None, T | None, float, float], Change],
    merged: Callable[[T, T], T],
) -> Iterator[Change]:
    """Yield what has changed of things that are the same by a key."""
    found: list[dict[Hashable, T]] = [{}, {}]
    for own, things in zip(found, (before, after), strict=True):
        for thing in things:
            own[key(thing)] = merged(own[key(thing)], thing) if key(thing) in own else thing
    for name in dict.fromkeys((*found[0], *found[1])):
        yield change(found[0].get(name), found[1].get(name), one.duration_s, other.duration_s)


def _function(timing: FunctionTiming) -> Hashable:
    return timing.spec, timing.module, timing.function


def _site(site: SiteResult) -> Hashable:
    return site.key


def _per_s(number: float, seconds: float) -> float | None:
    return number / seconds if seconds > 0 else None


def _of_function(before: FunctionTiming | None, after: FunctionTiming | None, was: float, now: float) -> Change:
    def numbers(timing: FunctionTiming | None, seconds: float) -> Numbers | None:
        if timing is None:
            return None
        own = timing.nested.self_ns if timing.nested else timing.sum_ns
        return {
            "calls": timing.count,
            "calls_per_s": _per_s(timing.count, seconds),
            "time_ns": own,
            "time_per_s": _per_s(own, seconds),
            "mean_ns": timing.mean_ns,
            "p50_ns": timing.p50_ns,
            "p99_ns": timing.p99_ns,
        }

    known = next(each for each in (after, before) if each is not None)
    errors = [each.taken.error_ns / each.count for each in (before, after) if each and each.taken and each.count]
    return Change(
        known.label or known.function, known.shown_module, numbers(before, was), numbers(after, now),
        sum(errors) if len(errors) == 2 else None,
    )  # fmt: skip


def _of_site(before: SiteResult | None, after: SiteResult | None, was: float, now: float) -> Change:
    known = next(each for each in (after, before) if each is not None)
    place = known.label or known.function
    if known.kind not in {"entry", "usdt"}:
        place += f"%{known.kind}" if known.kind == "return" or known.folded_sites else f"+{known.offset:#x}"

    def numbers(site: SiteResult | None, seconds: float) -> Numbers | None:
        return None if site is None else {"hits": site.hits, "hits_per_s": _per_s(site.hits, seconds)}

    return Change(place, known.shown_module, numbers(before, was), numbers(after, now))


def _numbers(metric: Metric, *runs: tuple[Run, Snapshot]) -> Iterator[Change]:
    """Yield the functions, and what a metric is of each: in all, and the least and the most of an interval."""
    found = [
        {(each.module, each.function + shown_keys(each.keys)): each for each in series_of(metric, run.series, whole)}
        for run, whole in runs
    ]
    for module, name in dict.fromkeys((*found[0], *found[1])):
        one, other = (_of_series(each.get((module, name))) for each in found)
        yield Change(name, shown_module(module), one, other)


def _of_series(series: Series | None) -> Numbers | None:
    if series is None:
        return None
    return {"value": series.value, "min": min(series.values, default=None), "max": max(series.values, default=None)}


def _samples(before: Run, after: Run) -> Iterator[Change]:
    """Yield the functions that samples have met, with their shares of all samples in per cent."""
    found: list[dict[tuple[str, str], dict[str, float | None]]] = []
    for run in (before, after):
        if run.profile is None:
            return
        counts: dict[tuple[str, str], list[int]] = {}
        for each in run.profile.functions:
            own = counts.setdefault((each.shown_module, each.function), [0, 0])
            own[0] += each.self_samples
            own[1] += each.total_samples
        every = max(run.profile.samples, 1)
        found.append(
            {
                name: {"samples": own, "self_share": 100 * own / every, "total_share": 100 * total / every}
                for name, (own, total) in counts.items()
            }
        )
    for module, function in dict.fromkeys((*found[0], *found[1])):
        yield Change(function, module, found[0].get((module, function)), found[1].get((module, function)))


def _aggregations(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    found: list[dict[tuple[str, str], CellValue]] = [
        {
            (result.name, " ".join(f"{name}={part}" for name, part in zip(result.by, key, strict=False))): cell
            for result in snapshot.aggregations
            for key, cell in result.entries.items()
        }
        for snapshot in (before, after)
    ]
    for name, key in dict.fromkeys((*found[0], *found[1])):
        before_it, after_it = (_of_cell(each.get((name, key))) for each in found)
        yield Change(f"{name} {key}".strip(), "", before_it, after_it)


def _of_cell(cell: CellValue | None) -> Numbers | None:
    if cell is None:
        return None
    return {"count": cell.count, "value": cell.value, "p50": cell.p50, "p99": cell.p99}
