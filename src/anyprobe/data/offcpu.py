"""Where threads were not on processors, by cause, as values."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from anyprobe.data.results import AggregationResult, CellValue, Key

ASLEEP = "asleep_ns"
"""The name of the aggregation that holds it."""
_JOINED = " < "
"""Between the frames of a stack."""


class Cause(IntEnum):
    """What threads waited for."""

    TIMER = 1
    LOCK = 2
    CONDITION = 3
    THREAD = 4
    POLL = 5
    SOCKET = 6
    IO = 7
    FILE = 8
    CHILD = 9
    SIGNAL = 10
    IPC = 11
    CALL = 12


Causes = dict[str, Cause]
"""What functions wait for, by the names that keys have of them."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """For how long threads were off processors in one place."""

    cause: Cause
    frames: tuple[str, ...]
    """The function that waited and its callers, innermost first."""
    count: int
    off_ns: int
    longest_ns: int

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "cause": self.cause.name.lower(),
            "frames": list(self.frames),
            "count": self.count,
            "off_ns": self.off_ns,
            "max_off_ns": self.longest_ns,
        }


def with_causes(result: AggregationResult, causes: Causes) -> AggregationResult:
    """Return what handlers have counted by function and stack, by cause and stack."""
    if result.name != ASLEEP:
        return result
    entries: dict[Key, CellValue] = {}
    for (function, stack), cell in result.entries.items():
        key = int(causes.get(str(function), Cause.CALL)), stack
        entries[key] = entries[key].merged(cell) if key in entries else cell
    return replace(result, by=("cause", "stack"), entries=entries)


def tells_causes(result: AggregationResult) -> bool:
    """Return whether an aggregation is what ``with_causes`` has made of where threads slept."""
    return result.name == ASLEEP and result.by[:1] == ("cause",)


def asleep_in(aggregations: Iterable[AggregationResult]) -> tuple[Asleep, ...]:
    """Return where threads slept, the longest first, of what ``with_causes`` has made."""
    found = [
        Asleep(Cause(int(cause)), tuple(str(stack).split(_JOINED)), cell.count, cell.sum or 0, cell.max or 0)
        for each in aggregations
        if tells_causes(each)
        for (cause, stack), cell in each.entries.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.off_ns, each.frames)))
