"""Timelines for Perfetto (https://ui.perfetto.dev): a track for each thread, below that of its process, and its rate.

The format is https://perfetto.dev/docs/reference/trace-packet-proto: packets of numbered fields, in any order of time.
Numbers that differ from event to event are written in a fixed number of bytes, so that NumPy makes all packets of a
line of events at once. A call without a return ends where that was seen, and says so; what is open at the end has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from anyprobe.core.arrays import unique
from anyprobe.core.printable import printable
from anyprobe.data.calls.matching import UNKNOWN, Matched, Matcher
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, Events, lost_text
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import FAR, LOST, Calls, values_of
from anyprobe.data.calls.values import Instant
from anyprobe.exporters.pprof import double, number, part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

_PACKET, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DEFAULTS, _DESCRIPTOR = 1, 8, 10, 11, 12, 13, 59, 60
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_TYPE, _NAME_IID, _NAME, _TRACK, _ANNOTATION, _VALUE = 9, 10, 23, 11, 4, 30
"""Numbers of fields, and values of some."""
_TIME_BYTES, _IID_BYTES, _SEQUENCE_BYTES = 9, 4, 4
_PROCESSES, _RATES = 1 << 32, 1 << 33
"""Tracks of processes, and of their rates, have numbers from here on; those of threads are numbers of sequences."""
_RATE_SEQUENCE = (1 << 32) - 1
"""The sequence of the packets of all rates."""
RATE_NS = 10_000_000
"""The time in which calls are counted for a rate."""


def write(path: str, recording: Recording, files: Iterator[BinaryIO], most: int = 0) -> None:
    """Write all events of a recording, as they are read.

    Args:
        path: its file, which ``recording`` has not read yet.
        recording: what is read.
        files: where to: the first one, and each time that one has ``most`` bytes the next one.
        most: bytes, which a line of events may exceed; 0 for any number.
    """
    known = Recording(path)
    if next(known.events(), None) is not None and known.has_values:
        known = Recording(path)
        known.whole()  # which event has which values is known when all are read
    timeline, first, last = _Timeline(recording, next(files)), 0, 0
    for events in recording.events():
        if most and timeline.written >= most:
            timeline.go_on_in(files, last)
        order = np.argsort(events.threads.astype(np.uint16) if len(recording.threads) < 1 << 16 else events.threads,
                           kind="stable")  # fmt: skip
        numbers = events.threads[order]
        begins = events.what & np.uint32((1 << END_BITS) - 1) == ENTRY
        timeline.count(events.threads[begins], events.times[begins])
        for chosen in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
            timeline.add(events.part(chosen), _values(known, chosen, first, len(events)))
        first += len(events)
        last = int(events.times[-1]) if len(events) else last
    timeline.add_instants(None)
    timeline.end_rates()
    timeline.out.flush()


class _Timeline:
    """Files of packets, one after another; what each needs to be read by itself is in it."""

    def __init__(self, recording: Recording, out: BinaryIO) -> None:
        self._recording, self.out, self.written = recording, out, 0
        self._matchers: dict[int, Matcher] = {}
        self._described: set[int] = set()
        self._processes: set[int] = set()
        self._rated: set[int] = set()
        self._named = self._told = 0
        self._zero = UNKNOWN
        self._rates: dict[int, tuple[int, int]] = {}
        """The last interval of each process in which calls have begun, and how many there are by now."""

    def put(self, data: bytes) -> None:
        """Write packets."""
        self.out.write(data)
        self.written += len(data)

    def describe(self, thread: int) -> None:
        """Write the tracks of a thread unless they are there, and the names of functions that are new."""
        recording = self._recording
        is_new = thread not in self._described
        if is_new:
            self._described.add(thread)
            self.put(_descriptors(recording, thread, self._processes))
        if self._named < len(recording.functions):
            self._named = len(recording.functions)
            self.put(b"".join(_names(recording, each) for each in self._described))
        elif is_new:
            self.put(_names(recording, thread))

    def add(self, own: Events, values: Mapping[int, Mapping[str, Any]]) -> None:
        """Write events of one thread; ``values``: what some of them were recorded with."""
        recording, thread = self._recording, int(own.threads[0])
        self.describe(thread)
        if thread not in self._matchers and recording.overwritten:
            name = f"events before this are overwritten, {recording.overwritten:,} of all threads"
            self.put(_event(thread, int(own.times[0]), _INSTANT, name=name))
        matcher = self._matchers.setdefault(thread, Matcher(recording.jumping))
        matched = matcher.match(own.times, own.what, own.frames)
        self.put(_packets(recording, thread, own, matched, values))

    def add_instants(self, until: int | None) -> None:
        """Write the instants that there have been since the last ones, up to a time."""
        instants = self._recording.instants[self._told :]
        self._told += len(instants)
        for each in instants:
            if until is not None and each.time > until:
                self._recording.instants.append(each)  # for the next file
                continue
            self.describe(each.thread)
            self.put(_event(each.thread, each.time, _INSTANT, name=printable(each.name), values=each.values))

    def count(self, threads: "NDArray[np.uint32]", begins: "NDArray[np.int64]") -> None:
        """Write how many calls have begun, in each process and interval, up to the last interval of each."""
        if not len(begins):
            return
        if self._zero == UNKNOWN:
            self._zero = int(begins[0])
        of_threads = np.array([each.pid for each in self._recording.threads], np.int64)
        pids, intervals = of_threads[threads], (begins - self._zero) // RATE_NS
        for pid in unique(pids).tolist():
            own = intervals[pids == pid]
            first = np.flatnonzero(np.diff(own, prepend=-1))
            counts = np.diff(first, append=len(own))
            for interval, count in zip(own[first].tolist(), counts.tolist(), strict=True):
                last, before = self._rates.get(pid, (interval, 0))
                if interval > last:
                    self._put_rate(pid, last, before)
                    if interval > last + 1:
                        self._put_rate(pid, last + 1, 0)
                    before = 0
                self._rates[pid] = max(interval, last), before + count

    def end_rates(self) -> None:
        """Write the last interval of each process."""
        for pid, (last, count) in self._rates.items():
            self._put_rate(pid, last, count)
            self._put_rate(pid, last + 1, 0)

    def _put_rate(self, pid: int, interval: int, count: int) -> None:
        """Write how many calls have begun in an interval, as a rate."""
        if pid not in self._rated:
            self._rated.add(pid)
            about = number(1, _RATES + pid) + part(2, b"calls begun") + number(5, _PROCESSES + pid)
            self.put(_process(self._recording, pid, self._processes))
            self.put(_packet(part(_DESCRIPTOR, about + part(8, part(6, b"calls/s")))))
        event = number(_TYPE, _COUNTER) + number(_TRACK, _RATES + pid) + number(_VALUE, count * 10**9 // RATE_NS)
        time = self._zero + interval * RATE_NS
        self.put(_packet(number(_TIMESTAMP, time), number(_SEQUENCE, _RATE_SEQUENCE), part(_TRACK_EVENT, event)))

    def go_on_in(self, files: Iterator[BinaryIO], now: int) -> None:
        """End this file, and the calls in it that are open, and begin them again in the next one."""
        self.add_instants(now)
        threads = [(thread, each.calls) for thread, each in self._matchers.items() if each.calls]
        for thread, calls in threads:
            self.put(_event(thread, now, _END, annotation="goes on in the next file") * len(calls))
        self.out.flush()
        self.out, self.written, self._named = next(files), 0, 0
        self._described, self._processes, self._rated = set(), set(), set()
        for thread, calls in threads:
            self.describe(thread)
            for call in calls:
                name = printable(self._recording.functions[call.function].name)
                began = f"{(now - call.began) / 1e3:,.3f} µs before, in an earlier file"
                self.put(_event(thread, now, _BEGIN, name=name, values={"began": began}))


def write_chosen(recording: Recording, calls: Calls, instants: Sequence[Instant], out: BinaryIO) -> None:
    """Write some calls of a recording that was read, and instants."""
    timeline = _Timeline(recording, out)
    values = values_of(recording, calls)
    ends: list[tuple[int, int, int]] = []
    for row, (first, last) in enumerate(zip(calls.first.tolist(), calls.last.tolist(), strict=True)):
        # of what has ended by one event, the innermost first: those that began last
        ends += [(first, 0, row)] * (first % 2) + [(last, -row - 1, row)] * (last < FAR or not first % 2)
    threads, functions, begins, until, gone = (
        each.tolist() for each in (calls.threads, calls.functions, calls.begins, calls.ends, calls.gone)
    )
    for _, kind, row in sorted(ends):
        thread, name = threads[row], printable(recording.functions[functions[row]].name)
        timeline.describe(thread)
        given = {} if values is None else values[row]
        if begins[row] == UNKNOWN:
            said = "its call was not seen to begin"
            timeline.put(_event(thread, until[row], _INSTANT, name=f"{name} returned", annotation=said, values=given))
        elif kind == 0:
            timeline.put(_event(thread, begins[row], _BEGIN, name=name, values=given))
        elif until[row] != UNKNOWN:
            timeline.put(_event(thread, until[row], _END))
        else:
            lost = gone[row] == LOST
            said = "its end may be among lost events" if lost else "left without a return, by this time"
            timeline.put(_event(thread, begins[row] if lost else gone[row], _END, annotation=said))
    for each in instants:
        timeline.describe(each.thread)
        timeline.put(_event(each.thread, each.time, _INSTANT, name=printable(each.name), values=each.values))
    order = np.argsort(calls.begins, kind="stable")[np.count_nonzero(calls.begins == UNKNOWN) :]
    timeline.count(calls.threads[order], calls.begins[order])
    timeline.end_rates()
    out.flush()


def _values(known: Recording, chosen: "NDArray[np.int64]", first: int, count: int) -> dict[int, dict[str, Any]]:
    """Return the values of those of some events that have any, by their place among the chosen ones."""
    if not known.has_values:
        return {}
    has = (known.at_entry.chosen(first, count) | known.at_return.chosen(first, count))[chosen]
    numbers = (chosen + first).tolist()
    return {at: known.at_entry.at(numbers[at]) | known.at_return.at(numbers[at]) for at in np.flatnonzero(has).tolist()}


def _packet(*fields: bytes) -> bytes:
    return part(_PACKET, b"".join(fields))


def _descriptors(recording: Recording, thread: int, processes: set[int]) -> bytes:
    """Return the packets that name the tracks of a thread, and of its process unless it has one."""
    pid, tid, name = recording.threads[thread]
    about = number(1, pid) + number(2, tid) + part(5, printable(name).encode())
    track = number(1, thread + 1) + part(4, about) + number(5, _PROCESSES + pid)
    return _process(recording, pid, processes) + _packet(part(_DESCRIPTOR, track))


def _process(recording: Recording, pid: int, processes: set[int]) -> bytes:
    """Return the packet that names the track of a process, unless it has one."""
    if pid in processes:
        return b""
    processes.add(pid)
    first = next((each.name for each in recording.threads if each.pid == pid), "")
    about = number(1, pid) + part(6, printable(first).encode())
    return _packet(part(_DESCRIPTOR, number(1, _PROCESSES + pid) + part(3, about)))


def _names(recording: Recording, thread: int) -> bytes:
    """Return the packet that numbers the names of functions, from 1, for the events of a thread."""
    names = b"".join(
        part(2, number(1, at) + part(2, printable(each.name).encode()))
        for at, each in enumerate(recording.functions, 1)
    )
    track = part(_DEFAULTS, part(_TRACK_EVENT, number(_TRACK, thread + 1)))
    flags = number(_FLAGS, _CLEARED)
    return _packet(number(_SEQUENCE, thread + 1), flags, part(_INTERNED, names), track)


def _packets(
    recording: Recording, thread: int, events: Events, matched: Matched, values: Mapping[int, Mapping[str, Any]]
) -> bytes:
    """Return the packets of a thread's events; ``values``: what some of them were recorded with."""
    ends = events.what & np.uint32((1 << END_BITS) - 1)
    plain = (ends == ENTRY) | ((ends != GAP) & (matched.others != UNKNOWN))
    rows = _rows(thread, events, ends)
    if values:
        plain[list(values)] = False
    if not matched.gone and plain.all():
        return rows.tobytes()
    more: dict[int, bytes] = {}
    for each in matched.gone:
        lost = ends[each.event] == GAP
        at = int(events.times[each.event - 1 if lost and each.event else each.event])
        why = "its end may be among lost events" if lost else "left without a return, by this time"
        more[each.event] = more.get(each.event, b"") + _event(thread, at, _END, annotation=why)
    for at in np.flatnonzero(~plain).tolist():
        function, time = int(events.what[at]) >> END_BITS, int(events.times[at])
        given = values.get(at, {})
        if given and (ends[at] == ENTRY or matched.others[at] != UNKNOWN):
            kind = _BEGIN if ends[at] == ENTRY else _END
            name = printable(recording.functions[function].name) if kind == _BEGIN else ""
            shown = _event(thread, time, kind, name=name, values=given)
        elif ends[at] == GAP:
            since = int(events.times[at - 1]) if at else time
            shown = _event(thread, since, _BEGIN, name=lost_text(function)) + _event(thread, time, _END)
        else:
            name = f"{printable(recording.functions[function].name)} returned"
            shown = _event(thread, time, _INSTANT, name=name, annotation="its call was not seen to begin", values=given)
        more[at] = more.get(at, b"") + shown
    found, first = [], 0
    for at in sorted(more):
        found += [rows[first:at].tobytes(), more[at]]
        first = at if plain[at] else at + 1
    return b"".join((*found, rows[first:].tobytes()))


def _event(
    thread: int, time: int, kind: int, *, name: str = "", annotation: str = "", values: Mapping[str, Any] | None = None
) -> bytes:
    """Return the packet of one event that is not as the others."""
    said = part(_ANNOTATION, part(10, b"end") + part(6, annotation.encode())) if annotation else b""
    said += b"".join(_annotation(label, value) for label, value in (values or {}).items() if value is not None)
    event = number(_TYPE, kind) + (part(_NAME, name.encode()) if name else b"") + said
    return _packet(
        number(_TIMESTAMP, time), number(_SEQUENCE, thread + 1), number(_FLAGS, _NEEDS_STATE), part(_TRACK_EVENT, event)
    )


def _annotation(label: str, value: Any) -> bytes:  # noqa: ANN401 - a number or a text
    """Return what a viewer shows as a value of an event."""
    match value:
        case bool():
            kept = number(2, value)
        case int() if value < 0:
            kept = number(4, value & (1 << 64) - 1)
        case int():
            kept = number(3 if value >> 63 else 4, value)
        case float():
            kept = double(5, value)
        case _:
            kept = part(6, printable(str(value)).encode())
    return part(_ANNOTATION, part(10, printable(label).encode()) + kept)


def _rows(thread: int, events: Events, ends: "NDArray[np.uint32]") -> "NDArray[np.uint8]":
    """Return the packets of events as rows of bytes, all of one length."""
    event = _fixed_key(_TYPE) + b"\0" + _fixed_key(_NAME_IID) + bytes(_IID_BYTES)
    fields = (
        _fixed_key(_TIMESTAMP) + bytes(_TIME_BYTES) + number(_SEQUENCE, thread + 1) + number(_FLAGS, _NEEDS_STATE)
        + part(_TRACK_EVENT, event)
    )  # fmt: skip
    packet = np.frombuffer(part(_PACKET, fields), np.uint8)
    rows = np.tile(packet, (len(events), 1))
    head = len(packet) - len(fields)
    _put(rows, head + 1, _TIME_BYTES, events.times)
    rows[:, -_IID_BYTES - 2] = np.where(ends == ENTRY, _BEGIN, _END)
    _put(rows, len(packet) - _IID_BYTES, _IID_BYTES, (events.what >> np.uint32(END_BITS)) + np.uint32(1))
    return rows


def _fixed_key(field: int) -> bytes:
    return number(field, 0)[:-1]


def _put(rows: "NDArray[np.uint8]", at: int, size: int, values: "NDArray[np.int64] | NDArray[np.uint32]") -> None:
    """Write numbers in groups of seven bits, of which all but the last say that another one follows."""
    for index in range(size):
        group = (values >> values.dtype.type(7 * index)).astype(np.uint8)
        rows[:, at + index] = group & 0x7F if index == size - 1 else group | 0x80
