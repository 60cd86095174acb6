"""Records of handlers as they come: lines of text, or kept for the document of ``--json``."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from anyprobe.probes.session import Session

MARGIN_NS = 1_000_000
"""What is younger is kept for the next look: by then, whatever was emitted before it is complete, on all threads."""
DOCUMENT_LIMIT = 1_000_000
"""Records that one document keeps."""
TIME = "ts"


@dataclass(frozen=True, slots=True)
class Row:
    """One record: of which session, its name, how it is shown, and its fields."""

    session: "Session"
    name: str
    form: str
    fields: dict[str, Any]


class Records(Protocol):
    """Shows what handlers emit."""

    @property
    def enough(self) -> bool:
        """Whether nothing more is wanted."""
        ...

    def look(self, sessions: "Sequence[Session]", stream: TextIO, *, final: bool = False) -> int:
        """Take what was emitted since the last look, show it, and return how much it was."""
        ...

    def document(self) -> dict[str, Any]:
        """Return what belongs into the next document."""
        ...


def rows(sessions: "Iterable[Session]", *, final: bool = False) -> Iterator[Row]:
    """Return what was emitted in all sessions since the last time, in the order of time."""
    from anyprobe.probes.clock import own_time

    until = None if final else own_time()[0] - MARGIN_NS
    streams = [
        _of_one(session, name, form, batch)
        for session in sessions
        if "listeners" not in session.__dict__  # the listener reads the records
        for name, form, batch in session.handling.records(final=final, until=until)
        if len(batch)
    ]
    return heapq.merge(*streams, key=lambda row: row.fields[TIME])


def _of_one(session: "Session", name: str, form: str, batch: Any) -> Iterator[Row]:  # noqa: ANN401 - a NumPy array
    from anyprobe.data.records import rows as rows_of

    return (Row(session, name, form, fields) for fields in rows_of(batch))


class TextRecords:
    """Prints each record as a line."""

    enough = False

    def look(self, sessions: "Sequence[Session]", stream: TextIO, *, final: bool = False) -> int:
        """Print what has come."""
        from anyprobe.reports.records import line

        lines = [line(row.name, row.form, row.fields) + "\n" for row in rows(sessions, final=final)]
        if lines:
            stream.write("".join(lines))
            stream.flush()
        return len(lines)

    def document(self) -> dict[str, Any]:
        """Return nothing: all is printed already."""
        return {}


class KeptRecords:
    """Keeps records for the document, by name, as objects with ``ts_ns`` and the fields."""

    enough = False

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._times = MonotonicTime()
        self._count = 0
        self._lost: Counter[str] = Counter()

    def look(self, sessions: "Sequence[Session]", stream: TextIO, *, final: bool = False) -> int:  # noqa: ARG002
        """Keep what has come."""
        from anyprobe.reports.records import line

        found = 0
        for found, row in enumerate(rows(sessions, final=final), 1):  # noqa: B007 - the number is returned
            if self._count >= DOCUMENT_LIMIT:
                self._lost[row.name] += 1
                continue
            self._count += 1
            kept: dict[str, Any] = {"ts_ns": self._times.of(row.fields[TIME])}
            kept |= {name: value for name, value in row.fields.items() if name != TIME}
            if row.form:
                kept["text"] = line(row.name, row.form, row.fields)
            self._kept.setdefault(row.name, []).append(kept)
        return found

    def document(self) -> dict[str, Any]:
        """Return ``records``, and how many there was no room for; forget them."""
        document: dict[str, Any] = {"records": self._kept} if self._kept else {}
        if self._lost:
            document["records_left_out"] = dict(self._lost)
        self._kept, self._count, self._lost = {}, 0, Counter()
        return document


class MonotonicTime:
    """Turns times of records into those of the kernel's monotonic clock."""

    def __init__(self) -> None:
        """Compare the clocks when the first record is there."""
        self._offset: int | None = None

    def of(self, ts: int) -> int:
        """Return nanoseconds of ``CLOCK_MONOTONIC``."""
        if self._offset is None:
            from anyprobe.probes.clock import own_time

            own, monotonic = own_time()
            self._offset = monotonic - own
        return ts + self._offset
