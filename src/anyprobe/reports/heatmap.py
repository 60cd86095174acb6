"""Heat maps in the terminal: time from left to right, values from below, shaded by how many there were."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from anyprobe.core.printable import printable
from anyprobe.data.snapshots.heatmaps import HeatMap, heat_maps
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.distribution import Durations, Numbers
from anyprobe.reports.grid import SHADES
from anyprobe.reports.plain import escape
from anyprobe.reports.quantities import at_most, counted, edge

if TYPE_CHECKING:
    from rich.console import Console

DRAWN_MAPS = 3
MOST_ROWS = 16
LABEL = 9
STYLES = dict(zip((shade for _, shade in SHADES), ("red", "yellow", "green", "cyan", "blue"), strict=True))
"""One of the sixteen colours that each terminal has, for each shade."""


def print_heat(series: Sequence[Snapshot], console: "Console", most_rows: int = MOST_ROWS) -> None:
    """Print the maps of the functions with most time, or of distributions with most values, in so many rows each."""
    columns = max(console.width - LABEL - 2, 8)
    found, more = heat_maps(series, columns=columns, most_rows=most_rows, most=DRAWN_MAPS)
    for each in found:
        _print_map(each, console, max((one.clock_step_ns for one in series), default=0.0))
    if more:
        text = f"… and {counted(more, 'more heat map')}: anyprobe report has them"
        console.print(text, style="dim", soft_wrap=True)
    if not found:
        console.print("\nno heat map: no interval has a distribution", style="dim")


def _print_map(shown: HeatMap, console: "Console", step: float) -> None:
    noun = "call" if shown.is_time else "value"
    where = f" ({escape(printable(shown.module))})" if shown.module else ""
    columns = len(shown.edges) - 1
    width = (shown.edges[-1] - shown.edges[0]) / columns * 1e9
    console.print(
        f"\n[bold]{escape(printable(shown.name))}[/bold]{where}: {counted(shown.total, noun)}; "
        f"a column is {edge(width)}",
        soft_wrap=True,
    )
    times = max((console.width - LABEL - 2) // columns, 1)  # few intervals are wide ones
    scale = Durations(step) if shown.is_time else Numbers()
    for row in reversed(range(len(shown.rows))):
        low, high = shown.rows[row]
        name = scale.short(low, high)
        if shown.is_time:
            name = at_most(step) if scale.hides(low, high) else edge(low)
        line = Text(f"{name:>{LABEL}} │", style="dim")
        for column in range(columns):
            shade = _shade(shown.cells.get((column, row), 0), shown.most)
            line.append(shade * min(times, 4), style=f"not dim {STYLES.get(shade, '')}")
        console.print(line, soft_wrap=True)
    room = columns * min(times, 4)
    console.print(Text(f"{'':>{LABEL}} └{'─' * room}", style="dim"), soft_wrap=True)
    begin, end = (edge(each * 1e9) if each else "0 s" for each in (shown.edges[0], shown.edges[-1]))
    console.print(
        Text(f"{'':>{LABEL}}  {begin}{end:>{max(room - len(begin), len(end) + 1)}}", style="dim"), soft_wrap=True
    )
    least = [(shade, max(round(share * shown.most), 1)) for share, shade in SHADES]
    known = [f"{shade} ≥ {count:,}" for at, (shade, count) in enumerate(least) if count not in _counts(least[:at])]
    console.print(f"{noun}s: {', '.join(known)}", style="dim", soft_wrap=True)


def _counts(least: Sequence[tuple[str, int]]) -> set[int]:
    return {count for _, count in least}


def _shade(count: int, most: int) -> str:
    if not count:
        return " "
    return next(shade for share, shade in SHADES if count >= share * most)
