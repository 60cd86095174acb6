"""What handlers have counted: a table for each aggregation of numbers, bars for each key of a distribution."""

from collections.abc import Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anyprobe.data import histogram
from anyprobe.data.results import AggregationResult, CellValue, Key, MapResult
from anyprobe.data.snapshot import Snapshot
from anyprobe.reports.heading import print_heading, print_refusals
from anyprobe.reports.histogram import bar, print_functions, with_tail_folded
from anyprobe.reports.quantities import counted
from anyprobe.reports.table import print_sites

T = TypeVar("T")
DISTRIBUTIONS = frozenset({"quantize", "lquantize", "hist"})
_MISSES = {
    "fault": "reads of bad addresses",
    "abandoned": "runs that a missing value has ended",
    "division": "divisions by zero",
}
_OPEN_BELOW, _OPEN_ABOVE = -(2.0**63), 2.0**64


def print_aggregations(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the report of ``hist`` and ``script``; ``top`` limits the keys of each aggregation unless 0.

    The largest come last, as in DTrace: next to the prompt. What a script has timed is shown, too, and where it
    aggregates nothing, how often each of its sites was hit.
    """
    hits = counted(snapshot.hits, "hit")
    several = f"{counted(len(snapshot.aggregations), 'aggregation')}, " if snapshot.aggregations else ""
    print_heading(snapshot, console, several + hits)
    for result in snapshot.aggregations:
        print_aggregation(result, console, top)
    for held in snapshot.maps:
        print_map(held, console, top)
    if snapshot.functions:
        print_functions(snapshot, console, top)
    if snapshot.sites and not snapshot.aggregations and not snapshot.maps:
        print_sites(snapshot, console, top)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def print_losses(snapshot: Snapshot, console: Console) -> None:
    """Print what handlers have lost, and what they could not do."""
    lost = [
        f"{name}: {counted(count, 'loss', 'losses')} ({cause})"
        for name, causes in snapshot.dropped.items()
        for cause, count in causes.items()
    ]
    lost += [f"{_MISSES.get(kind, kind)}: {count:,}" for kind, count in snapshot.missing.items() if count]
    if snapshot.nmissed:
        lost.append(
            f"{counted(snapshot.nmissed, 'hit')} ran no handler: inside of another one, or where it had no room"
        )
    if lost:
        console.print()
    for text in lost:
        console.print(escape(text), style="yellow", soft_wrap=True)


def print_aggregation(result: AggregationResult, console: Console, top: int = 0) -> None:
    """Print one aggregation."""
    console.print()
    scale = f", divided by {result.factor:,}" if result.factor != 1 else ""
    console.print(f"[bold]{escape(result.name)}[/bold] ({result.kind}{scale})", soft_wrap=True)
    shown = _last(result.ordered(), top, "smaller one", console)
    if not shown:
        console.print("  nothing was counted", style="dim")
    elif result.kind in DISTRIBUTIONS:
        for key, cell in shown:
            _print_distribution(result, key, cell, console)
    else:
        console.print(_table(result, shown))
    if result.dropped:
        lost = f"{counted(result.dropped, 'value')} found no room for their key: give it a larger capacity"
        console.print(f"  {lost}", style="yellow", soft_wrap=True)


def _last(ordered: list[T], top: int, others: str, console: Console) -> list[T]:
    """Return what is to be shown, the last ones of many; say how many others there are."""
    shown = ordered[-top:] if top else ordered
    if len(shown) < len(ordered):
        console.print(f"… and {counted(len(ordered) - len(shown), others)}", style="dim", soft_wrap=True)
    return shown


def print_map(held: MapResult, console: Console, top: int = 0) -> None:
    """Print what a map held: keys and values, the largest last."""
    console.print()
    console.print(f"[bold]{escape(held.name)}[/bold] (map)", soft_wrap=True)
    shown = _last(held.ordered(), top, "other key", console)
    if not shown:
        console.print("  it is empty", style="dim")
        return
    table = Table(box=None, pad_edge=True, header_style="bold")
    for number in range(len(shown[0][0])):
        table.add_column(escape(held.by[number] if number < len(held.by) else ""), overflow="fold", style="cyan")
    table.add_column("value", justify="right", overflow="fold")
    for key, value in shown:
        plain = f"{value:,}" if type(value) is int else str(value)
        table.add_row(*(escape(str(part)) for part in key), escape(plain))
    console.print(table)


def _table(result: AggregationResult, shown: Sequence[tuple[Key, CellValue]]) -> Table:
    table = Table(box=None, pad_edge=True, header_style="bold")
    for name in result.by:
        table.add_column(escape(name), overflow="fold", style="cyan")
    columns = [result.kind] if result.kind in {"count", "sum"} else [result.kind, "count"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for key, cell in shown:
        numbers = [_number(result.value(cell) / result.factor), f"{cell.count:,}"][: len(columns)]
        table.add_row(*(escape(str(part)) for part in key), *numbers)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def _print_distribution(result: AggregationResult, key: Key, cell: CellValue, console: Console) -> None:
    if key:
        parts = " ".join(f"{name}={part}" for name, part in zip(result.by, key, strict=False)) or str(key)
        console.print(f"  [cyan]{escape(parts)}[/cyan]", soft_wrap=True)
    if not cell.count:
        console.print("  nothing was counted", style="dim")
        return
    mean = f", mean {cell.mean:,.1f}" if cell.mean is not None else ""
    extremes = f", min {cell.min:,}, max {cell.max:,}" if cell.min is not None and cell.max is not None else ""
    console.print(f"  {counted(cell.count, 'value')}{mean}{extremes}", style="dim", soft_wrap=True)
    rows = _rows(result.kind, cell.buckets)
    edges = [_edges(low, high) for low, high, _ in rows]
    width, highest = max(map(len, edges)), max(count for _, _, count in rows)
    for edge, (_, _, count) in zip(edges, rows, strict=True):
        drawn = f"[green]{bar(count / highest)}[/green]"
        console.print(f"  {edge:>{width}} {_number(count / result.factor):>14} {drawn}", soft_wrap=True)


def _rows(kind: str, buckets: Sequence[histogram.Bucket]) -> list[histogram.Bucket]:
    """Return the buckets for the eye: those of a log-linear histogram are too many."""
    if kind != "hist":
        return list(buckets)
    # those at both ends hold all that is beyond, so they are no power of two
    ends = [bucket for bucket in buckets if bucket[0] < 0], [bucket for bucket in buckets if bucket[1] >= _OPEN_ABOVE]
    between = [bucket for bucket in buckets if bucket not in (*ends[0], *ends[1])]
    return [*ends[0], *with_tail_folded(histogram.by_powers_of_two(between)), *ends[1]]


def _edges(low: float, high: float) -> str:
    if low <= _OPEN_BELOW:
        return f"below {high:,.0f}"
    if high >= _OPEN_ABOVE:
        return f"from {low:,.0f}"
    return f"{low:,.0f}" if high - low == 1 else f"{low:,.0f} … {high - 1:,.0f}"
