"""Hits and times per process: the target's own, those of its fork children, and of programs that were executed."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.data.snapshots.sums import total
from anyprobe.reports.heading import clauses, print_heading, print_left_out, print_refusals, tail_clause
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted
from anyprobe.reports.table import site_name
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

_NAMED = 5
"""How many functions are named."""

_LEFT_OUT_FIRST = ("min", "p90", "mean", "p50", "module", "p99")
"""Columns that a narrow terminal has no room for, in this order."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.snapshots.processes import ProcessInfo
    from anyprobe.data.snapshots.snapshot import FunctionTiming


def print_by_process(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print a row for each process and site, the busiest first; ``top`` limits them unless 0."""
    rows = [
        (hits, each.process, site)
        for each in snapshot.processes
        for site in snapshot.sites
        if (hits := each.hits.get(site.key, 0))
    ]
    rows.sort(key=lambda row: (-row[0], row[1].pid, row[1].generation, site_name(row[2])))
    what = f"{counted(snapshot.hits, 'hit')} in {counted(len(snapshot.processes), 'process', 'processes')}"
    print_heading(snapshot, console, what, tail_clause(snapshot, "not asked the condition"))
    shown = rows[:top] if top else rows
    if shown:
        table = Rows()
        for name in ("hits", "pid"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("program", no_wrap=True)
        table.add_column("function", overflow="fold", style="cyan")
        table.add_column("module", no_wrap=True)
        for hits, process, site in shown:
            program = os.path.basename(process.exe) or "process"
            cells = [f"{hits:,}", str(process.pid), program, site_name(site), site.shown_module]
            table.add_row(*map(escape, cells))
        console.print()
        console.print(table)
    rest = rows[len(shown) :]
    more = f"{counted(len(rest), 'more row')} with {counted(sum(row[0] for row in rest), 'hit')}" if rest else ""
    print_left_out(more, [], "row", "hit", console)
    _print_undivided(snapshot, console)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def _print_undivided(snapshot: Snapshot, console: "Console") -> None:
    """Say of which functions the rows have hits of fork children, too."""
    names = sorted({site_name(each) for each in snapshot.sites if each.undivided and each.hits})
    if names:
        some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        text = f"fork children are not told apart in {some}: their hits are in their parent's rows"
        console.print(escape(text), style="yellow", soft_wrap=True)


def print_timings_by_process(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print a row for each process and function, the longest in all first; ``top`` limits them unless 0."""
    parts = [(each.process, timing) for each in snapshot.processes for timing in each.functions]
    parts.sort(key=lambda part: (-weight_ns(part[1]), part[0].pid, part[0].generation, part[1].function))
    calls = total((timing, timing.count) for timing in snapshot.functions)
    what = (
        f"{counted(calls, 'call')} timed in {counted(len({process for process, _ in parts}), 'process', 'processes')}"
    )
    print_heading(snapshot, console, what, clauses(snapshot))
    shown = parts[:top] if top else parts
    if shown:
        no_row = rest_of(snapshot)
        print_times(
            _table(shown, snapshot.clock_step_ns, console.width, no_row),
            [timing for _, timing in shown],
            no_row,
            console,
        )
    rest = parts[len(shown) :]
    more = f"{counted(len(rest), 'more row')} with {counted(sum(each.count for _, each in rest), 'call')}"
    print_left_out(more if rest else "", [], "row", "call", console)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def _table(shown: "Sequence[tuple[ProcessInfo, FunctionTiming]]", step: float, width: int, rest: str) -> Rows:
    """Return the table, without columns for which there is no room; ``rest``: what is in no row."""
    timings = [timing for _, timing in shown]
    columns = {
        "calls": calls_of(timings),
        "pid": [str(process.pid) for process, _ in shown],
        **times_of(timings, step),
    }
    names = {
        "function": [timing.label or timing.function for timing in timings],
        "module": [timing.shown_module for timing in timings],
    }
    add_rest(rest, columns, names)
    wide = fitting(columns | names, width, _LEFT_OUT_FIRST)
    return table_of(columns, wide)


def print_trees(snapshot: Snapshot, console: "Console", top: int = 0) -> None:
    """Print the tree of calls of each process that has one."""
    from anyprobe.reports.calltree import print_branches

    for each in snapshot.processes if snapshot.tree else ():
        if each.tree:
            program = os.path.basename(each.process.exe) or "process"
            console.print()
            console.print(escape(f"{program} (pid {each.process.pid})"), style="bold", soft_wrap=True)
            print_branches(replace(snapshot, tree=each.tree, functions=each.functions, in_no_row=None), console, top)
