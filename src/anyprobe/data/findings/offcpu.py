"""Where threads were not on processors, by cause, as values."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any

from anyprobe.data.aggregates.results import AggregationResult, CellValue, Key

ASLEEP, LATE, KERNEL = "asleep_ns", "asleep before", "threads in the kernel"
"""The aggregations that hold it, what had begun before the handlers came, and what the kernel has counted."""
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
    FUTEX = 13


class State(StrEnum):
    """Which part of a wait was within the session."""

    WHOLE = ""
    BEFORE = "before"
    """Its end: it began before the handlers were there."""
    OPEN = "open"
    """Its beginning: it has not ended."""
    ALL_ALONG = "all along"
    """The middle: the thread was asleep in one call all the time."""


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
    descriptor: str = ""
    """What was read, written or waited on; ``?`` where it was closed before it was asked for."""
    state: State = State.WHOLE

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        from anyprobe.data.findings.documents import ASLEEP

        return ASLEEP.of(self)


def cause_of(causes: Causes, function: str) -> Cause:
    """Return what a function waits for."""
    return causes.get(function, Cause.CALL)


def with_causes(result: AggregationResult, causes: Causes) -> AggregationResult:
    """Return what handlers have counted by function and stack, by cause and stack."""
    if result.name != ASLEEP:
        return result
    entries: dict[Key, CellValue] = {}
    for (function, stack), cell in result.entries.items():
        key = int(cause_of(causes, str(function))), stack
        entries[key] = entries[key].merged(cell) if key in entries else cell
    return replace(result, by=("cause", "stack"), entries=entries)


def tells_causes(result: AggregationResult) -> bool:
    """Return whether an aggregation is what ``with_causes`` has made of where threads slept."""
    return result.name == ASLEEP and result.by[:1] == ("cause",)


def asleep_in(aggregations: Iterable[AggregationResult]) -> tuple[Asleep, ...]:
    """Return where threads slept, the longest first, of what ``with_causes`` has made."""
    found = [
        Asleep(
            Cause(int(cause)),
            tuple(str(stack).split(_JOINED)),
            cell.count,
            cell.sum or 0,
            cell.max or 0,
            *(str(more[0]), State(str(more[1])) if len(more) > 1 else State.WHOLE) if more else (),
        )
        for each in aggregations
        if tells_causes(each)
        for (cause, stack, *more), cell in each.entries.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.off_ns, each.frames)))


def kernel_numbers(aggregations: Iterable[AggregationResult]) -> dict[str, int]:
    """Return what the kernel has counted of threads, by name."""
    return {
        str(key[0]): cell.sum or 0 for each in aggregations if each.name == KERNEL for key, cell in each.entries.items()
    }
