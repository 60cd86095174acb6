"""Values that were recorded with calls, and instants between them: how archives hold them, and which call has which.

A value is kept by a handler beside what records the call, as a record of its own, directly before the event at that
end. So it belongs to the next event of its function at its place on the stack of its thread, unless that is the other
end, or events of the thread are lost there: then nothing is said of whose it is.
"""

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.core.arrays import unique
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, MOST_EVENTS, Events

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

_NUMBERS = frozenset({"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"})
"""What columns of numbers may be, as NumPy calls it."""


class Instant(NamedTuple):
    """Something that has happened at a moment: a marker of a program, an instruction, an event of the kernel."""

    time: int
    thread: int
    """The number of the thread in the recording."""
    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Values:
    """Values that were kept at one end of calls, a row for each, in the order of time."""

    events: Events
    """The events that they are of, but for the times, which are those of the rows."""
    columns: "tuple[NDArray[Any], ...]"
    """One for each label; of texts they have objects."""
    missing: "NDArray[np.uint32]"
    """For each row a bit for each column that has no value there."""

    def document(self) -> dict[str, Any]:
        """Return them as a line of an archive has them."""
        columns = [each.tolist() if each.dtype.kind == "O" else _packed(each) for each in self.columns]
        return self.events.document() | {"columns": columns, "missing": _packed(self.missing)}

    @classmethod
    def of(cls, document: Mapping[str, Any], labels: int) -> "Values":
        """Return what a line has; raise ``ValueError``, ``KeyError`` or ``TypeError`` where it has none."""
        events = Events.of(document)
        if len(document["columns"]) != labels:
            raise ValueError("another number of columns than of labels")
        columns = tuple(_column(each, len(events)) for each in document["columns"])
        return cls(events, columns, _column(document["missing"], len(events)).astype(np.uint32))


def _packed(column: "NDArray[Any]") -> dict[str, str]:
    return {"type": column.dtype.str, "data": b64encode(np.ascontiguousarray(column).tobytes()).decode()}


def _column(packed: Any, count: int) -> "NDArray[Any]":  # noqa: ANN401 - from a file
    if isinstance(packed, list):
        if len(packed) != count or count > MOST_EVENTS or not all(isinstance(each, str) for each in packed):
            raise ValueError("a column that is too short or too long, or has what is no text")
        found = np.empty(count, object)
        found[:] = packed
        return found
    if packed["type"] not in _NUMBERS:
        raise ValueError("a column of an unknown type")
    numbers = np.frombuffer(b64decode(packed["data"], validate=True), packed["type"])
    if len(numbers) != count:
        raise ValueError("a column that is too short or too long")
    return numbers


@dataclass(slots=True)
class Kept:
    """All values of a recording at one end of calls, and the events that they belong to."""

    labels: tuple[str, ...] = ()
    parts: list[Values] = field(default_factory=list)
    _rows: "NDArray[np.int64] | None" = None
    """For each event of the recording its row, -1 where it has none."""
    _starts: list[int] = field(default_factory=list)

    def assign(self, events: Events, *, entries: bool) -> None:
        """Find which event each row belongs to; ``events`` are all of the recording."""
        if not self.parts:
            return
        self._starts = np.cumsum([0, *(len(each.events) for each in self.parts)])[:-1].tolist()
        names = ("times", "threads", "what", "frames")
        own = Events(*(np.concatenate([getattr(each.events, name) for each in self.parts]) for name in names))
        self._rows = _rows_of(events, own, entries=entries)

    def at(self, event: int) -> dict[str, Any]:
        """Return the values of an event by their labels: nothing where it has none, None for one that is missing."""
        if self._rows is None or (row := int(self._rows[event])) < 0:
            return {}
        place = bisect_right(self._starts, row) - 1
        part, row = self.parts[place], row - self._starts[place]
        missing = int(part.missing[row])
        return {
            label: None if missing >> at & 1 else _plain(column[row])
            for at, (label, column) in enumerate(zip(self.labels, part.columns, strict=True))
        }

    def chosen(self, first: int, count: int) -> "NDArray[np.bool_]":
        """Return which of some events that follow one another have values."""
        if self._rows is None:
            return np.zeros(count, np.bool_)
        found: NDArray[np.bool_] = self._rows[first : first + count] >= 0
        return found


def _plain(value: Any) -> Any:  # noqa: ANN401 - a number or a text
    return value if isinstance(value, str) else value.item()


def _rows_of(events: Events, own: Events, *, entries: bool) -> "NDArray[np.int64]":
    """Return the row of each event, -1 where it has none."""
    ends = events.what & np.uint32((1 << END_BITS) - 1)
    calls = np.flatnonzero(ends != GAP)
    threads = np.concatenate([events.threads[calls], own.threads])
    functions = np.concatenate([events.what[calls], own.what]) >> np.uint32(END_BITS)
    frames = np.concatenate([events.frames[calls], own.frames])
    times = np.concatenate([events.times[calls], own.times])
    is_row = np.arange(len(times)) >= len(calls)
    order = np.lexsort((~is_row, times, frames, functions, threads))
    before, after = order[:-1], order[1:]
    same = (threads[before] == threads[after]) & (functions[before] == functions[after])
    same &= (frames[before] == frames[after]) & is_row[before] & ~is_row[after]
    pairs = np.flatnonzero(same)
    whose, rows = calls[after[pairs]], before[pairs] - len(calls)
    right = (ends[whose] == ENTRY) == entries
    whose, rows = whose[right], rows[right]
    if (ends == GAP).any():
        clear = ~_have_gaps(events, ends == GAP, whose, own.times[rows])
        whose, rows = whose[clear], rows[clear]
    found = np.full(len(events), -1, np.int64)
    found[whose] = rows
    return found


def _have_gaps(
    events: Events, is_gap: "NDArray[np.bool_]", whose: "NDArray[np.int64]", times: "NDArray[np.int64]"
) -> "NDArray[np.bool_]":
    """Return whether events of its thread may be lost between the time of a row and its event."""
    found = np.zeros(len(whose), np.bool_)
    for thread in unique(events.threads[is_gap]).tolist():
        own = np.flatnonzero(events.threads == thread)
        pairs = np.flatnonzero(events.threads[whose] == thread)
        gaps = np.concatenate([[0], np.cumsum(is_gap[own])])
        since = np.searchsorted(events.times[own], times[pairs])  # the first event after the row
        found[pairs] = gaps[np.searchsorted(own, whose[pairs])] > gaps[since]
    return found


def instants_of(lines: Any, threads: int) -> Iterator[Instant]:  # noqa: ANN401 - from a file
    """Yield the instants of a line of an archive; raise ``ValueError`` or ``TypeError`` where there are none."""
    for time, thread, name, values in lines:
        if type(time) is not int or type(thread) is not int or not 0 <= thread < threads or not 0 <= time < 1 << 62:
            raise ValueError("an instant of a thread that was not named, or of no time")
        if not isinstance(values, dict):
            raise TypeError("an instant without values")
        yield Instant(time, thread, str(name), {str(label): value for label, value in values.items()})


def instants_line(found: Sequence[Instant]) -> list[list[Any]]:
    """Return instants as a line of an archive has them."""
    return [[each.time, each.thread, each.name, dict(each.values)] for each in found]
