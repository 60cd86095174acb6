"""The JSON documents of measuring commands."""

import datetime as dt
from collections import Counter
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
    by_pid: bool = False,
) -> dict[str, Any]:
    """Return the document of all processes; ``last``: what was counted since the last document.

    ``by_pid``: whether each site has the hits of each process.
    """
    document = _of(together, always, nonzero=nonzero)
    if by_pid:
        _add_pids(document, together)
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


_OF_FUNCTIONS = ("spec", "module", "function", "address", "callers", "exits", "exit_kind")
"""What is the same in all processes, or not of one."""


def _without(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _add_pids(document: dict[str, Any], together: Snapshot) -> None:
    """Add to each site the hits by process, of all its programs; of sites that are folded those of all of them."""
    document["processes"] = [each.process.as_json() for each in together.processes]
    exact: dict[tuple[object, ...], Counter[str]] = {}
    folded: dict[tuple[object, ...], Counter[str]] = {}
    for each in together.processes:
        pid = str(each.process.pid)
        for (*names, offset, kind), hits in each.hits.items():
            exact.setdefault((*names, offset, kind), Counter())[pid] += hits
            folded.setdefault((*names, kind), Counter())[pid] += hits
    timed: dict[tuple[object, ...], dict[str, dict[str, Any]]] = {}
    for each in together.processes:
        for timing in each.functions:
            key = (timing.spec, timing.module, timing.function)
            exact.setdefault((*key, 0, "entry"), Counter())[str(each.process.pid)] += sum(s.hits for s in timing.sites)
            timed.setdefault(key, {})[str(each.process.pid)] = _without(timing.as_json(), _OF_FUNCTIONS)
    for function in document.get("functions", ()):
        function["by_pid"] = timed.get((function["spec"], function["module"], function["function"]), {})
    for site in document["sites"]:
        is_folded = bool(site.get("folded_sites"))
        parts = ("spec", "module", "function", *(() if is_folded else ("offset",)), "kind")
        found = (folded if is_folded else exact).get(tuple(site[each] for each in parts))
        site["by_pid"] = dict(found or {})


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
