"""Snapshots as bytes, to be merged elsewhere or later. They hold everything, of which ``--json`` leaves some out."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from anyprobe.core.errors import UsageError
from anyprobe.data.calltree import CallNode
from anyprobe.data.nested import NestedTiming
from anyprobe.data.processes import ProcessCounts, ProcessInfo, TargetInfo, ThreadTimes
from anyprobe.data.refused import RefusedSite
from anyprobe.data.results import AggregationResult, MapResult
from anyprobe.data.snapshot import FunctionTiming, SiteResult, Snapshot
from anyprobe.data.taken import Taken

FORMAT = "anyprobe-snapshot-1"


def _timing(**values: Any) -> FunctionTiming:  # noqa: ANN401 - what was written
    nested, places, taken = values.pop("nested", None), values.pop("places", ()), values.pop("taken", None)
    return FunctionTiming(
        **values,
        places=tuple(SiteResult(**_with_tuples(place)) for place in places),
        nested=None if nested is None else NestedTiming(**nested),
        taken=None if taken is None else Taken(**taken),
    )


_PARTS: dict[str, Callable[..., Any]] = {
    "sites": SiteResult,
    "functions": _timing,
    "refused": RefusedSite,
    "others": TargetInfo,
}


def dump(snapshot: Snapshot) -> bytes:
    """Return a snapshot as bytes."""
    document: dict[str, Any] = {"format": FORMAT}
    for field in dataclasses.fields(Snapshot):
        value = getattr(snapshot, field.name)
        if field.name == "aggregations":
            value = [result.as_document() for result in value]
        elif field.name == "maps":
            value = [
                [each.name, list(each.by), [[list(key), held] for key, held in each.entries.items()]] for each in value
            ]
        elif field.name == "processes":
            value = [
                [
                    dataclasses.asdict(each.process),
                    [[list(key), hits] for key, hits in each.hits.items()],
                    [dataclasses.asdict(timing) for timing in each.functions],
                    [dataclasses.asdict(node) for node in each.tree],
                ]
                for each in value
            ]
        elif field.name == "threads":
            value = [
                [
                    dataclasses.asdict(each.process),
                    each.tid,
                    each.name,
                    [dataclasses.asdict(timing) for timing in each.functions],
                ]
                for each in value
            ]
        elif field.name in _PARTS:
            value = [dataclasses.asdict(part) for part in value]
        elif field.name == "tree":
            value = [dataclasses.asdict(node) for node in value]
        elif field.name == "target" or (field.name == "in_no_row" and value is not None):
            value = dataclasses.asdict(value)
        document[field.name] = value
    return json.dumps(document).encode()


def load(data: bytes) -> Snapshot:
    """Return the snapshot that ``dump`` has written."""
    try:
        document = json.loads(data)
        if document.pop("format") != FORMAT:
            raise UsageError(f"a snapshot of another format than {FORMAT}")
        document["target"] = TargetInfo(**_with_tuples(document["target"]))
        for name, part in _PARTS.items():
            document[name] = tuple(part(**_with_tuples(values)) for values in document.get(name, ()))
        document["processes"] = tuple(
            ProcessCounts(
                ProcessInfo(**process),
                {tuple(key): hits for key, hits in counts},
                tuple(_timing(**_with_tuples(values)) for values in (more[0] if more else ())),
                tuple(map(CallNode.from_document, more[1] if len(more) > 1 else ())),
            )
            for process, counts, *more in document.get("processes", ())
        )
        document["threads"] = tuple(
            ThreadTimes(ProcessInfo(**process), tid, name, tuple(_timing(**_with_tuples(each)) for each in timings))
            for process, tid, name, timings in document.get("threads", ())
        )
        document["maps"] = tuple(
            MapResult(name, tuple(by), {tuple(key): value for key, value in entries})
            for name, by, entries in document.get("maps", ())
        )
        document["aggregations"] = tuple(map(AggregationResult.from_document, document["aggregations"]))
        rest = document.get("in_no_row")
        document["in_no_row"] = None if rest is None else NestedTiming(**rest)
        document["tree"] = tuple(map(CallNode.from_document, document.get("tree", ())))
        return Snapshot(**_with_tuples(document))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"this is not a snapshot: {error}") from error


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Return the same with tuples for JSON's lists, in the order of their elements."""
    return {name: _as_tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _as_tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(_as_tuple(value) if isinstance(value, list) else value for value in values)
