"""Trees of timed calls, and who has called what."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anyprobe.core.printable import printable
from anyprobe.data.findings.calltree import CallNode, by_caller, folded, time_of
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.heading import clauses, print_heading, print_refusals
from anyprobe.reports.losses import print_losses
from anyprobe.reports.plain import escape
from anyprobe.reports.quantities import counted, duration
from anyprobe.reports.timings import IN_NO_ROW, marked, print_mark, print_rest, rest_of, what_was_timed

_LEAST_ROOM = 8
"""Columns that a name in the tree gets, however deep it is."""
_OFF = ("off", "self off")
"""Columns of trees whose times are those on processors."""
_LEAST_SHARE = 0.001
"""Branches with a smaller share of the whole are left out, unless all are wanted."""


def print_tree(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the report of the tree of calls."""
    _print_heading(snapshot, console)
    print_branches(snapshot, console, top)
    _print_end(snapshot, console)


def print_branches(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print the tree alone, the longest calls first; ``top`` 0 shows all branches."""
    roots = [folded(node) for node in snapshot.tree]
    least = _LEAST_SHARE * sum(map(time_of, roots)) if top else 0.0
    off = any(each.self_off_ns is not None for each in roots)
    table, step, partial = _table(*(_OFF if off else ())), snapshot.clock_step_ns, snapshot.partly_timed
    lines = list(branches(roots))
    shown = [line for line in lines if time_of(line[-1]) >= least]
    left_out = len(lines) - len(shown)
    complete = [(node.module, node.function) not in partial for *_, node in shown]
    counts = marked([(node.count, whole) for (*_, node), whole in zip(shown, complete, strict=True)])
    for (prefix, below, node), count in zip(shown, counts, strict=True):
        own = duration(max(node.self_ns, 0.0), step) if node.count or node.self_ns else "-"
        times = [duration(node.sum_ns, step) if node.count or node.sum_ns else "-", own]
        if off:
            times += [duration(max(each, 0.0)) for each in (node.off_ns, node.self_off_ns or 0.0)]
        name = Branch(prefix, below, printable(node.function))
        table.add_row(count, *times, name, escape(node.shown_module))
    _print_whole(table, snapshot, console, whole=all(complete))
    if left_out:
        text = f"{counted(left_out, 'branch', 'branches')} below 0.1 % left out; --top 0 shows all"
        console.print(text, style="dim", soft_wrap=True)


def _print_whole(table: Table, snapshot: Snapshot, console: Console, *, whole: bool) -> None:
    """Print a table and what marks mean; ``whole``: no row has the one of calls that were not timed."""
    rest = rest_of(snapshot)
    if rest:
        table.add_row("-", "-", rest, *(["-"] * (len(table.columns) - 5)), IN_NO_ROW, "")
    console.print()
    console.print(table)
    print_mark(whole, console)
    print_rest(rest, console)


def print_by_caller(snapshot: Snapshot, console: Console, top: int = 0) -> None:
    """Print a row for each function and each that has called it."""
    _print_heading(snapshot, console)
    table = _table()
    table.columns[-1].header = "called by"
    found, step, partial = by_caller(snapshot.tree), snapshot.clock_step_ns, snapshot.partly_timed
    shown = found[:top] if top else found
    complete = [(each.module, each.function) not in partial for each in shown]
    counts = marked([(each.count, whole) for each, whole in zip(shown, complete, strict=True)])
    for each, count in zip(shown, counts, strict=True):
        times = duration(each.sum_ns, step), duration(max(each.self_ns, 0.0), step)
        table.add_row(count, *times, escape(each.function), escape(each.caller or "-"))
    _print_whole(table, snapshot, console, whole=all(complete))
    if top and len(found) > top:
        console.print(f"{counted(len(found) - top, 'more row')}; --top 0 shows all", style="dim", soft_wrap=True)
    _print_end(snapshot, console)


def _print_heading(snapshot: Snapshot, console: Console) -> None:
    print_heading(snapshot, console, what_was_timed(snapshot.functions), clauses(snapshot))


def _print_end(snapshot: Snapshot, console: Console) -> None:
    left = sum(timing.left for timing in snapshot.functions)
    if left:
        text = f"{counted(left, 'call')} left by an exception, a panic or longjmp, and not timed"
        console.print(text, style="dim", soft_wrap=True)
    print_losses(snapshot, console)
    print_refusals(snapshot, console)


def _table(*more: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("calls", "total", "self", *more):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold", style="cyan")
    table.add_column("module", no_wrap=True)
    return table


class Branch(NamedTuple):
    """A name with what leads to it; where it takes several lines, the tree goes on beside all of them."""

    prefix: str
    below: str
    """What stands in place of the prefix on further lines."""
    name: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines, as wide as there is room."""
        room = max(options.max_width - len(self.prefix), _LEAST_ROOM)
        first, *more = chop_cells(self.name, room) or [""]
        yield Text(self.prefix + first)
        yield from (Text(self.below + each) for each in more)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how wide it may be."""
        return Measurement(len(self.prefix) + _LEAST_ROOM, len(self.prefix) + cell_len(self.name))


def branches(
    nodes: Iterable[CallNode], before: str = "", *, nested: bool = False
) -> Iterator[tuple[str, str, CallNode]]:
    """Yield nodes with what leads to their names, and with what stands below that."""
    listed = list(nodes)
    for number, node in enumerate(listed):
        last = number == len(listed) - 1
        below = before + ("" if not nested else "   " if last else "│  ")
        yield before + ("" if not nested else "└─ " if last else "├─ "), below, node
        yield from branches(node.calls, below, nested=True)
