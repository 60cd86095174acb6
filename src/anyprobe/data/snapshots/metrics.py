"""What happens in functions as numbers over time: how often they are called, how long threads are in them, how many."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot

LEFT, NESTED, UNBEGUN = "left", "nested", "ended without a beginning"
"""What regions and calls that handlers measure have besides their times: how often threads came to a beginning again
without an end, or deeper in the stack before the end, and to an end without a beginning."""
Keys = tuple[tuple[str, int | str], ...]


class Metric(StrEnum):
    """What is measured of a function in each interval; KernInst's metrics in today's words."""

    CALLS = "calls"
    """Calls that have ended."""
    THROUGHPUT = "throughput"
    """Calls that have ended, for each second."""
    WALL = "wall"
    """Seconds that threads were in it, together: of recursion the outermost call."""
    CONCURRENCY = "concurrency"
    """Threads that were in it, on average: ``WALL`` by the length of the interval."""
    CPU = "cpu"
    """Seconds of ``WALL`` that were on processors, of calls that have ended."""
    OFF = "off"
    """Seconds of ``WALL`` that were not, of calls that have ended."""
    WAITING = "waiting"
    """Threads that were in it and on no processor, on average."""

    @property
    def unit(self) -> str:
        """What its numbers count."""
        return _UNITS[self]

    @property
    def needs_cpu_time(self) -> bool:
        """Whether calls have to be measured by the clock of processors, too."""
        return self in {Metric.CPU, Metric.OFF, Metric.WAITING}

    @property
    def counts(self) -> bool:
        """Whether it is how often calls are made, and not how long they take."""
        return self in {Metric.CALLS, Metric.THROUGHPUT}

    def of(self, timing: FunctionTiming, seconds: float) -> float | None:
        """Return the number of a function in an interval of some seconds; None where there is none."""
        if not seconds:
            return None
        if self.needs_cpu_time:
            cpu_ns, off_ns = (0.0, 0.0) if timing.cpu is None else (timing.cpu.cpu_ns, timing.cpu.off_ns)
            return (cpu_ns if self is Metric.CPU else off_ns) / 1e9 / (seconds if self is Metric.WAITING else 1.0)
        if self.counts:
            return timing.count / (seconds if self is Metric.THROUGHPUT else 1)
        wall = timing.nested.outermost_ns if timing.nested else timing.sum_ns
        wall += timing.open_ns + timing.running_ns
        return max(wall, 0.0) / 1e9 / (seconds if self is Metric.CONCURRENCY else 1.0)


_UNITS = {
    Metric.CALLS: "calls", Metric.THROUGHPUT: "calls/s", Metric.WALL: "s", Metric.CONCURRENCY: "threads",
    Metric.CPU: "s", Metric.OFF: "s", Metric.WAITING: "threads",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one function, an interval after the other."""

    spec: str
    module: str
    function: str
    value: float | None
    """The number over all the time; of ``CALLS``, ``WALL``, ``CPU`` and ``OFF`` it is their sum."""
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


def times_of(snapshot: Snapshot, name: str) -> int:
    """Return how often ``LEFT``, ``NESTED`` or ``UNBEGUN`` was the case."""
    return sum(each.total.count for each in snapshot.aggregations if each.name == name)


def points_of(metric: Metric, interval: Snapshot) -> dict[tuple[str, int], float]:
    """Return the number of each function in an interval, by its spec and address."""
    found = {(each.spec, each.address): metric.of(each, interval.duration_s) for each in interval.functions}
    return {key: value for key, value in found.items() if value is not None}


def series_of(metric: Metric, intervals: Sequence[Snapshot], together: Snapshot) -> list[Series]:
    """Return the numbers of all functions, the highest ones first; 0 in intervals without a number."""
    seconds, points = 0.0, dict[tuple[str, int], list[tuple[float, float]]]()
    wanted = [(each.spec, each.address) for each in together.functions]
    for each in intervals:
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
