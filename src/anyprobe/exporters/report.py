"""Reports: one HTML file with all that a run has found, which any browser opens without a network.

It has the heading, warnings, tables to sort and to search, histograms, heat maps over time, the flame graph, and what
was refused.
"""

import datetime as dt
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from anyprobe.core.printable import printable
from anyprobe.data.archives.runs import Run
from anyprobe.data.layouts.histogram import Bucket, by_powers_of_two, is_open
from anyprobe.data.snapshots.heatmaps import heat_maps
from anyprobe.data.snapshots.metrics import LEFT, NESTED, UNBEGUN, metric_named, series_of, shown_keys, times_of
from anyprobe.data.snapshots.processes import TargetInfo, busy
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot
from anyprobe.exporters import flame
from anyprobe.exporters.base import Measurement, Needs

MAP_COLUMNS, MAP_ROWS, MOST_MAPS = 240, 40, 40
MAP_CELLS = 40_000
"""Cells of all heat maps together; functions with less time have none beyond that."""
HISTOGRAMS = 1000
"""Functions that have a histogram, those with most time."""
CURVES = 1000
"""Rows that have a curve, those with the highest numbers."""
MOST_ROWS = 20_000
"""Rows of one table."""
_FUNCTION = ("function", "module", "calls", "total", "self", "mean", "min", "p50", "p90", "p99", "max", "±")
_OF_ONE_CALL = (6, 7, 8, 9, 10)
"""The columns with times of single calls, which are as precise as the clock."""
_SITE = ("place", "module", "hits", "missed", "strategy", "notes")
_VALUE = ("key", "values", "value", "min", "p50", "p90", "p99", "max")
_SAMPLED = ("function", "module", "self %", "total %", "samples")
_COVERED = ("module", "lines", "of", "blocks", "of", "functions", "of")


class Report:
    """Writes one HTML page."""

    name = "report"
    needs = Needs.ANYTHING
    holds_warnings = True
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the page."""
        stream.write(
            flame.page("report", document(found), style=("flame.css", "report.css"), script=("flame.js", "report.js"))
        )
        stream.flush()


def document(found: Measurement) -> dict[str, Any]:
    """Return what the page shows. Numbers are those of the JSON document."""
    one, run = found.together, found.run
    if run is not None and run.info.metric:
        tables = [_metric(one, run)]
    else:
        tables = [*_functions(one), *_sites(one), *_aggregations(one), *_samples(run), *_coverage(one)]
    return {
        "title": " ".join(dict.fromkeys(printable(each.shown_name) for each in (one.target, *one.others)))[:200],
        "facts": [[name, printable(text)] for name, text in _facts(one, run) if text],
        "warnings": [printable(each) for each in _warnings(one, run)],
        "tables": tables,
        "maps": _maps(run.series if run and not run.info.metric else ()),
        "flame": flame.profile(found) if one.tree else None,
        "refused": {
            "columns": ["spec", "address", "reason", "why"],
            "rows": [
                [printable(each.spec), f"{each.address:#x}", each.reason, printable(each.detail)]
                for each in one.refused[:MOST_ROWS]
            ],
            "left_out": max(len(one.refused) - MOST_ROWS, 0),
        },
    }


def _facts(one: Snapshot, run: Run | None) -> Iterable[tuple[str, str]]:
    info = run.info if run else None
    if info:
        yield "command", shlex.join(("anyprobe", *info.arguments)) if info.arguments else f"anyprobe {info.command}"
    for target in (one.target, *one.others)[:8]:
        ended = f", killed by {target.killed_by}" if target.killed_by else ""
        status = target.shell_status
        ended = f", ended with {status}" if status is not None and not ended else ended
        yield (
            "target",
            target.shown_name if target.kernel else f"{target.exe}{_called(target)} (pid {target.pid}{ended})",
        )
    if len(one.others) > 7:
        yield "target", f"and {len(one.others) - 7} more"
    yield "measured", f"{one.duration_s:.2f} s"
    pauses = [f"{name} {us / 1000:.2f} ms" for name, us in one.pause_us.items() if us]
    yield "paused", ", ".join(pauses)
    if one.probe_share is not None:
        yield "probes", f"took {100 * one.probe_share:.1f} % of the time that was measured; it is subtracted"
    if info:
        yield "machine", ", ".join(info.machine.get(name, "") for name in ("host", "kernel", "processor")).strip(", ")
        at = dt.datetime.fromtimestamp(info.written, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if info.written else ""
        yield "written", f"{at} by anyprobe {info.version}".strip()
        yield "sum of", f"{info.merged} runs" if info.merged else ""


def _called(target: TargetInfo) -> str:
    """Return the name by which a program was started, where its file has another one."""
    return "" if target.exe.endswith(f"/{target.shown_name}") else f", called {target.shown_name}"


def _warnings(one: Snapshot, run: Run | None) -> Iterable[str]:
    if run is not None:
        yield from run.warnings
        yield from run.profile.warnings if run.profile else ()
    yield from dict.fromkeys(one.warnings)
    yield from busy(one.waited, one.stolen, on_processors=one.on_processors)
    for name, causes in one.dropped.items():
        yield f"{name}: lost " + ", ".join(f"{count:,} ({cause})" for cause, count in causes.items())
    for result in one.aggregations:
        if result.dropped:
            yield f"{result.name}: {result.dropped:,} values had no room"
    for kind, count in one.missing.items():
        yield f"{count:,} times handlers could not do something: {kind}"
    if one.nmissed:
        yield f"{one.nmissed:,} hits were missed"
    yield from map(str, one.pending)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[list[Any]], kinds: str, by: int, *, note: str = ""
) -> dict[str, Any]:
    """Return a table.

    Args:
        title: what its rows are.
        columns: their headings.
        rows: cells, and after these a histogram where there is one.
        kinds: of each column, ``t``: text, ``n``: a number, ``d``: nanoseconds, ``f``: a number with a fraction,
            ``g``: one of four digits, ``c``: a curve.
        by: the column by which it is ordered at first.
        note: what is to be known of all rows.
    """
    left = max(len(rows) - MOST_ROWS, 0)
    return {
        "title": title, "columns": columns, "kinds": kinds, "by": by, "note": note, "rows": rows[:MOST_ROWS],
        "left_out": left,
    }  # fmt: skip


def _functions(one: Snapshot) -> Iterable[dict[str, Any]]:
    if not one.functions:
        return
    own = any(each.nested for each in one.functions)
    called = [each for each in one.functions if each.was_called]
    ordered = sorted(called, key=lambda each: -(each.nested.self_ns if each.nested else each.sum_ns))
    rows = [[*_times(each), _histogram(each.buckets) if at < HISTOGRAMS else None] for at, each in enumerate(ordered)]
    step = f"the clock steps by {one.clock_step_ns:.3g} ns: shorter times cannot be told apart"
    notes = (
        _silent(len(one.functions) - len(called), "function", "called"),
        "" if all(each.complete for each in called) else "* not all calls of the function were timed",
        step if one.clock_step_ns else "",
    )
    note = "; ".join(filter(None, notes))
    table = _table("Functions", _FUNCTION, rows, "ttnddddddddd", 4 if own else 3, note=note)
    yield table | {"step": one.clock_step_ns, "steps": _OF_ONE_CALL}


def _silent(count: int, noun: str, done: str) -> str:
    """Return how many rows there are not, since there is nothing to say of them."""
    return f"{count:,} {noun}{'s were' if count > 1 else ' was'} not {done}" if count else ""


def _times(timing: FunctionTiming) -> list[Any]:
    numbers = timing.as_json()
    total = numbers.get("outermost_ns", numbers["sum_ns"])
    names = ("min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")
    mark = "" if timing.complete else " *"
    error, own_error = numbers.get("outermost_error_ns", numbers.get("error_ns")), numbers.get("self_error_ns")
    mean = _or_less(numbers["mean_ns"], numbers.get("error_ns", 0) / max(timing.count, 1))
    return [
        printable(timing.label or timing.function) + mark, printable(timing.shown_module), timing.count,
        _or_less(total, error) if timing.count else None, _or_less(numbers.get("self_ns"), own_error),
        mean, *(_rounded(numbers[name]) for name in names), error,
    ]  # fmt: skip


def _or_less(ns: float | None, error: float | None) -> Any:  # noqa: ANN401 - a cell
    """Return a time; of one below its error also what it is less than, which is what is shown."""
    return _rounded(ns) if ns is None or not error or ns >= error else [ns, round(max(ns, 0.0) + error, 3)]


def _histogram(buckets: Sequence[Bucket]) -> list[float]:
    """Return the rows of a histogram: the upper end of each, a power of two, and its count, one after the other.

    What lies below zero has the end 0, and what lies beyond all others the end of that.
    """
    beyond = [each for each in buckets if is_open(each) or each[0] < 0]
    rows = by_powers_of_two([each for each in buckets if each not in beyond])
    found = [(high, count) for _, high, count in rows if count] + [(max(high, 0), count) for _, high, count in beyond]
    return [number for each in sorted(found) for number in each]


def _rounded(ns: float | None) -> float | None:
    """Return nanoseconds as they are shown: with a fraction only where three digits have one."""
    return ns if ns is None or ns < 10_000 else round(ns)


def _sites(one: Snapshot) -> Iterable[dict[str, Any]]:
    if one.sites:
        hit = [each for each in one.sites if each.hits or each.nmissed or not each.armed]
        rows = [
            [
                _place(each),
                printable(each.shown_module),
                each.hits,
                each.nmissed,
                each.strategy,
                ", ".join(_notes(each)),
            ]
            for each in sorted(hit, key=lambda each: -each.hits)
        ]
        yield _table("Hits", _SITE, rows, "ttnntt", 2, note=_silent(len(one.sites) - len(hit), "place", "hit"))


def _place(site: SiteResult) -> str:
    name = printable(site.label or site.function)
    if site.kind in {"entry", "usdt"}:
        return name
    return f"{name}%{site.kind}" + (f" +{site.offset:#x}" if not site.folded_sites else "")


def _notes(site: SiteResult) -> list[str]:
    return [printable(each) for each in site.notes] + ([] if site.armed else ["disarmed"])


def _aggregations(one: Snapshot) -> Iterable[dict[str, Any]]:
    for result in one.aggregations:
        rows: list[list[Any]] = []
        for key, cell in reversed(result.ordered()):
            parts = " ".join(f"{name}={part}" for name, part in zip(result.by, key, strict=False)) or "all"
            numbers = [cell.count, cell.value, cell.min, cell.p50, cell.p90, cell.p99, cell.max]
            rows.append([printable(parts), *numbers, _histogram(cell.buckets) if len(rows) < HISTOGRAMS else None])
        kinds = "tn" + ("d" if result.name.endswith("_ns") and result.kind not in {"count", "hist"} else "n")
        kinds += ("d" if result.name.endswith("_ns") else "n") * 5
        yield _table(f"{printable(result.name)} ({result.kind})", _VALUE, rows, kinds, 1)


def _samples(run: Run | None) -> Iterable[dict[str, Any]]:
    if run is None or run.profile is None:
        return
    every = max(run.profile.samples, 1)
    rows = [
        [
            printable(each.function), printable(each.shown_module), 100 * each.self_samples / every,
            100 * each.total_samples / every, each.total_samples,
        ]
        for each in run.profile.functions
    ]  # fmt: skip
    what = f"{run.profile.samples:,} samples at {run.profile.hz} Hz, {run.profile.processor_s:.2f} s on processors"
    yield _table("Samples", _SAMPLED, rows, "ttffn", 2, note=f"{what}; {run.profile.lost:,} lost")


def _metric(one: Snapshot, run: Run) -> dict[str, Any]:
    """Return the table of a metric: after each row its curve, as seconds and numbers one after the other."""
    metric = metric_named(run.info.metric)
    found = series_of(metric, run.series, one)
    keyed = any(each.keys for each in found)
    rows: list[list[Any]] = []
    for each in found:
        curve = [number for point in each.points for number in (round(point[0], 3), float(f"{point[1]:.6g}"))]
        extremes = (min(each.values, default=None), max(each.values, default=None))
        numbers = [each.value, *extremes, curve if len(rows) < CURVES else None]
        keys = [printable(shown_keys(each.keys).strip())] if keyed else []
        rows.append([printable(each.function), printable(each.module), *keys, *numbers])
    notes = [f"{times:,} times {name}" for name in (LEFT, NESTED, UNBEGUN) if (times := times_of(one, name))]
    columns = ("function", "module", *(["by"] * keyed), metric.unit, "least", "most", "over time")
    kinds = "tt" + "t" * keyed + "gggc"
    table = _table(str(metric).capitalize(), columns, rows, kinds, kinds.index("g"), note="; ".join(notes))
    return table | {"unit": metric.unit}


def _coverage(one: Snapshot) -> Iterable[dict[str, Any]]:
    if one.coverage is not None:
        rows: list[list[Any]] = []
        for module in one.coverage.modules:
            tallies = (module.lines, module.blocks, module.entered)
            rows.append([printable(module.name), *(part for each in tallies for part in (each.covered, each.total))])
        yield _table("Coverage", _COVERED, rows, "tnnnnnn", 1)


def _maps(series: Sequence[Snapshot]) -> dict[str, Any]:
    found, more = heat_maps(series, columns=MAP_COLUMNS, most_rows=MAP_ROWS, most=MOST_MAPS)
    shown: list[dict[str, Any]] = []
    cells = 0
    for each in found:
        cells += len(each.cells)
        if shown and cells > MAP_CELLS:
            break
        shown.append(
            {
                "name": printable(each.name), "module": printable(each.module), "time": each.is_time,
                "edges": [round(at, 3) for at in each.edges], "rows": [[*map(_finite, row)] for row in each.rows],
                "cells": [number for (column, row), count in each.cells.items() for number in (column, row, count)],
            }
        )  # fmt: skip
    return {"shown": shown, "left_out": len(found) - len(shown) + more}


def _finite(bound: float) -> float:
    return max(float(f"{bound:.6g}"), -1e300)


EXPORTER = Report()
