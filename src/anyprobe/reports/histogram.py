"""Durations of functions: a table of percentiles, then a histogram each."""

from rich.console import Console

from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.reports import distribution
from anyprobe.reports.distribution import Distribution, Durations
from anyprobe.reports.heading import (
    clauses,
    print_heading,
    print_left_out,
    print_refusals,
    print_step,
)
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted
from anyprobe.reports.timings import (
    add_rest,
    calls_of,
    fitting,
    print_times,
    rest_of,
    table_of,
    times_of,
    weight_ns,
    what_was_timed,
)

DRAWN_FUNCTIONS = 3
"""Histograms drawn; the table has all functions, and the JSON all buckets."""

LEFT_OUT_FIRST = ("min", "p90", "mean", "module")
"""Columns that a narrow terminal has no room for, in this order."""


def print_timings(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the report of ``time``; ``top`` limits the functions, 0 shows those without calls too."""
    print_heading(snapshot, console, what_was_timed(snapshot.functions), clauses(snapshot))
    print_functions(snapshot, console, top)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def print_functions(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the functions that were timed, the longest in all first; by their self times, if these are known."""
    ordered = sorted(snapshot.functions, key=lambda timing: (-weight_ns(timing), timing.module, timing.function))
    called = [timing for timing in ordered if timing.was_called]
    silent = [timing for timing in ordered if not timing.was_called]
    shown = called[:top] if top else called + silent
    if shown:
        no_row = rest_of(snapshot)
        print_times(_table(shown, snapshot.clock_step_ns, console.width, no_row), shown, no_row, console)
    rest = called[len(shown) :] if top else []
    more = f"{counted(len(rest), 'more function')} with {counted(sum(each.count for each in rest), 'call')}"
    print_left_out(more if rest else "", [each.function for each in silent] if top else [], "function", "call", console)
    drawn = [timing for timing in shown if timing.count][:DRAWN_FUNCTIONS]
    for timing in drawn:
        _print_bars(timing, console, snapshot.clock_step_ns)
    _print_footnotes(shown, console)
    if any(timing.count and timing.min_ns < 1.5 * snapshot.clock_step_ns for timing in shown):
        print_step(snapshot.clock_step_ns, console)


def _table(timings: list[FunctionTiming], step: float, width: int, rest: str) -> Rows:
    """Return the table, without what histograms show too where there is no room for it; ``rest``: what is in no row."""
    columns = {"calls": calls_of(timings), **times_of(timings, step)}
    names = {
        "function": [timing.label or timing.function for timing in timings],
        "module": [timing.shown_module for timing in timings],
    }
    add_rest(rest, columns, names)
    return table_of(columns, fitting(columns | names, width, LEFT_OUT_FIRST))


def _print_bars(timing: FunctionTiming, console: Console, step: float) -> None:
    console.print()
    console.print(
        f"[cyan]{escape(timing.label or timing.function)}[/cyan] ({escape(timing.shown_module)})",
        soft_wrap=True,
    )
    scale = Durations(step)
    percentiles = distribution.percentiles(timing.buckets, scale, timing.quantile)
    facts = [counted(timing.count, "call"), f"sum {scale.exactly(timing.sum_ns)}", *percentiles]
    distribution.print_facts([*facts, f"max {scale.exactly(timing.max_ns)}"], console)
    (rows,) = distribution.joined([distribution.powers_of_two(timing.buckets)], scale)
    distribution.print_rows(Distribution(rows, scale, "call"), console)


_NO_ROOM = (
    "beyond --maxactive, where the clock is forbidden, or in threads or fork children that there was no room for: "
    "attach when they are there, or time fewer functions"
)


def _print_footnotes(timings: list[FunctionTiming], console: Console) -> None:
    for timing in timings:
        parts = [
            f"{counted(count, noun)} {what}"
            for count, noun, what in (
                (timing.tail_exits, "call", "left by a tail jump and not timed"),
                (timing.learning, "call", "not timed, from callers not known yet (learning)"),
                (
                    timing.unmatched,
                    "return",
                    "of calls that came in elsewhere than at the entry, or earlier",
                ),
                (timing.in_flight, "call", "still running at the end" if timing.open_ns else "still running"),
                (timing.left, "call", "left by an exception, a panic or longjmp, and not timed"),
                (
                    timing.nmissed,
                    "call",
                    f"not timed ({_NO_ROOM})",
                ),
            )
            if count
        ]
        if timing.tail_exits and timing.callers_refused:
            why = ", ".join(f"{count} {reason}" for reason, count in timing.callers_refused)
            parts.append(f"callers refused: {why}")
        parts += ["ends seen at replaced return addresses"] if timing.exit_kind == "trampoline" else []
        if parts:
            text = f"{timing.label or timing.function}: {', '.join(parts)}"
            console.print(escape(text), style="dim", soft_wrap=True)
