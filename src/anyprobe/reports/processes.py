"""Hits per process: the target's own, those of its fork children, and of programs that were executed."""

import os
from typing import TYPE_CHECKING

from anyprobe.data.snapshot import Snapshot
from anyprobe.reports.heading import print_heading, print_left_out, print_refusals, tail_clause
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import Rows, escape
from anyprobe.reports.quantities import counted
from anyprobe.reports.table import site_name

if TYPE_CHECKING:
    from rich.console import Console


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
    print_losses(snapshot, console)
    print_refusals(snapshot, console)
