"""What handlers have counted: a table for each aggregation of numbers, bars for each key of a distribution."""

from collections.abc import Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from anyprobe.data.aggregates.results import AggregationResult, CellValue, Key, MapResult
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.data.snapshots.sums import total
from anyprobe.reports.distribution import (
    Distribution,
    Durations,
    Numbers,
    Scale,
    joined,
    percentiles,
    powers_of_two,
    print_facts,
    print_rows,
)
from anyprobe.reports.grid import key_text, print_grid
from anyprobe.reports.heading import learning_clause, print_heading, print_refusals, print_step, tail_clause
from anyprobe.reports.histogram import print_functions
from anyprobe.reports.losses import print_losses, print_unhandled
from anyprobe.reports.plain import escape
from anyprobe.reports.quantities import counted, duration, mean, number, tenths
from anyprobe.reports.table import print_sites

T = TypeVar("T")
DISTRIBUTIONS = frozenset({"quantize", "lquantize", "hist"})
NANOSECONDS = "_ns"
"""Aggregations whose names end so are of durations."""


def print_aggregations(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the report of ``hist`` and ``script``; ``top`` limits the keys of each aggregation unless 0.

    The largest come first, as in all tables. What a script has timed is shown, too, and where it
    aggregates nothing, how often each of its sites was hit.
    """
    calls, ended, others = _events(snapshot)
    hits = counted(others, "hit") if others or not calls else ""
    meaning = "not timed" if _has_times(snapshot) else "left out"
    print_heading(
        snapshot,
        console,
        ", ".join(each for each in (counted(calls, "call") if calls else "", hits) if each),
        "; ".join(filter(None, (tail_clause(snapshot, meaning), learning_clause(snapshot, meaning)))),
    )
    noun = "call" if calls and not others else "value"
    for result in snapshot.aggregations:
        print_aggregation(result, console, top, noun, snapshot.clock_step_ns)
    for held in snapshot.maps:
        print_map(held, console, top)
    if snapshot.functions:
        print_functions(snapshot, console, top)
    if snapshot.sites and not snapshot.aggregations and not snapshot.maps:
        print_sites(snapshot, console, top)
    if calls > ended:
        more = f"{counted(calls - ended, 'more call')} began than ended: what is under way has no result and no time"
        console.print(more, style="dim", soft_wrap=True)
    print_losses(snapshot, console)
    print_unhandled(snapshot, console)
    print_refusals(snapshot, console)


def _has_times(snapshot: Snapshot) -> bool:
    return bool(snapshot.functions) or any(each.name.endswith(NANOSECONDS) for each in snapshot.aggregations)


def _events(snapshot: Snapshot) -> tuple[int, int, int]:
    """Return how many calls began and ended where both ends are probed, and how many hits there were elsewhere."""
    entered, left = (
        {(site.module, site.function) for site in snapshot.sites if site.kind == kind} for kind in ("entry", "return")
    )
    both = entered & left
    paired = [site for site in snapshot.sites if site.kind in ("entry", "return")]
    paired = [site for site in paired if (site.module, site.function) in both]
    calls = total((site, site.hits) for site in paired if site.kind == "entry")
    both_ends = total((site, site.hits) for site in paired)
    return calls, both_ends - calls, snapshot.hits - both_ends


def print_aggregation(
    result: AggregationResult, console: Console, top: int = 0, noun: str = "value", step: float = 0.0
) -> None:
    """Print one aggregation; ``noun``: what one value stands for, ``step``: by how much the clock goes on at once."""
    console.print()
    scale = f", divided by {result.factor:,}" if result.factor != 1 else ""
    console.print(f"[bold]{escape(result.name)}[/bold] ({result.kind}{scale})", soft_wrap=True)
    shown, rest = _first(result.ordered(), top)
    if not shown:
        console.print("  nothing was counted", style="dim")
    elif result.kind in DISTRIBUTIONS:
        _print_distributions(result, shown, console, noun, step)
    else:
        console.print(_table(result, shown, step))
    _print_rest(rest, "smaller one", console)
    if result.dropped:
        lost = f"{counted(result.dropped, 'value')} found no room for their key: give it a larger capacity"
        console.print(f"  {lost}", style="yellow", soft_wrap=True)


def _first(ordered: list[T], top: int) -> tuple[list[T], int]:
    """Return what is to be shown, the largest first, and how many others there are."""
    shown = ordered[::-1][: top or None]
    return shown, len(ordered) - len(shown)


def _print_rest(rest: int, noun: str, console: Console) -> None:
    if rest:
        console.print(f"… and {counted(rest, noun)}; --top 0 shows all", style="dim", soft_wrap=True)


def print_map(held: MapResult, console: Console, top: int = 0) -> None:
    """Print what a map held: keys and values, the largest first."""
    console.print()
    console.print(f"[bold]{escape(held.name)}[/bold] (map)", soft_wrap=True)
    shown, rest = _first(held.ordered(), top)
    if not shown:
        console.print("  it is empty", style="dim")
        return
    table = Table(box=None, pad_edge=True, header_style="bold")
    for part in range(len(shown[0][0])):
        table.add_column(escape(held.by[part] if part < len(held.by) else ""), overflow="fold", style="cyan")
    table.add_column("value", justify="right", overflow="fold")
    for key, value in shown:
        plain = f"{value:,}" if type(value) is int else str(value)
        table.add_row(*(escape(str(part)) for part in key), escape(plain))
    console.print(table)
    _print_rest(rest, "other key", console)


def _table(result: AggregationResult, shown: Sequence[tuple[Key, CellValue]], step: float) -> Table:
    table = Table(box=None, pad_edge=True, header_style="bold")
    for name in result.by:
        table.add_column(escape(name), overflow="fold", style="cyan")
    columns = [result.kind] if result.kind in {"count", "sum"} else [result.kind, "count"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for key, cell in shown:
        numbers = [_value(result, cell, step), f"{cell.count:,}"][: len(columns)]
        table.add_row(*(escape(str(part)) for part in key), *numbers)
    return table


def _value(result: AggregationResult, cell: CellValue, step: float) -> str:
    """Return the number by which a key is shown: as a duration, if it is one."""
    value = cell.value or 0
    if result.factor != 1 or result.kind == "count" or not result.name.endswith(NANOSECONDS):
        return number(value if result.factor == 1 else value / result.factor)
    if result.kind == "avg":
        return mean(cell.sum or 0, cell.count, step)
    return duration(value, step)


def _print_distributions(
    result: AggregationResult, shown: Sequence[tuple[Key, CellValue]], console: Console, noun: str, step: float
) -> None:
    """Print distributions: those of keys as a grid, where there is room for one, else bars for each."""
    scale = Durations(step) if result.name.endswith(NANOSECONDS) else Numbers()
    rows_of = [powers_of_two(cell.buckets) if result.kind == "hist" else cell.buckets for _, cell in shown]
    lines = [(key, cell, rows) for (key, cell), rows in zip(shown, joined(rows_of, scale), strict=True)]
    counted_ones = [line for line in lines if line[1].count]
    empty = len(lines) - len(counted_ones)
    drawn = result.by and counted_ones and print_grid(result.by, counted_ones, scale, noun, console)
    if drawn and empty:
        console.print(f"  {counted(empty, 'key')} of which nothing was counted", style="dim", soft_wrap=True)
    if not drawn:
        for key, cell, rows in lines:
            _print_bars(result, key, cell, Distribution(rows, scale, noun, result.factor), console)
    lowest = min((cell.min for _, cell in shown if cell.min is not None), default=None)
    if isinstance(scale, Durations) and lowest is not None and lowest < 1.5 * step:
        print_step(step, console)


def _print_bars(result: AggregationResult, key: Key, cell: CellValue, shown: Distribution, console: Console) -> None:
    if key:
        console.print(f"  [cyan]{escape(key_text(result.by, key))}[/cyan]", soft_wrap=True)
    if not cell.count:
        console.print("  nothing was counted", style="dim")
        return
    scale = shown.scale
    facts = [counted(cell.count, shown.noun)]
    if cell.sum is not None and cell.mean is not None:
        facts += [f"sum {scale.exactly(cell.sum)}", f"mean {_mean(scale, cell)}"]
    facts += [f"min {scale.exactly(cell.min)}"] if cell.min is not None else []
    # in buckets as wide as a row's a percentile is no number, but that row
    facts += percentiles(cell.buckets, scale, cell.quantile if result.kind == "hist" else lambda _: None)
    facts += [f"max {scale.exactly(cell.max)}"] if cell.max is not None else []
    print_facts(facts, console)
    print_rows(shown, console)


def _mean(scale: Scale, cell: CellValue) -> str:
    """Return a mean, which is more precise than what it is the mean of."""
    if isinstance(scale, Durations):
        return mean(cell.sum or 0, cell.count, scale.step)
    return tenths(cell.mean or 0)
