"""Values by stack, as ``hist --by stack`` counts them, as trees of calls."""

import re
from collections.abc import Iterable
from dataclasses import replace

from anyprobe.data.aggregates.results import AggregationResult
from anyprobe.data.snapshots.profile import ProfiledStack, ProfileFrame, tree_of
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.exporters.base import Measurement

KINDS = ("count", "sum")
"""The kinds of aggregations whose values add up over stacks."""
_STACK = re.compile(r"stack|ctx\.ustack\((\d*)\)")
_NANOSECONDS = "latency_ns"


def is_stack(key: str) -> bool:
    """Return whether a key is the program's stack."""
    return _STACK.fullmatch(key) is not None


def by_stack(found: Measurement) -> Measurement:
    """Return results whose trees of calls have what was counted by stack instead of the time of calls."""
    counted = _counted(found.together)
    if counted is None:
        return found
    return replace(
        found,
        together=_with_tree(found.together),
        snapshots=[_with_tree(each) for each in found.snapshots],
        last=None if found.last is None else _with_tree(found.last),
        what="Hits by stack" if counted.kind == "count" else f"Sum of {counted.name} by stack",
        counted="hits" if counted.kind == "count" else "sum",
        counts=counted.name != _NANOSECONDS,
    )


def _counted(snapshot: Snapshot) -> AggregationResult | None:
    return next((each for each in snapshot.aggregations if len(each.by) == 1 and is_stack(each.by[0])), None)


def _with_tree(snapshot: Snapshot) -> Snapshot:
    found = _counted(snapshot)
    return snapshot if found is None else replace(snapshot, tree=tree_of(_stacks(found), 1.0))


def _stacks(found: AggregationResult) -> Iterable[ProfiledStack]:
    from anyprobe.handlers.frontend.calls import DEPTH

    asked = _STACK.fullmatch(found.by[0])
    most = int(asked[1]) if asked is not None and asked[1] else DEPTH.value
    for (stack,), cell in found.entries.items():
        frames = tuple(map(_frame, str(stack).split(" < ")))
        yield ProfiledStack(frames, int(cell.value or 0), truncated=len(frames) >= most)


def _frame(place: str) -> ProfileFrame:
    """Return the function of a place; where no function is known, the place itself."""
    name, _, _ = place.rpartition("+0x")
    module, colon, function = (name or place).partition(":")
    return ProfileFrame(module, function) if colon else ProfileFrame(name, place)
