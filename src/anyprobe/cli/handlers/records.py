"""Records of handlers as they come: lines of text, or kept for the document of ``--json``."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from anyprobe.cli.programs.targets import KERNEL, in_the_kernel, on_process
from anyprobe.probes.clock import own_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.cli.programs.targets import Measured
    from anyprobe.data.aggregates.records import Records as Batch
else:
    from anyprobe.core.later import np

MARGIN_NS = 1_000_000
"""What is younger is kept for the next look: by then, whatever was emitted before it is complete, on all threads."""
DOCUMENT_LIMIT = 1_000_000
"""Records that one document keeps."""
TIME = "ts"


@dataclass(frozen=True, slots=True)
class Row:
    """One record: of which session, its name, how it is shown, and its fields."""

    session: "Measured"
    name: str
    form: str
    fields: dict[str, Any]


class Records(Protocol):
    """Shows what handlers emit."""

    @property
    def enough(self) -> bool:
        """Whether nothing more is wanted."""
        ...

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:
        """Take what was emitted since the last look, show it, and return how much it was."""
        ...

    def document(self) -> dict[str, Any]:
        """Return what belongs into the next document."""
        ...


def rows(sessions: "Iterable[Measured]", *, final: bool = False) -> Iterator[Row]:
    """Return what was emitted in all sessions since the last time, in the order of time.

    Up to one moment for all of them: what is younger in one session may be older than what another has not shown yet.
    """
    from anyprobe.probes.clock import own_time

    until = None if final else own_time()
    streams = [
        rows_of(session, name, form, batch)
        for session in sessions
        if not session.has_listeners  # which read the records
        for name, form, batch in batches(session, until)
        if len(batch)
    ]
    return heapq.merge(*streams, key=lambda row: row.fields[TIME])


def batches(session: "Measured", now: tuple[int, int] | None) -> "Iterable[tuple[str, str, Batch]]":
    """Return what was emitted in a session since the last time, by records.

    ``now``: the time of programs' records and the kernel's, whose very latest are left; ``None`` at the end.
    """
    own, monotonic = (None, None) if now is None else (now[0] - MARGIN_NS, now[1] - MARGIN_NS)
    if session.pid == KERNEL:
        return in_the_kernel(session).emitted(until=monotonic)
    return on_process(session).handling.records(final=now is None, until=own)


def rows_of(session: "Measured", name: str, form: str, batch: "Batch") -> Iterator[Row]:
    """Yield the records of one batch; the kernel's times become those that programs read."""
    from anyprobe.data.aggregates import records

    times = MonotonicTime() if session.pid == KERNEL else None
    for fields in records.rows(batch):
        if times is not None:
            fields[TIME] = times.own(fields[TIME])
        yield Row(session, name, form, fields)


class TextRecords:
    """Prints each record as a line."""

    enough = False

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:
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

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:  # noqa: ARG002
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
    """Turns times of records into those of the kernel's monotonic clock.

    The two do not go equally fast: they differ by millionths, as a tick was measured once. So they are read together
    again and again; what lies between two readings is interpolated.
    """

    def of(self, ts: int) -> int:
        """Return nanoseconds of ``CLOCK_MONOTONIC``."""
        return _readings().seen(ts).monotonic(ts)

    def of_all(self, times: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Return those of many records."""
        if not len(times):
            return times
        clocks = _readings().seen(int(times.max()))
        found = _after(times, clocks.before, clocks.faster)
        return np.where(times < clocks.before[0], _after(times, *clocks.earlier), found)

    def own(self, ns: int) -> int:
        """Return the time that a record would have at a moment of the monotonic clock; within 1 ns of ``of``."""
        readings = _readings()
        return readings.seen(ns + readings.last[0] - readings.last[1]).own(ns)


class _Readings:
    """The clock of records beside the monotonic one: the last moments at which both were read.

    What lies before the last two is as it was said when these were not there: records are taken in some time after they
    are emitted, and those before them have been shown.
    """

    def __init__(self) -> None:
        """Read them for the first time."""
        self.before = self.last = own_time()
        self.faster = 0.0
        """By which part the monotonic clock is the faster one."""
        self.earlier = self.before, self.faster
        """The moment before these, and the same since then."""

    def seen(self, ts: int) -> "_Readings":
        """Read both clocks if a record is younger than the last reading."""
        if ts > self.last[0]:
            now = own_time()
            if now[0] > self.last[0]:
                self.earlier = self.before, self.faster
                self.before, self.last = self.last, now
                passed = now[0] - self.before[0]
                self.faster = (now[1] - self.before[1] - passed) / passed
        return self

    def monotonic(self, ts: int) -> int:
        before, faster = (self.before, self.faster) if ts >= self.before[0] else self.earlier
        passed = ts - before[0]
        return before[1] + passed + round(max(passed, 0) * faster)

    def own(self, ns: int) -> int:
        before, faster = (self.before, self.faster) if ns >= self.before[1] else self.earlier
        passed = ns - before[1]
        return before[0] + passed - round(max(passed, 0) * faster / (1 + faster))


def _after(times: "NDArray[np.int64]", reading: tuple[int, int], faster: float) -> "NDArray[np.int64]":
    """Return times of records on the monotonic clock, from a moment on at which both were read."""
    passed = times - reading[0]
    return reading[1] + passed + (passed.clip(min=0) * faster).round().astype(times.dtype)


@cache
def _readings() -> _Readings:
    """Return the readings that all records of this process are seen by."""
    return _Readings()
