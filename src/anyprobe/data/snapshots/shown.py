"""What Python shows of results: one line in a terminal, tables in a notebook and for other libraries."""

import importlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from anyprobe.core.errors import UsageError
from anyprobe.core.printable import printable
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

SHOWN_ROWS = 20
"""Rows of a table in a notebook."""
PLAIN = (str, int, float, bool, type(None))
"""What a cell of a table may be."""
Row = dict[str, Any]
_IN_NOTEBOOKS = {
    "functions": ("function", "module", "count", "sum_ns", "self_ns", "mean_ns", "p50_ns", "p99_ns", "max_ns"),
    "sites": ("function", "module", "kind", "hits", "nmissed", "strategy"),
}


def line_of(value: Snapshot | FunctionTiming | SiteResult) -> str:
    """Return what a result is, in one line."""
    if isinstance(value, Snapshot):
        return _line_of_snapshot(value)
    return _line_of_function(value) if isinstance(value, FunctionTiming) else _line_of_site(value)


def page_of(value: Snapshot | FunctionTiming | SiteResult) -> str:
    """Return what notebooks show: the line, and of snapshots the busiest rows of each table."""
    parts = [f"<p>{_html(line_of(value))}</p>"]
    for title, rows in _tables(value) if isinstance(value, Snapshot) else ():
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{_html(name)}</th>" for name in names)
        lines = ["".join(_cell(row.get(name)) for name in names) for row in rows[:SHOWN_ROWS]]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        parts.append(f"<p><b>{_html(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f"<p>… and {len(rows) - SHOWN_ROWS:,} more</p>"] if len(rows) > SHOWN_ROWS else []
    return "".join(parts)


def _line_of_snapshot(found: Snapshot) -> str:
    """Return what a snapshot has."""
    pid = f" (pid {found.target.pid})" if not found.target.kernel else ""
    more = f" and {len(found.others)} more" if found.others else ""
    calls = sum(each.count for each in found.functions)
    facts = [
        f"{found.hits:,} hits at {len(found.sites):,} sites" if found.sites or not found.functions else "",
        f"{calls:,} calls of {len(found.functions):,} functions" if found.functions else "",
        f"{len(found.aggregations):,} aggregations" if found.aggregations else "",
        f"{len(found.refused):,} refused" if found.refused else "",
        f"{len(found.warnings):,} warnings" if found.warnings else "",
    ]
    return (
        f"Snapshot of {found.target.shown_name}{pid}{more}: {found.duration_s:.2f} s, {', '.join(filter(None, facts))}"
    )


def _tables(found: Snapshot) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables that a notebook shows of a snapshot, the busiest rows first."""
    for name, order in (("functions", "sum_ns"), ("sites", "hits")):
        if getattr(found, name):
            rows = sorted(rows_of(found, name), key=lambda row: -row[order])
            yield name, [{each: row[each] for each in _IN_NOTEBOOKS[name] if each in row} for row in rows]
    for result in found.aggregations:
        yield result.name, rows_of(found, result.name)
    if found.refused:
        yield "refused", rows_of(found, "refused")
    if found.warnings:
        yield "warnings", [{"warning": each} for each in found.warnings]


def rows_of(found: Snapshot, of: str | None = None) -> list[Row]:
    """Return the rows of one table of a snapshot; see ``Tables.rows``."""
    results = {result.name: result for result in found.aggregations}
    names = ("functions", "sites", "buckets", "refused", "processes", "threads", *results)
    if of is None:
        of = next((name for name in ("functions", "sites", *results) if rows_of(found, name)), "sites")
    match of:
        case "functions":
            return [_plain(each.as_json()) for each in found.functions]
        case "sites":
            return [_plain(each.as_json()) for each in found.all_sites]
        case "refused":
            return [each.as_json() for each in found.refused]
        case "buckets":
            return [
                {"module": each.module, "function": each.function, "low_ns": low, "high_ns": high, "count": count}
                for each in found.functions
                for low, high, count in each.buckets
            ]
        case "processes":
            return [
                {"pid": process.pid, "generation": process.generation, "exe": process.exe, "spec": spec, "hits": hits}
                for process, by_spec in found.by_process.items()
                for spec, hits in by_spec.items()
            ]
        case "threads":
            return [
                {**each.as_json(), **_plain(timing.as_json())} for each in found.threads for timing in each.functions
            ]
        case name if name in results:
            numbers = ("count", "sum", "min", "max", "mean", "p50", "p90", "p99")
            by = results[name].by
            return [
                {**dict(zip(by, map(_part, key), strict=False)), **{each: getattr(cell, each) for each in numbers}}
                for key, cell in results[name].ordered()
            ]
    raise UsageError(f"there is no table of {of!r}; there are {', '.join(names)}")


def _line_of_function(timing: FunctionTiming) -> str:
    """Return how often a function was called, and how long that took."""
    name = f"{timing.label or timing.function} ({timing.shown_module})"
    numbers = {"mean": timing.mean_ns, "p50": timing.p50_ns, "p99": timing.p99_ns, "max": timing.max_ns}
    times = [f"{name} {ns:,.0f} ns" for name, ns in numbers.items() if timing.count and ns is not None]
    return ", ".join([f"{name}: {timing.count:,} calls", *times])


def _line_of_site(site: SiteResult) -> str:
    """Return where something was counted, and how often."""
    offset = f"+{site.offset:#x}" if site.offset else ""
    missed = f", {site.nmissed:,} missed" if site.nmissed else ""
    return f"{site.label or site.function}{offset} {site.kind} ({site.shown_module}): {site.hits:,} hits{missed}"


def _plain(document: Mapping[str, Any]) -> Row:
    return {name: value for name, value in document.items() if isinstance(value, PLAIN)}


def _part(value: int | str) -> int | str:
    return value if type(value) in {int, str} else str(value)


def _html(text: str) -> str:
    return escape(printable(text))


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td>{'' if value is None else _html(str(value))}</td>"


def library(name: str, extra: str = "") -> Any:  # noqa: ANN401 - a module
    """Return an optional library."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"{name} is not installed: pip install 'anyprobe[{extra or name}]'") from None
