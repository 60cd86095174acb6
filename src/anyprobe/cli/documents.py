"""The JSON documents of measuring commands."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from anyprobe.data.snapshot import Snapshot


def of_all(
    snapshots: Sequence[Snapshot],
    together: Snapshot,
    last: Snapshot | None,
    *,
    always: Mapping[str, object],
    nonzero: bool,
) -> dict[str, Any]:
    """Return the document of all processes; ``last``: what was counted since the last document."""
    document = _of(together, always, nonzero=nonzero)
    if last is not None:
        _add_interval(document, last)
    if len(snapshots) > 1:
        document["targets"] = [_of(snapshot, always, nonzero=nonzero) for snapshot in snapshots]
    return document


def _of(snapshot: Snapshot, always: Mapping[str, object], *, nonzero: bool) -> dict[str, Any]:
    if not nonzero:
        return {**always, **snapshot.as_json()}
    kept, left_out = snapshot.nonzero()
    return {**always, **kept.as_json(), "left_out": left_out}


def _add_interval(document: dict[str, Any], last: Snapshot) -> None:
    """Add when it is, and to each site and function what it has counted since the last document."""
    assert last.interval is not None
    hits = {(each.spec, each.address, each.kind, each.exit_kind): each.hits for each in last.all_sites}
    calls = {(each.spec, each.address): each.count for each in last.functions}
    document["interval"] = {
        "time": dt.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "duration_s": round(last.interval.seconds, 6),
        "hits": last.hits,
        "calls": sum(calls.values()),
    }
    for site in document["sites"]:
        site["interval_hits"] = hits[site["spec"], site["address"], site["kind"], site.get("exit_kind")]
    for function in document.get("functions", ()):
        function["interval_count"] = calls[function["spec"], function["address"]]
