"""What happens in functions as numbers over time: how often they are called, how long threads are in them, how many."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import UsageError

if TYPE_CHECKING:
    from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot

LEFT, NESTED, UNBEGUN = "left", "nested", "ended without a beginning"
"""What regions and calls that handlers measure have besides their times: how often threads came to a beginning again
without an end, or deeper in the stack before the end, and to an end without a beginning."""
Keys = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured of a function in each interval; KernInst's metrics in today's words."""

    name: str
    unit: str
    """What its numbers count."""
    number: "Callable[[FunctionTiming, float], float]"
    """Returns the number of a function from its calls in an interval of some seconds."""
    needs_cpu_time: bool = False
    """Whether calls have to be measured by the clock of processors, too."""
    counts: bool = False
    """Whether it is how often calls are made, and not how long they take."""
    arm: Callable[[Any, Sequence[Any]], object] | None = None
    """Places handlers of its own in a session, at some specs: they add up values in the aggregation of its name, by
    ``func``, and the sum of a function is its timing's ``measured``."""

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def of(self, timing: "FunctionTiming", seconds: float) -> float | None:
        """Return the number of a function in an interval of some seconds; None where there is none."""
        return self.number(timing, seconds) if seconds else None


def _wall(timing: "FunctionTiming") -> float:
    """Return the seconds that threads were in a function, together: of recursion the outermost call."""
    wall = timing.nested.outermost_ns if timing.nested else timing.sum_ns
    return max(wall + timing.open_ns + timing.running_ns, 0.0) / 1e9


def _off(timing: "FunctionTiming") -> float:
    """Return the seconds of calls that have ended that were on no processor."""
    return timing.cpu.off_ns / 1e9 if timing.cpu else 0.0


METRICS = {
    each.name: each
    for each in (
        Metric("calls", "calls", lambda timing, _: float(timing.count), counts=True),  # that have ended
        Metric("throughput", "calls/s", lambda timing, seconds: timing.count / seconds, counts=True),
        Metric("wall", "s", lambda timing, _: _wall(timing)),
        Metric("concurrency", "threads", lambda timing, seconds: _wall(timing) / seconds),
        Metric("cpu", "s", lambda timing, _: timing.cpu.cpu_ns / 1e9 if timing.cpu else 0.0, needs_cpu_time=True),
        Metric("off", "s", lambda timing, _: _off(timing), needs_cpu_time=True),
        Metric("waiting", "threads", lambda timing, seconds: _off(timing) / seconds, needs_cpu_time=True),
    )
}
"""All metrics by their names; those that are added here are known to ``metric --of``, too."""


def metric_named(name: str) -> Metric:
    """Return the metric of a name; raise ``UsageError`` where there is none, as of one that a program has added."""
    if name not in METRICS:
        raise UsageError(f"there is no metric {name} here")
    return METRICS[name]


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one function, an interval after the other."""

    spec: str
    module: str
    function: str
    value: float | None
    """The number over all the time; of ``calls``, ``wall``, ``cpu`` and ``off`` it is their sum."""
    points: tuple[tuple[float, float], ...]
    """For each interval the seconds at its end, from the beginning of the first one, and its number."""
    keys: Keys = ()
    """By what it is told apart from others of the function."""

    @property
    def values(self) -> list[float]:
        """The numbers alone."""
        return [value for _, value in self.points]


def shown_keys(keys: Keys) -> str:
    """Return by what something is told apart, as text."""
    return "".join(f" {name}={value}" for name, value in keys)


def times_of(snapshot: "Snapshot", name: str) -> int:
    """Return how often ``LEFT``, ``NESTED`` or ``UNBEGUN`` was the case."""
    return sum(each.total.count for each in snapshot.aggregations if each.name == name)


def points_of(metric: Metric, interval: "Snapshot") -> dict[tuple[str, int], float]:
    """Return the number of each function in an interval, by its spec and address."""
    found = {(each.spec, each.address): metric.of(each, interval.duration_s) for each in interval.functions}
    return {key: value for key, value in found.items() if value is not None}


def series_of(metric: Metric, intervals: "Sequence[Snapshot]", together: "Snapshot") -> list[Series]:
    """Return the numbers of all functions, the highest ones first; 0 in intervals without a number."""
    seconds, points = 0.0, dict[tuple[str, int], list[tuple[float, float]]]()
    wanted = [(each.spec, each.address) for each in together.functions]
    for each in intervals:
        if not each.duration_s:  # the program had ended by the time of the interval before
            continue
        seconds += each.duration_s
        values = points_of(metric, each)
        for key in wanted:
            points.setdefault(key, []).append((seconds, values.get(key, 0.0)))
    found = [
        Series(
            each.spec,
            each.module,
            each.label or each.function,
            metric.of(each, together.duration_s),
            tuple(points.get((each.spec, each.address), ())),
            each.keys,
        )
        for each in together.functions
    ]
    return sorted(found, key=lambda each: -(each.value or 0.0))


def document_of(metric: Metric, intervals: "Sequence[Snapshot]", together: "Snapshot") -> dict[str, Any]:
    """Return the document of JSON with all that a metric was."""
    return {
        "targets": [each.as_json() for each in (together.target, *together.others)],
        "of": str(metric),
        "unit": metric.unit,
        "duration_s": round(together.duration_s, 6),
        "functions": [
            {
                "spec": each.spec,
                "module": each.module,
                "function": each.function,
                **key_of(each.keys),
                "value": None if each.value is None else round(each.value, 9),
                "series": [[round(seconds, 6), round(value, 9)] for seconds, value in each.points],
            }
            for each in series_of(metric, intervals, together)
        ],
        "left": times_of(together, LEFT),
        "nested": times_of(together, NESTED),
        "unbegun": times_of(together, UNBEGUN),
        "refused": [each.as_json() for each in together.refused],
        "warnings": list(together.warnings),
    }


def key_of(keys: Keys) -> dict[str, Any]:
    """Return the member of an object that says by what it is told apart, where it is."""
    return {"key": dict(keys)} if keys else {}
