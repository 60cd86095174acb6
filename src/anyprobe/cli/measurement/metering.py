"""``metric``: numbers of functions for each interval, in a terminal or as lines of JSON, and all of them at the end."""

from typing import TYPE_CHECKING

import click

from anyprobe.data.snapshots.metrics import Metric, document_of, key_of, points_of, series_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from anyprobe.data.snapshots.snapshot import Snapshot


class Meter:
    """Prints what a metric is in each interval, and at the end all of it."""

    def __init__(self, metric: Metric, *, as_json: bool = False, series: "Sequence[Snapshot]" = ()) -> None:
        """``as_json``: a line of JSON for each number, and one document at the end; ``series``: known intervals."""
        self._metric, self._as_json = metric, as_json
        self._intervals = list(series)
        self._seconds = 0.0

    def __call__(self, snapshot: "Snapshot", console: "Console", top: int) -> None:
        """Print the numbers of an interval, or the results at the end."""
        if snapshot.interval is not None:
            self._intervals.append(snapshot)
            self._seconds += snapshot.duration_s
        if self._as_json:
            self._write(snapshot, console)
            return
        from anyprobe.reports.metrics import print_points, print_series

        if snapshot.interval is not None:
            print_points(self._metric, self._seconds, snapshot, console, top)
        else:
            found = series_of(self._metric, self._intervals, snapshot)
            print_series(self._metric, found, snapshot, console, top)

    def _write(self, snapshot: "Snapshot", console: "Console") -> None:
        from anyprobe.exporters.json_document import json_text

        if snapshot.interval is None:
            documents = [document_of(self._metric, self._intervals, snapshot)]
        else:
            keys = {(each.spec, each.address): each.keys for each in snapshot.functions}
            documents = [
                {"t": round(self._seconds, 6), "spec": row[0], "of": str(self._metric), "value": round(value, 9)}
                | key_of(keys[row])
                for row, value in points_of(self._metric, snapshot).items()
            ]
        for each in documents:
            console.file.write(json_text(each) + "\n")


def refuse_format(form: str | None, *others: str) -> None:
    """Raise ``click.UsageError`` for a format that does not hold numbers over time; ``others``: some more that do."""
    if form not in {None, "json", "archive", *others}:
        raise click.UsageError(f"metric writes a table, --json or -o RUN.aprobe, not --format {form}")
