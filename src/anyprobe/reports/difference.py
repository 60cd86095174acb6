"""What has changed from one run to another, as a table: what changed most first."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyprobe.data.archives.differences import Change, Difference
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports import timings
from anyprobe.reports.heading import name_of
from anyprobe.reports.quantities import counted, duration, number, rate

if TYPE_CHECKING:
    from rich.console import Console

ARROW = "→"
SAME = "≈"
"""Before a change that is less than the error of what it is between."""
_NOT_THERE = "-"
_LEFT_OUT_FIRST = ("least", "most", "p50", "p99", "total %", "module", "time/s", "time", "calls/s", "calls")


def print_difference(found: Difference, console: "Console", top: int = 0) -> None:
    """Print both runs, then a table for each kind of things; ``top`` limits the rows of each unless 0."""
    for which, snapshot in (("before", found.before), ("after", found.after)):
        console.print(f"{which}: {_run(snapshot)}", soft_wrap=True)
    if found.metric is not None:
        console.print(f"{found.metric}, in {found.metric.unit}", soft_wrap=True)
    for kind, changes in found.changes.items():
        changed = [each for each in changes if any(map(_counted, (each.before, each.after)))]
        shown = changed[:top] if top else changed
        if not shown:
            continue
        columns = _COLUMNS[kind](shown, found.whole)
        fitted = timings.fitting(columns, console.width, _LEFT_OUT_FIRST)
        console.print()
        console.print(timings.table_of([name for name in fitted if name not in {"function", "module"}], fitted))
        if len(shown) < len(changed):
            more = counted(len(changed) - len(shown), "more row")
            console.print(f"… and {more}; --top 0 shows all", style="dim", soft_wrap=True)
        silent = len(changes) - len(changed)
        if silent:
            console.print(f"{counted(silent, 'row')} with nothing in either run", style="dim", soft_wrap=True)
        if any(cell.startswith(SAME) for cell in columns["change"]):
            text = f"{SAME} the means differ by less than the error of what is subtracted for the probes"
            console.print(text, style="dim", soft_wrap=True)
    if found.coverage is not None:
        from anyprobe.reports import coverage

        console.print()
        coverage.print_difference(found.after, console, top)


def _run(snapshot: Snapshot) -> str:
    return f"{name_of(snapshot.target)}, {snapshot.duration_s:.2f} s"


def _counted(numbers: object) -> bool:
    return isinstance(numbers, dict) and any(numbers.values())


def _pairs(changes: Sequence[Change], name: str, text: Callable[[float], str]) -> list[str]:
    """Return a column with a number before and after; of which nothing is known there is a dash."""
    rows = [[_NOT_THERE if each is None else text(each) for each in change.of(name)] for change in changes]
    left, right = (max(len(row[at]) for row in rows) for at in (0, 1))
    return [f"{one.rjust(left)} {ARROW} {other.rjust(right)}" for one, other in rows]


def _times(changes: Sequence[Change], whole: bool) -> dict[str, list[str]]:
    return {
        "change": [_change(each, "mean_ns") for each in changes],
        "mean": _pairs(changes, "mean_ns", duration),
        "p50": _pairs(changes, "p50_ns", duration),
        "p99": _pairs(changes, "p99_ns", duration),
        **(
            {"calls": _pairs(changes, "calls", number)} if whole else {"calls/s": _pairs(changes, "calls_per_s", _rate)}
        ),
        **(
            {"time": _pairs(changes, "time_ns", duration)}
            if whole
            else {"time/s": _pairs(changes, "time_per_s", duration)}
        ),
        **_names(changes),
    }


def _sites(changes: Sequence[Change], whole: bool) -> dict[str, list[str]]:
    return {
        "change": [_change(each, "hits" if whole else "hits_per_s") for each in changes],
        "hits/s": _pairs(changes, "hits_per_s", _rate),
        "hits": _pairs(changes, "hits", number),
        **_names(changes),
    }


def _samples(changes: Sequence[Change], whole: bool) -> dict[str, list[str]]:  # noqa: ARG001 - as others
    return {
        "change": [f"{each.difference('self_share'):+.1f}" for each in changes],
        "self %": _pairs(changes, "self_share", lambda each: f"{each:.1f}"),
        "total %": _pairs(changes, "total_share", lambda each: f"{each:.1f}"),
        **_names(changes),
    }


def _aggregations(changes: Sequence[Change], whole: bool) -> dict[str, list[str]]:  # noqa: ARG001 - as others
    return {
        "change": [_change(each, "count") for each in changes],
        "values": _pairs(changes, "count", number),
        "value": _pairs(changes, "value", number),
        "p50": _pairs(changes, "p50", number),
        "p99": _pairs(changes, "p99", number),
        **_names(changes),
    }


def _metrics(changes: Sequence[Change], whole: bool) -> dict[str, list[str]]:  # noqa: ARG001 - as others
    columns = {"value": "value", "least": "min", "most": "max"}
    return {
        "change": [_change(each, "value") for each in changes],
        **{heading: _pairs(changes, name, "{:,.4g}".format) for heading, name in columns.items()},
        **_names(changes),
    }


def _rate(number_per_s: float) -> str:
    return rate(round(number_per_s * 1000), 1000)


_COLUMNS = {
    "functions": _times, "sites": _sites, "samples": _samples, "aggregations": _aggregations, "metrics": _metrics,
}  # fmt: skip


def _names(changes: Sequence[Change]) -> dict[str, list[str]]:
    modules = [each.module for each in changes]
    return {"function": [each.name for each in changes], **({"module": modules} if any(modules) else {})}


def _change(change: Change, name: str) -> str:
    """Return by what part a number has grown, in per cent; that it is new or gone, where it is in one run only."""
    before, after = change.of(name)
    if not before or not after:
        return "new" if after else "gone" if before else _NOT_THERE
    text = f"{100 * (after / before - 1):+.1f} %" if after < 10 * before else f"{after / before:.0f}-fold"
    is_same = name == "mean_ns" and change.error is not None and abs(after - before) < change.error
    return f"{SAME} {text}" if is_same else text
