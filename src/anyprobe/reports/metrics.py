"""Metrics in the terminal: a number of each function for each interval, and a curve of them at the end."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from anyprobe.data.snapshots.metrics import LEFT, NESTED, UNBEGUN, Metric, Series, points_of, shown_keys, times_of
from anyprobe.reports.heading import print_heading, print_left_out, print_refusals
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot

_SAID = {
    LEFT: "left without an end that was seen: counted until it was begun again, not after that",
    NESTED: "begun anew deeper in the stack: the outermost beginning counts, and as many ends are those of inner ones",
    UNBEGUN: "an end was reached without a beginning, which was before the probes or did not meet the condition",
}
"""What is said of regions, with the number before it."""
CURVE = 24
"""Characters that a curve is wide; each has two numbers."""
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""The dots of a character of Braille from below, in its left and its right column."""


def print_points(metric: Metric, seconds: float, interval: "Snapshot", console: "Console", top: int) -> None:
    """Print the number of each function in an interval that has one, the highest first; ``seconds``: at its end."""
    points = points_of(metric, interval)
    functions = {(each.spec, each.address): each for each in interval.functions}
    for key in sorted(filter(points.get, points), key=lambda key: -points[key])[: top or None]:
        number = f"{points[key]:,.4g} {metric.unit}"
        at = functions[key]
        module = f" ({at.shown_module})" if at.module else ""
        name = escape(f"{at.label or at.function}{module}{shown_keys(at.keys)}")
        console.print(f"{seconds:8.1f} s  {number:>20}  {name}", soft_wrap=True)


def print_series(metric: Metric, found: Sequence[Series], snapshot: "Snapshot", console: "Console", top: int) -> None:
    """Print what the metric was over all the time, and its curve; ``top`` limits the functions, 0 shows all."""
    calls = sum(each.count for each in snapshot.functions)
    print_heading(snapshot, console, f"{metric} by {counted(calls, 'call')}")
    shown = [each for each in found if each.value or not top][: top or None]
    if shown:
        console.print(_table(metric, shown))
    print_left_out("", [each.function for each in found if each not in shown], "function", "call", console)
    for name, text in _SAID.items():
        if times := times_of(snapshot, name):
            console.print(f"{counted(times, 'time')} {text}", style="yellow", soft_wrap=True)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def _table(metric: Metric, shown: Sequence[Series]) -> Rows:
    table = Rows()
    over_time = any(each.points for each in shown)  # a sum of archives has no intervals
    for heading in (metric.unit, *(("min", "max") if over_time else ())):
        table.add_column(heading, justify="right")
    keyed = any(each.keys for each in shown)
    for heading in (*(["over time"] * over_time), "function", "module", *(["by"] * keyed)):
        table.add_column(heading)
    highest = max((value for each in shown for value in each.values), default=0.0)
    for each in shown:
        numbers = [each.value, min(each.values, default=None), max(each.values, default=None)]
        table.add_row(
            *("" if number is None else f"{number:,.4g}" for number in (numbers if over_time else numbers[:1])),
            *([curve(each.values, highest)] * over_time),
            escape(each.function),
            escape(each.module),
            *([escape(shown_keys(each.keys).strip())] * keyed),
        )
    return table


def curve(values: Sequence[float], highest: float, width: int = CURVE) -> str:
    """Return numbers as a line of Braille, up to ``highest``; where they are too many each dot is the mean of some."""
    points = 2 * width
    if len(values) > points:
        bounds = [len(values) * number // points for number in range(points + 1)]
        parts = [values[low:high] for low, high in pairwise(bounds)]
        values = [sum(part) / len(part) for part in parts]
    levels = [round(value / highest * len(_LEFT)) if highest else 0 for value in values]
    found = []
    for left, right in zip(levels[::2], [*levels[1::2], *([0] if len(levels) % 2 else [])], strict=True):
        found.append(chr(0x2800 | sum(_LEFT[:left]) | sum(_RIGHT[:right])))
    return "".join(found)
