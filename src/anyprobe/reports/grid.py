"""Distributions of many keys as one grid: a row for each key, a column for each range, shaded by share."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anyprobe.core.printable import printable
from anyprobe.data.aggregates.results import CellValue, Key
from anyprobe.data.layouts.histogram import Bucket, located
from anyprobe.reports.distribution import GAP, Scale, shown_percentile
from anyprobe.reports.quantities import number

SHADES = ((0.5, "█"), (0.25, "▓"), (0.1, "▒"), (0.01, "░"), (0.0, "·"))
"""From which share of a key's values on a cell is shaded how; a cell without any stays blank."""
WIDEST_CELL = 6
"""Columns of a range, where there is room: then each has its label."""
SHORTEST_KEY = 12
LAYOUTS = ((1 / 3, True), (1 / 6, True), (1 / 6, False))
"""Which share of the width keys get at the most, longer ones on several lines; whether there are columns of numbers."""

Line = tuple[Key, CellValue, Sequence[Bucket]]
"""A key, what was counted for it, and its rows, of which ranges are the same for all keys."""


def print_grid(by: Sequence[str], lines: Sequence[Line], scale: Scale, noun: str, console: Console) -> bool:
    """Print a grid of distributions; return whether there was room for it."""
    columns = _columns(lines)
    gaps = sum(column is None for column in columns)
    keys = [key_text(by, key) or " " for key, _, _ in lines]
    for share, numbers in LAYOUTS:
        cells = _plain(lines, scale) if numbers else [[] for _ in lines]
        heads = (f"{noun}s", "p50", "max")[: len(cells[0])]
        table, used = _table(keys, heads, cells, int(console.width * share))
        width = min((console.width - used - gaps) // (len(columns) - gaps), WIDEST_CELL)
        if width > 0:
            break
    else:
        return False
    table.add_column(_axis(columns, width, scale), no_wrap=True, overflow="crop")
    for key, (_, cell, rows), numbers_of_key in zip(keys, lines, cells, strict=True):
        shaded = Text(_shaded(columns, width, rows, cell.count), style="green")
        table.add_row(Text(key), *numbers_of_key, shaded)
    console.print(table)
    for text in (_legend(noun), f"columns by their lower ends ({scale.units})"):
        console.print(f"  {text}", style="dim", soft_wrap=True)
    return True


def _columns(lines: Sequence[Line]) -> list[tuple[float, float] | None]:
    """Return the ranges that any key has, None for a gap between two of them."""
    ranges = sorted({(low, high) for _, _, rows in lines for low, high, _ in rows})
    columns: list[tuple[float, float] | None] = []
    for low, high in ranges:
        if columns and columns[-1] is not None and columns[-1][1] != low:
            columns.append(None)
        columns.append((low, high))
    return columns


def _plain(lines: Sequence[Line], scale: Scale) -> list[list[str]]:
    """Return the columns of numbers: how many, the median, the longest or largest."""
    found = []
    for _, cell, rows in lines:
        bucket, _ = located(cell.buckets or rows, 0.5)
        # in buckets as wide as a row's the median is no number, but that row
        middle = shown_percentile(bucket, cell.quantile(0.5) if cell.buckets != tuple(rows) else None, scale)
        found.append([number(cell.count), middle, "-" if cell.max is None else scale.exactly(cell.max)])
    return found


def _table(keys: Sequence[str], heads: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> tuple[Table, int]:
    """Return a table that lacks the grid's column, and how wide it is without that; ``room``: for keys."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    wide = min(max(len(line) for key in keys for line in key.splitlines()), max(room, SHORTEST_KEY))
    table.add_column("", overflow="fold", style="cyan", width=wide)
    used = wide + 2
    for at, name in enumerate(heads):
        wide = max(len(name), *(len(row[at]) for row in cells))
        table.add_column(name, justify="right", no_wrap=True, width=wide)
        used += wide + 2
    return table, used


def key_text(by: Sequence[str], key: Key) -> str:
    """Return a key with the names of its parts."""
    return printable(" ".join(f"{name}={part}" for name, part in zip(by, key, strict=False)) or str(key))


def _axis(columns: Sequence[tuple[float, float] | None], width: int, scale: Scale) -> Text:
    """Return the lower ends of the ranges, as many as there is room for."""
    text, at = "", 0
    end = sum(1 if column is None else width for column in columns)
    for column in columns:
        label = GAP if column is None else scale.short(*column)
        if len(text) <= at and at + len(label) <= end:
            text = text.ljust(at) + label + " " * (column is not None)
        at += 1 if column is None else width
    return Text(text[:end].ljust(end), style="dim")


def _shaded(columns: Sequence[tuple[float, float] | None], width: int, rows: Sequence[Bucket], total: int) -> str:
    counts = {(low, high): count for low, high, count in rows}
    return "".join(GAP if column is None else _shade(counts.get(column, 0), total) * width for column in columns)


def _shade(count: int, total: int) -> str:
    if not count:
        return " "
    return next(shade for share, shade in SHADES if count >= share * total)


def _legend(noun: str) -> str:
    known = [f"{shade} ≥ {share * 100:.0f} %" if share else f"{shade} fewer" for share, shade in SHADES]
    return f"of a row's {noun}s: {', '.join(known)}"
