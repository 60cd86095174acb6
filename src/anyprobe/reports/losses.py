"""What handlers have lost, and what they could not do."""

from typing import TYPE_CHECKING

from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports.plain import escape
from anyprobe.reports.quantities import counted

if TYPE_CHECKING:
    from rich.console import Console

_MISSES = {
    "fault": "reads of bad addresses",
    "abandoned": "runs that a missing value has ended",
    "division": "divisions by zero",
}


def print_losses(snapshot: Snapshot, console: "Console") -> None:
    """Print what handlers have lost, and which values were not there."""
    lost = [
        f"{name}: {counted(count, 'loss', 'losses')} ({cause})"
        for name, causes in snapshot.dropped.items()
        for cause, count in causes.items()
    ]
    lost += [f"{_MISSES.get(kind, kind)}: {count:,}" for kind, count in snapshot.missing.items() if count]
    if lost:
        console.print()
    for text in lost:
        console.print(escape(text), style="yellow", soft_wrap=True)


def print_unhandled(snapshot: Snapshot, console: "Console") -> None:
    """Print how many hits ran no handler, where no table has a column for them."""
    if snapshot.nmissed:
        text = f"{counted(snapshot.nmissed, 'hit')} ran no handler: inside of another one, or where it had no room"
        console.print(text, style="yellow", soft_wrap=True)
