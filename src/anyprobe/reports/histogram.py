"""Durations of functions: a table of percentiles, then a histogram each."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anyprobe.data import histogram
from anyprobe.data.snapshot import FunctionTiming, Snapshot
from anyprobe.reports.heading import print_heading, print_refusals
from anyprobe.reports.quantities import counted, duration

BAR_WIDTH = 44
BAR_PARTS = " ▏▎▍▌▋▊▉█"
DRAWN_FUNCTIONS = 3
"""Histograms drawn; the table has all functions, and the JSON all buckets."""

TAIL_SHARE = 0.001
"""The rows at the long end that hold no more than this share together are drawn as one."""


def print_timings(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the report of ``time``; ``top`` limits the functions unless 0."""
    calls = sum(timing.count for timing in snapshot.functions)
    print_heading(
        snapshot, console, f"{counted(calls, 'call')} of {counted(len(snapshot.functions), 'function')} timed"
    )
    print_functions(snapshot, console, top)
    print_refusals(snapshot, console)


def print_functions(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the functions that were timed, the longest in all first."""
    ordered = sorted(snapshot.functions, key=lambda timing: (-timing.sum_ns, timing.module, timing.function))
    called = [timing for timing in ordered if timing.count or timing.nmissed or timing.in_flight]
    shown = (called[:top] if top else called) if called else []
    silent = [timing for timing in ordered if timing not in called]
    if not top or len(shown) + len(silent) <= top:
        shown, silent = shown + silent, []
    if shown:
        console.print()
        console.print(_table(shown))
    if silent:
        console.print(f"… and {counted(len(silent), 'function')} without a call", style="dim", soft_wrap=True)
    for timing in [timing for timing in shown if timing.count][:DRAWN_FUNCTIONS]:
        _print_bars(timing, console)
    _print_footnotes(shown, console)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Return a bar of ``share`` (0 to 1) of the width, in eighths of a column."""
    eighths = round(share * width * 8)
    if share > 0 and not eighths:
        eighths = 1
    return "█" * (eighths // 8) + (BAR_PARTS[eighths % 8] if eighths % 8 else "")


def with_tail_folded(buckets: Sequence[histogram.Bucket]) -> list[histogram.Bucket]:
    """Return the rows with the thinly populated long end as a single one."""
    allowed = TAIL_SHARE * sum(count for _, _, count in buckets)
    kept, folded = len(buckets), 0
    while kept > 1 and folded + buckets[kept - 1][2] <= allowed:
        kept -= 1
        folded += buckets[kept][2]
    if len(buckets) - kept < 2:
        return list(buckets)
    return [*buckets[:kept], (buckets[kept][0], buckets[-1][1], folded)]


def _table(timings: list[FunctionTiming]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("calls", "total", "mean", "min", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold", style="cyan")
    table.add_column("module", no_wrap=True)
    for timing in timings:
        extremes = (timing.min_ns, timing.max_ns) if timing.count else (None, None)
        durations = (
            timing.sum_ns,
            timing.mean_ns,
            extremes[0],
            timing.p50_ns,
            timing.p90_ns,
            timing.p99_ns,
            extremes[1],
        )
        cells = [f"{timing.count:,}", *map(duration, durations), escape(timing.function), escape(timing.module)]
        table.add_row(*cells)
    return table


def _print_bars(timing: FunctionTiming, console: Console) -> None:
    console.print()
    console.print(f"[cyan]{escape(timing.function)}[/cyan] ({escape(timing.module)})", soft_wrap=True)
    shown = with_tail_folded(histogram.by_powers_of_two(timing.buckets))
    highest = max(count for _, _, count in shown)
    for low, high, count in shown:
        edges = f"{duration(low):>8} … {duration(high):<8}"
        console.print(f"  {edges} {count:>14,} [green]{bar(count / highest)}[/green]", soft_wrap=True)


def _print_footnotes(timings: list[FunctionTiming], console: Console) -> None:
    for timing in timings:
        parts = [
            f"{counted(count, noun)} {what}"
            for count, noun, what in (
                (timing.tail_exits, "call", "left by a tail jump"),
                (timing.unmatched, "return", "without an entry that was seen"),
                (timing.in_flight, "call", "still running"),
                (timing.nmissed, "call", "not timed"),
            )
            if count
        ]
        parts += ["ends seen at replaced return addresses"] if timing.exit_kind == "trampoline" else []
        if parts:
            console.print(f"{escape(timing.function)}: {', '.join(parts)}", style="dim", soft_wrap=True)
