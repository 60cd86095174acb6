"""``metric``: numbers of functions for each interval, in a terminal or as lines of JSON, and all of them at the end."""

from typing import TYPE_CHECKING, Any

from anyprobe.data.snapshots.metrics import LEFT, NESTED, UNBEGUN, Metric, points_of, series_of, times_of

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.data.snapshots.metrics import Keys
    from anyprobe.data.snapshots.snapshot import Snapshot


class Meter:
    """Prints what a metric is in each interval, and at the end all of it."""

    def __init__(self, metric: Metric, *, as_json: bool) -> None:
        """``as_json``: a line of JSON for each number, and one document at the end."""
        self._metric, self._as_json = metric, as_json
        self._intervals: list[Snapshot] = []
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
            documents = [self._document(snapshot)]
        else:
            keys = {(each.spec, each.address): each.keys for each in snapshot.functions}
            documents = [
                {"t": round(self._seconds, 6), "spec": row[0], "of": str(self._metric), "value": round(value, 9)}
                | _key(keys[row])
                for row, value in points_of(self._metric, snapshot).items()
            ]
        for each in documents:
            console.file.write(json_text(each) + "\n")

    def _document(self, snapshot: "Snapshot") -> dict[str, Any]:
        return {
            "targets": [each.as_json() for each in (snapshot.target, *snapshot.others)],
            "of": str(self._metric),
            "unit": self._metric.unit,
            "duration_s": round(snapshot.duration_s, 6),
            "functions": [
                {
                    "spec": each.spec,
                    "module": each.module,
                    "function": each.function,
                    **_key(each.keys),
                    "value": None if each.value is None else round(each.value, 9),
                    "series": [[round(seconds, 6), round(value, 9)] for seconds, value in each.points],
                }
                for each in series_of(self._metric, self._intervals, snapshot)
            ],
            "left": times_of(snapshot, LEFT),
            "nested": times_of(snapshot, NESTED),
            "unbegun": times_of(snapshot, UNBEGUN),
            "refused": [each.as_json() for each in snapshot.refused],
            "warnings": list(snapshot.warnings),
        }


def _key(keys: "Keys") -> dict[str, Any]:
    return {"key": dict(keys)} if keys else {}
