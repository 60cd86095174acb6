"""Recorded calls: the events of threads, entries and returns in the order of time, and how archives hold them.

An event is a time, a thread, a function with which end of its call this is, and the low half of the stack pointer, by
which a return is told from that of another call of the same function. Columns are written byte by byte (first all
lowest bytes, then the next ones), each number as the difference from the one before where that is a time: so what
repeats compresses well. In a line of JSON they are base64.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

ENTRY, RETURN, TAIL, GAP = range(4)
"""Which end of a call an event is; TAIL: the function has ended by a jump to another one. GAP: events of the thread are
lost between the ones before and after it; how many is in the function's place, 0 where it is not known whether."""
END_BITS = 2
MOST_LOST = (1 << 32 - END_BITS) - 1
"""More are not told apart."""
MOST_EVENTS = 1 << 20
"""Events in one line; a file with more in one is no recording."""
_WIDTHS = (1, 2, 4, 8)


class Thread(NamedTuple):
    """A thread whose calls were recorded."""

    pid: int
    tid: int
    name: str = ""


class Function(NamedTuple):
    """A function whose calls were recorded."""

    module: str
    name: str
    jumps: bool = False
    """Whether it may end by a jump to another function."""


class Lost(NamedTuple):
    """How many events of a process are not in a recording, and why."""

    pid: int
    events: int
    overwritten: bool = False
    """Whether later ones have taken their place, as was asked for."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events in the order of time."""

    times: "NDArray[np.int64]"
    """Nanoseconds of the kernel's monotonic clock."""
    threads: "NDArray[np.uint32]"
    """The number of the thread of each."""
    what: "NDArray[np.uint32]"
    """The number of the function, times four, and which end of the call it is."""
    frames: "NDArray[np.uint32]"
    """The low 32 bits of the stack pointer where the function is entered, or returns."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.times)

    def part(self, chosen: "slice | NDArray[Any]") -> "Events":
        """Return some of them."""
        return Events(self.times[chosen], self.threads[chosen], self.what[chosen], self.frames[chosen])

    def document(self) -> dict[str, Any]:
        """Return them as a line of an archive has them."""
        first = int(self.times[0]) if len(self) else 0
        columns = {
            "times": np.diff(self.times, prepend=first), "threads": self.threads, "what": self.what,
            "frames": self.frames,
        }  # fmt: skip
        return {"count": len(self), "first": first} | {name: _packed(each) for name, each in columns.items()}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Events":
        """Return what a line has; raise ``ValueError``, ``KeyError`` or ``TypeError`` where it has none."""
        count, first = document["count"], document["first"]
        if type(count) is not int or type(first) is not int or not (0 <= count <= MOST_EVENTS and 0 <= first < 1 << 62):
            raise ValueError("events without a number of them or a time")
        times = _unpacked(document["times"], count, np.int64)
        times[:1] = first
        threads, what, frames = (_unpacked(document[each], count, np.uint32) for each in ("threads", "what", "frames"))
        return cls(np.cumsum(times), threads, what, frames)


def joined(parts: "list[Events]") -> Events:
    """Return events that follow one another as one."""
    columns = ((each.times, each.threads, each.what, each.frames) for each in parts)
    return Events(*(np.concatenate(each) for each in zip(*columns, strict=True))) if parts else none()


def lost_text(count: int) -> str:
    """Return how many events a gap stands for, as it is shown; 0: some may be lost there."""
    return f"{count:,} event{'s' * (count > 1)} lost" if count else "events may be lost"


def none() -> Events:
    """Return no events."""
    empty = np.empty(0, np.uint32)
    return Events(np.empty(0, np.int64), empty, empty, empty)


def chosen_of(numbers: "NDArray[Any]", wanted: Collection[int]) -> "NDArray[np.bool_]":
    """Return which of some numbers of functions or threads are wanted."""
    table = np.zeros(max([*wanted, int(numbers.max(initial=0))], default=0) + 1, np.bool_)
    table[list(wanted)] = True
    found: NDArray[np.bool_] = table[numbers]
    return found


def _packed(column: "NDArray[Any]") -> list[Any]:
    """Return a column of whole numbers in as few bytes as the largest takes, byte by byte."""
    most = int(column.max()) if len(column) else 0
    width = 8 if len(column) and int(column.min()) < 0 else next(each for each in _WIDTHS if most < 1 << 8 * each)
    raw = column.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
    return [width, b64encode(np.ascontiguousarray(raw.T).tobytes()).decode()]


def _unpacked(packed: Any, count: int, kind: Any) -> "NDArray[Any]":  # noqa: ANN401 - from a file
    """Return the column that was packed."""
    width, text = packed
    if width not in _WIDTHS or not isinstance(text, str):
        raise ValueError("a column of events that is none")
    raw = np.frombuffer(b64decode(text, validate=True), np.uint8)
    if len(raw) != count * width:
        raise ValueError("a column of events of another length")
    plain = np.ascontiguousarray(raw.reshape(width, -1).T).view(f"<u{width}").reshape(-1)
    return plain.astype(kind)
