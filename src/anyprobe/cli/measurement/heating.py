"""``--heat``: after the tables, when which durations or values were seen."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


class Heated:
    """Prints results, and below the last ones heat maps of the intervals before."""

    def __init__(self, render: "Callable[[Snapshot, Console, int], None]", series: "Sequence[Snapshot]" = ()) -> None:
        """``render`` prints results; ``series``: the intervals that are known already."""
        self._render = render
        self._series = list(series)

    def __call__(self, snapshot: "Snapshot", console: "Console", top: int) -> None:
        """Print the results of an interval, or those at the end."""
        self._render(snapshot, console, top)
        if snapshot.interval is not None:
            self._series.append(snapshot)
            return
        from anyprobe.reports.heatmap import print_heat

        print_heat(self._series, console)


def refuse(*, every: float | None, form: str | None) -> None:
    """Raise ``click.UsageError`` where there is nothing that heat maps could be of."""
    if every is None:
        raise click.UsageError("--heat is over time, by intervals: --every SECONDS, too")
    if form is not None:
        raise click.UsageError(
            f"--heat is below tables; --format {form} has none, and -o RUN.aprobe keeps them for later"
        )
