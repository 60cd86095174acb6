"""Functions as a screen shows them that is drawn anew each second: chosen, in an order, in few columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from anyprobe.data.findings.calltree import Calls, by_caller
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.reports.quantities import duration, rate
from anyprobe.reports.timings import mean_of, percentile, total_ns

ORDERS: dict[str, Callable[[FunctionTiming], float | None]] = {
    "calls": lambda timing: timing.count,
    "self": lambda timing: timing.nested.self_ns if timing.nested else 0.0,
    "total": total_ns,
    "mean": lambda timing: timing.mean_ns,
    "p99": lambda timing: timing.p99_ns,
    "name": lambda timing: None,  # noqa: ARG005 - by what follows
}
"""What functions may be ordered by, the highest first."""
COLUMNS = {"calls/s": 11, "self %": 7, "total %": 7, "mean": 10, "p99": 10}
"""The columns of numbers, and how wide they are."""
NAME, MODULE = 16, 12
"""The least columns of a function's name, and the most of a module's."""


def key_of(timing: FunctionTiming) -> str:
    """Return what tells a function from all others."""
    return f"{timing.spec} {timing.address:x}"


def chosen(last: Snapshot, together: Snapshot, order: str, pattern: str) -> list[FunctionTiming]:
    """Return the functions of an interval in their order: those that were ever called, and those that are disarmed.

    Args:
        last: the interval.
        together: everything since the beginning.
        order: one of ``ORDERS``.
        pattern: a part of the name, or a glob of all of it; with the module before a colon.
    """
    known = {key_of(each) for each in together.functions if each.was_called or not is_armed(each)}
    found = [each for each in last.functions if key_of(each) in known and matches(each, pattern)]
    number = ORDERS[order]
    return sorted(found, key=lambda each: (-(number(each) or 0.0), each.shown_module, name_of(each)))


def matches(timing: FunctionTiming, pattern: str) -> bool:
    """Return whether a function is one that a pattern means."""
    module, colon, function = pattern.rpartition(":")
    wanted = [(function, name_of(timing)), (module if colon else "", timing.shown_module)]
    return all(
        fnmatchcase(name, part) if set("*?[") & set(part) else part.lower() in name.lower() for part, name in wanted
    )


def name_of(timing: FunctionTiming) -> str:
    """Return what tables call a function."""
    return timing.label or timing.function


def is_armed(timing: FunctionTiming) -> bool:
    """Return whether calls are counted now."""
    return not timing.places or timing.places[0].armed


def cells_of(timing: FunctionTiming, seconds: float, step: float) -> list[str]:
    """Return the text of each column; shares are of the time that has passed, of all threads together."""
    if not timing.count:
        return ["-"] * len(COLUMNS)
    own = timing.nested.self_ns if timing.nested else 0.0
    return [
        rate(timing.count, seconds),
        share(own, seconds),
        share(total_ns(timing), seconds),
        mean_of(timing, step),
        percentile(timing, 0.99, step),
    ]


def share(ns: float, seconds: float) -> str:
    """Return a time in percent of the time that has passed."""
    return f"{max(ns, 0.0) / seconds / 1e7:.1f}" if seconds > 0 else "-"


def only(series: Iterable[Snapshot], wanted: FunctionTiming) -> list[Snapshot]:
    """Return intervals with nothing but one function."""
    key = key_of(wanted)
    return [
        replace(each, functions=tuple(one for one in each.functions if key_of(one) == key), aggregations=())
        for each in series
    ]


def neighbours(together: Snapshot, wanted: FunctionTiming) -> tuple[list[Calls], list[Calls]]:
    """Return who called a function, and what it called, of the functions that are timed, the longest first."""
    names = {wanted.function, name_of(wanted)}
    calls = by_caller(together.tree)
    callers = [each for each in calls if each.function in names and each.module == wanted.module]
    callees = [each for each in calls if each.caller in names and each.caller_module == wanted.module]
    return callers, callees


def call_cells(calls: Calls, step: float) -> list[str]:
    """Return the number of some calls, their time and their own."""
    return [f"{calls.count:,}", duration(max(calls.sum_ns, 0.0), step), duration(max(calls.self_ns, 0.0), step)]


def per_second(series: Sequence[Snapshot]) -> list[float]:
    """Return the calls per second in each interval."""
    return [sum(one.count for one in each.functions) / each.duration_s if each.duration_s else 0.0 for each in series]
