"""The JSON documents of measuring commands, and how values that JSON lacks are written."""

import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from anyprobe.data.snapshots import metrics
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot
from anyprobe.data.snapshots.sums import total
from anyprobe.exporters.base import Measurement, Needs


class JsonDocument:
    """Writes one JSON document, on a line of its own where several follow each other."""

    name = "json"
    needs = Needs.ANYTHING
    holds_warnings = True
    may_repeat = True

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the document."""
        document = document_of(found)
        if not found.buckets:
            document = without_buckets(document)
        stream.write(json_text({**document, **found.records}, one_line=found.repeated) + "\n")
        stream.flush()


EXPORTER = JsonDocument()


def document_of(found: Measurement) -> dict[str, Any]:
    """Return the document of all processes, with the numbers of each process or thread where these are told apart."""
    together, by = found.together, found.by
    if found.run is not None and found.run.info.metric:
        metric = metrics.metric_named(found.run.info.metric)
        return {**metrics.document_of(metric, found.run.series, together), **found.always}
    document = _of(together, found)
    document["window_s"] = document["duration_s"]
    if by == "pid":
        _add_pids(document, together)
        if together.functions:
            document["rows"] = list(_rows(together))
    _add_durations(document, found.snapshots)
    if by == "tid":
        _add_tids(document, together)
    if found.last is not None:
        _add_interval(document, found.last, by)
    if len(found.snapshots) > 1:
        document["targets"] = [_of(snapshot, found) for snapshot in found.snapshots]
    return document


def without_buckets(document: Any) -> Any:  # noqa: ANN401 - whatever is in a document
    """Return a document without the buckets of timed functions, which are most of it."""
    if isinstance(document, dict):
        is_timed = "sum_ns" in document
        return {name: without_buckets(each) for name, each in document.items() if not (is_timed and name == "buckets")}
    return list(map(without_buckets, document)) if isinstance(document, list) else document


def _of(snapshot: Snapshot, found: Measurement) -> dict[str, Any]:
    if not found.nonzero:
        return {**found.always, **snapshot.as_json()}
    kept, left_out = snapshot.nonzero()
    return {**found.always, **kept.as_json(), "left_out": left_out}


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
    for each in together.processes:
        for timing in each.functions:
            key = (timing.spec, timing.module, timing.function)
            exact.setdefault((*key, 0, "entry"), Counter())[str(each.process.pid)] += sum(s.hits for s in timing.sites)
    _add_times(document, "by_pid", _times((str(each.process.pid), each.functions) for each in together.processes))
    for site in document["sites"]:
        is_folded = bool(site.get("folded_sites"))
        parts = ("spec", "module", "function", *(() if is_folded else ("offset",)), "kind")
        found = (folded if is_folded else exact).get(tuple(site[each] for each in parts))
        site["by_pid"] = dict(found or {})


def _rows(together: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield what each process has of each function; of trees the calls at the outside, with what these called."""
    partial = together.partly_timed
    for each in together.processes:
        whose = {"pid": each.process.pid, "generation": each.process.generation}
        if each.tree:
            yield from (_branch(node.as_json(partial), whose) for node in each.tree)
        else:
            yield from (
                whose | _without(timing.as_json(), ("callers", "exits", "buckets")) for timing in each.functions
            )


def _branch(node: dict[str, Any], whose: Mapping[str, int]) -> dict[str, Any]:
    calls = node.pop("calls")
    return {**whose, **node, "children": [_branch(each, whose) for each in calls]}


def _add_durations(document: dict[str, Any], snapshots: Sequence[Snapshot]) -> None:
    """Add to each process for how long it has been measured: some come later than others."""
    seconds = {
        (each.process.pid, each.process.generation): snapshot.duration_s
        for snapshot in snapshots
        for each in snapshot.processes
    }
    for process in document.get("processes", ()):
        process["duration_s"] = round(seconds[process["pid"], process["generation"]], 6)


def _add_tids(document: dict[str, Any], together: Snapshot) -> None:
    """Add to each function what each thread has timed, by id, of all programs of its process."""
    document["threads"] = [each.as_json() for each in together.threads]
    _add_times(document, "by_tid", _times((str(each.tid), each.functions) for each in together.threads))


def _times(parts: Iterable[tuple[str, Sequence[FunctionTiming]]]) -> dict[Hashable, dict[str, FunctionTiming]]:
    """Return the calls of each function by the name of a part."""
    found: dict[Hashable, dict[str, FunctionTiming]] = {}
    for name, functions in parts:
        for timing in functions:
            own = found.setdefault((timing.spec, timing.module, timing.function), {})
            own[name] = own[name].merged(timing) if name in own else timing
    return found


def _add_times(document: dict[str, Any], name: str, times: Mapping[Hashable, dict[str, FunctionTiming]]) -> None:
    for function in document.get("functions", ()):
        own = times.get((function["spec"], function["module"], function["function"]), {})
        function[name] = {part: _without(timing.as_json(), _OF_FUNCTIONS) for part, timing in own.items()}


def _add_interval(document: dict[str, Any], last: Snapshot, by: str | None) -> None:
    """Add when it is, and to each site and function what it has counted since the last document."""
    assert last.interval is not None
    hits = {(each.spec, each.address, each.kind, each.exit_kind): each.hits for each in last.all_sites}
    timings = {(each.spec, each.address): each for each in last.functions}
    document["interval"] = {
        "time": dt.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "duration_s": round(last.interval.seconds, 6),
        "hits": last.hits,
        "calls": total((each, each.count) for each in last.functions),
    }
    for site in document["sites"]:
        site["interval_hits"] = hits[site["spec"], site["address"], site["kind"], site.get("exit_kind")]
    for function in document.get("functions", ()):
        timing = timings[function["spec"], function["address"]]
        function["interval_count"] = timing.count
        function["interval"] = _without(timing.as_json(), _OF_FUNCTIONS)
    if last.tree:
        document["interval"]["tree"] = [each.as_json(last.partly_timed) for each in last.tree]
    if by == "pid":
        _add_times(
            document, "interval_by_pid", _times((str(each.process.pid), each.functions) for each in last.processes)
        )
    if by == "tid":
        _add_times(document, "interval_by_tid", _times((str(each.tid), each.functions) for each in last.threads))


def in_page(document: Any) -> str:  # noqa: ANN401 - any document
    """Return a document as JSON within a page of HTML: a name may have ``</script>`` in it, which ends it."""
    return json_text(document, compact=True).replace("<", "\\u003c")


def json_text(document: Any, *, one_line: bool = True, compact: bool = False) -> str:  # noqa: ANN401 - any document
    r"""Return a document as JSON (RFC 8259), which lacks what some values are.

    No number and infinities are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; ``null`` is what is missing.
    Bytes of names that are no UTF-8 are ``\xNN``, as they are in texts that were read from memory.
    """
    form: dict[str, Any] = {"indent": None if one_line else 1, "separators": (",", ":") if compact else None}
    try:
        text = json.dumps(document, **form, allow_nan=False)
    except ValueError:  # what takes time is done where it is needed
        text = None
    if text is None or "\\udc" in text:
        return json.dumps(_in_json(document), **form, allow_nan=False)
    return text


def _in_json(value: Any) -> Any:  # noqa: ANN401 - any document
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
        case dict():
            return {_in_json(name): _in_json(each) for name, each in value.items()}
        case list() | tuple():
            return [_in_json(each) for each in value]
        case _:
            return value
