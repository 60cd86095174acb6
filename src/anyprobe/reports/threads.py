"""Times per thread."""

from typing import TYPE_CHECKING

from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.data.snapshots.sums import total
from anyprobe.reports.heading import clauses, print_heading, print_left_out, print_refusals
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.snapshots.processes import ThreadTimes
    from anyprobe.data.snapshots.snapshot import FunctionTiming

_LEFT_OUT_FIRST = ("min", "p90", "p50", "thread", "mean", "module", "p99")
"""Columns that a narrow terminal has no room for, in this order."""


def print_timings_by_thread(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print a row for each thread and function, the longest in all first; ``top`` limits them unless 0."""
    parts = [(each, timing) for each in snapshot.threads for timing in each.functions]
    several = len({each.process for each, _ in parts}) > 1
    parts.sort(key=lambda part: (-weight_ns(part[1]), part[0].process.pid, part[0].tid, part[1].function))
    calls = total((timing, timing.count) for timing in snapshot.functions)
    threads = {(each.process, each.tid) for each, _ in parts if each.tid}
    what = f"{counted(calls, 'call')} timed in {counted(len(threads), 'thread')}"
    print_heading(snapshot, console, what, clauses(snapshot))
    shown = parts[:top] if top else parts
    if shown:
        no_row = rest_of(snapshot)
        print_times(
            _table(shown, snapshot.clock_step_ns, console.width, no_row, several=several),
            [timing for _, timing in shown],
            no_row,
            console,
        )
    rest = parts[len(shown) :]
    more = f"{counted(len(rest), 'more row')} with {counted(sum(each.count for _, each in rest), 'call')}"
    print_left_out(more if rest else "", [], "row", "call", console)
    if any(not each.tid for each, _ in shown):
        console.print("tid -: calls of threads that are not told apart", style="dim", soft_wrap=True)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def _table(
    shown: "Sequence[tuple[ThreadTimes, FunctionTiming]]", step: float, width: int, rest: str, *, several: bool
) -> Rows:
    """Return the table, without columns for which there is no room; ``rest``: what is in no row.

    ``several``: processes.
    """
    timings = [timing for _, timing in shown]
    columns = {
        "calls": calls_of(timings),
        "pid": [str(each.process.pid) for each, _ in shown] if several else [],
        "tid": [str(each.tid or "-") for each, _ in shown],
        **times_of(timings, step),
    }
    names = {
        "thread": [each.name for each, _ in shown],
        "function": [timing.label or timing.function for timing in timings],
        "module": [timing.shown_module for timing in timings],
    }
    add_rest(rest, columns, names)
    wide = fitting({name: cells for name, cells in (columns | names).items() if any(cells)}, width, _LEFT_OUT_FIRST)
    return table_of(columns, wide)
