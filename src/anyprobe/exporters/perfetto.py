"""Timelines for Perfetto (https://ui.perfetto.dev): a track for each thread, below that of its process.

The format is https://perfetto.dev/docs/reference/trace-packet-proto: packets of numbered fields, in any order of time.
Numbers that differ from event to event are written in a fixed number of bytes, so that NumPy makes all packets of a
line of events at once. A call without a return ends where that was seen, and says so; what is open at the end has none.
"""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from anyprobe.core.printable import printable
from anyprobe.data.calls.matching import UNKNOWN, Matched, Matcher
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, Events
from anyprobe.data.calls.recording import Recording
from anyprobe.exporters.pprof import number, part, varint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

_PACKET, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DEFAULTS, _DESCRIPTOR = 1, 8, 10, 11, 12, 13, 59, 60
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_TYPE, _NAME_IID, _NAME, _TRACK, _ANNOTATION = 9, 10, 23, 11, 4
"""Numbers of fields, and values of some."""
_TIME_BYTES, _IID_BYTES, _SEQUENCE_BYTES = 9, 4, 4
_PROCESSES = 1 << 32
"""Tracks of processes have numbers from here on; those of threads are the numbers of their sequences."""


def write(path: str, recording: Recording, stream: TextIO) -> None:
    """Write all events of a recording, as they are read; ``path``: its file, which ``recording`` has not read yet."""
    stream.flush()
    known = Recording(path)
    if next(known.events(), None) is not None and known.has_values:
        known = Recording(path)
        known.whole()  # which event has which values is known when all are read
    first = 0
    out = stream.buffer
    matchers: dict[int, Matcher] = {}
    processes: set[int] = set()
    named = 0
    for events in recording.events():
        order = np.argsort(events.threads.astype(np.uint16) if len(recording.threads) < 1 << 16 else events.threads,
                           kind="stable")  # fmt: skip
        numbers = events.threads[order]
        for chosen in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
            thread = int(events.threads[chosen[0]])
            begins = thread not in matchers
            if begins:
                out.write(_descriptors(recording, thread, processes))
            if begins or named < len(recording.functions):
                named = len(recording.functions)
                out.write(b"".join(_names(recording, each) for each in {*matchers, thread}))
            own = events.part(chosen)
            if begins and recording.overwritten:
                name = f"events before this are overwritten, {recording.overwritten:,} of all threads"
                out.write(_event(thread, int(own.times[0]), _INSTANT, name=name))
            matched = matchers.setdefault(thread, Matcher(recording.jumping)).match(own.times, own.what, own.frames)
            out.write(_packets(recording, thread, own, matched, _values(known, chosen, first, len(events))))
        first += len(events)
    for thread in sorted({each.thread for each in recording.instants} - {*matchers}):
        out.write(_descriptors(recording, thread, processes) + _names(recording, thread))
    for each in recording.instants:
        out.write(_event(each.thread, each.time, _INSTANT, name=printable(each.name), values=each.values))
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
    found = b""
    if pid not in processes:
        processes.add(pid)
        first = next((each.name for each in recording.threads if each.pid == pid), "")
        process = number(1, pid) + part(6, printable(first).encode())
        found = _packet(part(_DESCRIPTOR, number(1, _PROCESSES + pid) + part(3, process)))
    about = number(1, pid) + number(2, tid) + part(5, printable(name).encode())
    track = number(1, thread + 1) + part(4, about) + number(5, _PROCESSES + pid)
    return found + _packet(part(_DESCRIPTOR, track))


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
            name = f"{function:,} events lost"
            shown = _event(thread, since, _BEGIN, name=name) + _event(thread, time, _END)
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
            kept = varint(5 << 3 | 1) + struct.pack("<d", value)
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
