"""Results as metrics of Prometheus: a bounded number of series, none of which ever goes back."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from anyprobe.core.printable import printable
from anyprobe.data.layouts.histogram import Bucket
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot
from anyprobe.exporters.monitoring.native import Exponential

BOUNDS = (*(factor * 10**power for power in range(2, 10) for factor in (1, 2.5, 5)), 1e10)
"""The upper bounds of buckets in nanoseconds, from 100 ns to 10 s."""
OTHER = ("other", "")
"""The function and module of the series of all functions that have none of their own."""
LABELS = ("function", "module")
Name = tuple[str, str]
Result = TypeVar("Result", FunctionTiming, SiteResult)


class Series:
    """Which functions have series of their own: a bounded number, each for ever.

    They are the busiest ones of the first look, then the first ones that are called. What is in ``other`` stays
    there: a counter that goes back is taken for one that has begun anew.
    """

    def __init__(self, most: int) -> None:
        """Have so many at the most, 0 for any number."""
        self._most = most
        self._names: dict[Name, Name] = {}

    def of(self, sums: "dict[Name, Result]", number: Callable[[Result], float]) -> "dict[Name, list[Result]]":
        """Return the functions of each series; ``number``: which are busy, 0 for those that were never called."""
        called = {name: each for name, each in sums.items() if number(each)}
        own = sum(name == series for name, series in self._names.items())
        for name in sorted(called.keys() - self._names.keys(), key=lambda name: (-number(called[name]), name)):
            has_room = not self._most or own < self._most
            self._names[name] = name if has_room else OTHER
            own += has_room
        found: dict[Name, list[Result]] = {}
        for name, each in called.items():
            found.setdefault(self._names[name], []).append(each)
        return found


class Cost(NamedTuple):
    """What probes cost and may cost, in percent of one CPU, and what became of those that were too dear."""

    cost: float
    limit: float
    out: int = 0
    removals: int = 0
    seconds_out: float = 0.0


class Durations(HistogramMetricFamily):
    """Histograms with bounds, and exponential ones of the same calls."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401 - those of families
        """Have none yet."""
        super().__init__(*arguments, **settings)
        self.exponential: dict[Name, Exponential] = {}


class Metrics(Collector):
    """What a scrape gets, made of the results at that moment."""

    def __init__(
        self, look: Callable[[], Snapshot], most: int, budget: Callable[[], Cost | None] = lambda: None
    ) -> None:
        """Have what ``look`` returns.

        Args:
            look: returns the results.
            most: so many functions have series of their own, 0 for all.
            budget: returns what probes cost and may cost, or None where there is no limit.
        """
        self._look, self._budget = look, budget
        self._timed, self._counted = Series(most), Series(most)
        self._highest: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()
        self._exponential: dict[Name, Exponential] = {}

    def describe(self) -> list[Metric]:
        """Return nothing: what is there is not known before the first look."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        snapshot = self._look()
        yield from _of_session(snapshot)
        budget = self._budget()
        if budget is not None:
            text = "What the probes of a program cost, estimated, as a share of one CPU; the dearest program."
            yield GaugeMetricFamily("anyprobe_overhead_ratio", text, value=budget.cost / 100)
            yield GaugeMetricFamily("anyprobe_overhead_limit_ratio", "What they may cost.", value=budget.limit / 100)
            yield GaugeMetricFamily(
                "anyprobe_probes_out", "Probes that are out as they cost too much.", value=budget.out
            )
            text = "How often a probe was taken out as it cost too much."
            yield CounterMetricFamily("anyprobe_probe_removals", text, value=self._grown(budget.removals, "removals"))
            text = "For how long probes were out as they cost too much, added up."
            yield CounterMetricFamily("anyprobe_probes_out_seconds", text, value=self._grown(budget.seconds_out, "out"))
        yield from self._times(snapshot.functions)
        yield from self._hits(snapshot.sites)

    def _grown(self, value: float, *key: str) -> float:
        """Return a number that only grows: nanoseconds of a tick are measured anew, by which times seem to go back."""
        self._highest[key] = max(value, self._highest.get(key, value))
        return self._highest[key]

    def _times(self, functions: Sequence[FunctionTiming]) -> Iterator[Metric]:
        durations = Durations("anyprobe_call_duration_seconds", "How long calls took that were timed.", labels=LABELS)
        missed = CounterMetricFamily(
            "anyprobe_calls_not_timed", "Calls that have ended and were not timed.", labels=LABELS
        )
        running = GaugeMetricFamily("anyprobe_calls_running", "Calls that have begun and not ended.", labels=LABELS)
        for name, every in self._timed.of(_by_name(functions), _calls).items():
            whole = every[0].merged(*every[1:]) if len(every) > 1 else every[0]
            found = [(le, self._grown(number, *name, le)) for le, number in buckets_of(whole.buckets, whole.count)]
            with self._lock:  # each scrape has a thread
                exponential = self._exponential.setdefault(name, Exponential())
                exponential.take(whole.buckets)
                durations.exponential[name] = exponential.copy()
            durations.add_metric(name, found, self._grown(whole.sum_ns / 1e9, *name))
            missed.add_metric(name, _not_timed(whole))
            running.add_metric(name, whole.in_flight)
        if functions:
            yield from (durations, missed, running)

    def _hits(self, sites: Sequence[SiteResult]) -> Iterator[Metric]:
        hits = CounterMetricFamily("anyprobe_hits", "Hits of probes.", labels=LABELS)
        missed = CounterMetricFamily("anyprobe_hits_missed", "Hits that were not counted.", labels=LABELS)
        for name, every in self._counted.of(_by_name(sites), lambda each: each.hits + each.nmissed).items():
            hits.add_metric(name, sum(each.hits for each in every))
            missed.add_metric(name, sum(each.nmissed for each in every))
        if sites:
            yield from (hits, missed)


def _by_name(results: Iterable[Result]) -> dict[Name, Result]:
    """Return the sums of what has one name: an address is in no label, as it is another one in each process."""
    found: dict[Name, Result] = {}
    for each in results:
        name = printable(each.label or each.function), printable(each.shown_module)
        found[name] = found[name].merged(each) if name in found else each
    return found


def _calls(timing: FunctionTiming) -> float:
    """Return the number of calls by which functions are chosen."""
    return timing.count + _not_timed(timing) + timing.in_flight


def _not_timed(timing: FunctionTiming) -> int:
    return timing.tail_exits + timing.learning + timing.nmissed + timing.left


def buckets_of(buckets: Sequence[Bucket], count: int) -> Sequence[tuple[str, float]]:
    """Return how many values are not above each bound; those of a bucket of the histogram count where its middle is."""
    counts = [0] * (len(BOUNDS) + 1)
    for low, high, number in buckets:
        middle = (low + high) / 2 if high < 1 << 63 else low
        counts[bisect_left(BOUNDS, middle)] += number
    sums = list(accumulate(counts))
    sums[-1] = max(count, sums[-1])
    return [(repr(bound / 1e9), number) for bound, number in zip(BOUNDS, sums, strict=False)] + [("+Inf", sums[-1])]


def _of_session(snapshot: Snapshot) -> Iterator[Metric]:
    up = GaugeMetricFamily("anyprobe_target_up", "Whether a process that is probed runs.", labels=("pid", "executable"))
    for each in (snapshot.target, *snapshot.others):
        up.add_metric((str(each.pid), printable(each.shown_name)), each.alive and each.exited is None)
    yield up
    paused = CounterMetricFamily(
        "anyprobe_target_paused_seconds", "How long threads stood still for the probes.", labels=("for",)
    )
    for what, us in snapshot.pause_us.items():
        paused.add_metric((what,), us / 1e6)
    yield paused
    yield GaugeMetricFamily("anyprobe_sites_refused", "Places that are not probed.", value=len(snapshot.refused))
