"""What ``record`` does: an event for each end of each call, kept in an archive as it comes."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TextIO
from weakref import WeakKeyDictionary

from anyprobe.binary.flow.exits import ExitKind
from anyprobe.cli.events.threads import Threads
from anyprobe.cli.handlers.records import TIME, MonotonicTime, Row, batches, rows_of
from anyprobe.cli.measurement import keeping
from anyprobe.cli.programs.targets import KERNEL, dropped, on_process, process_spec
from anyprobe.cli.terminal import output
from anyprobe.core.arrays import unique
from anyprobe.core.clocks import both_clocks
from anyprobe.data.archives.runs import Run, Writer
from anyprobe.data.calls import recorded as calls
from anyprobe.data.calls.recorded import END_BITS, Events
from anyprobe.data.calls.values import Instant, Values, instants_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.cli.events.callvalues import CallValues
    from anyprobe.cli.events.flight import Flight
    from anyprobe.cli.events.tracing import Trace
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec
else:
    from anyprobe.core.later import np

RING_BYTES = 16 << 20
"""Bytes of the ring that each thread has."""
RECORD = "call"
"""The name of the records."""
_ENDS = (1 << END_BITS) - 1
LINE_EVENTS, LINE_SECONDS = 1 << 17, 0.5
"""How much, and how long, is waited for before a line is written."""


@dataclass
class _Process:
    """What is known of one session."""

    addresses: "NDArray[np.uint32]" = field(default_factory=lambda: np.empty(0, np.uint32))
    """The lower halves of the addresses of functions, in order."""
    functions: "NDArray[np.uint32]" = field(default_factory=lambda: np.empty(0, np.uint32))
    """The number of each of them."""
    tids: "NDArray[np.int32]" = field(default_factory=lambda: np.empty(0, np.int32))
    """The ids of threads, in order."""
    threads: "NDArray[np.uint32]" = field(default_factory=lambda: np.empty(0, np.uint32))
    """The number of each of them."""
    dropped: "NDArray[np.int64]" = field(default_factory=lambda: np.empty(0, np.int64))
    """How many events the ring of each had dropped by its last one; -1: it has had none."""
    lost: int = 0
    """Events that were lost by the last look."""
    placed: int = 0
    """How many of them are known to have been lost before which other ones of their thread."""


@dataclass
class Recorder:
    """Events of calls, and the archive that they go to."""

    ring_bytes: int = RING_BYTES
    enough: bool = False
    waits_for_all: ClassVar[bool] = True
    """What comes while probes are placed waits in rings: so the kernel's, which take long, are placed first."""
    run: Run = field(default_factory=keeping.new_run)
    quiet: bool = False
    flight: "Flight | None" = None
    """What keeps the last seconds in memory, instead of all events in the archive."""
    values: "CallValues | None" = None
    """What is kept with each call."""
    lost: int = 0
    left_out: int = 0
    """Values and instants that are lost."""
    count: int = 0
    _writer: Writer | None = None
    _sessions: "WeakKeyDictionary[Measured, _Process]" = field(default_factory=WeakKeyDictionary)
    _threads: Threads = field(default_factory=Threads)
    _times: MonotonicTime = field(default_factory=MonotonicTime)
    _functions: dict[calls.Function, int] = field(default_factory=dict)
    _named: int = 0
    """How many functions the archive has the names of."""
    _all_threads: list[calls.Thread] = field(default_factory=list)
    _told: int = 0
    """How many of these it has."""
    _has_begun: bool = False
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    """The number of each thread, by process and thread."""
    _trace: "Trace | None" = None
    """What has the records of instants."""
    _waiting: list[Events] = field(default_factory=list)
    _values: list[tuple[str, Values]] = field(default_factory=list)
    _instants: list[Instant] = field(default_factory=list)
    _armed: int = 0
    _begun: int = 0
    """When the first probes were all there: what the kernel does before that is what anyprobe asks for."""
    _written: float = 0.0

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place what records calls in one session, and what records instants: all that is no function of a program."""
        wanted = [process_spec(each) for each in specs if session.pid != KERNEL and _is_function(process_spec(each))]
        self._sessions.setdefault(session, _Process())
        others = [each for each in specs if each not in wanted]
        if others:
            from anyprobe.cli.events.tracing import Trace

            self._trace = self._trace or Trace(quiet=True)
            self._trace.arm(session, others)
        if wanted:  # last: what comes waits in rings until all is placed
            self._arm_calls(on_process(session), wanted)
        self._armed = time.monotonic_ns()

    def _arm_calls(self, process: "Session", wanted: "list[Spec]") -> None:
        from anyprobe.handlers.types.annotations import u64
        from anyprobe.handlers.x86.recorder import recorders

        self._threads.know(process.pid)
        # first: from the first event on there are values, and each is written before its event
        if self.values is not None:
            self.values.arm(process, wanted, self.ring_bytes)
        process.handling.place_call(wanted, *recorders(self.ring_bytes), retval=u64)
        self._see_functions(process)

    def _see_functions(self, session: "Session") -> None:
        """Give numbers to the functions that have places by now."""
        places = [place for probe in session.probes for place in probe.all_places]
        followed = session.options.returns == "callers"  # then it is not looked at how functions end
        jumping = {
            place.site.function.start
            for place in places
            if followed or (place.exit is not None and place.exit.kind is not ExitKind.RET)
        }
        found: dict[int, int] = {}
        for place in places:
            start = place.site.function.start
            function = calls.Function(place.site.object.name, place.site.name, start in jumping)
            found[start + place.module.bias & 0xFFFFFFFF] = self._functions.setdefault(function, len(self._functions))
        known = self._sessions[session]
        known.addresses = np.array(sorted(found), np.uint32)
        known.functions = np.array([found[each] for each in sorted(found)], np.uint32)

    # -- what comes

    def look(self, sessions: "Sequence[Measured]", stream: TextIO, *, final: bool = False) -> int:
        """Take in what has come since the last look."""
        from anyprobe.probes.clock import own_time

        if self._writer is None:
            from anyprobe.exporters.archive import EXPORTER

            self._writer = EXPORTER.writer(stream, self.run.info)
        own, now = own_time()
        self._begun = self._begun or self._armed
        found = []
        for session in sessions:
            for name, form, batch in batches(session, None if final else (own, now)):
                if not len(batch):
                    continue
                if self._trace is not None and self._trace.knows(session, name):
                    instants = (self._instant(self._trace, row) for row in rows_of(session, name, form, batch))
                    self._instants += [each for each in instants if each.time >= self._begun]
                elif self.values is not None and self.values.has(name):
                    self._take_values(on_process(session), name, batch)
                elif name == RECORD and len(part := self._events(on_process(session), batch)):
                    found.append(part)
        count = sum(map(len, found))
        if len(found) > 1:
            together = calls.joined(found)
            found = [together.part(np.argsort(together.times, kind="stable"))]
        self._waiting += found
        self.count += count
        self._see_lost(sessions, now, final=final)
        wanted = final or (self.flight is not None and self.flight.asked)
        is_much = sum(map(len, self._waiting)) + len(self._instants) >= LINE_EVENTS
        if wanted or is_much or time.monotonic() - self._written > LINE_SECONDS:
            self._write(final=final)
        return count

    def document(self) -> dict[str, Any]:
        """Return nothing: all is written already."""
        return {}

    def _events(self, session: "Session", batch: Any) -> Events:  # noqa: ANN401 - records
        """Return records as events."""
        known = self._sessions[session]
        batch, functions, rows = self._known(session, batch)
        frames = batch["frame"] & ~np.uint32(_ENDS)
        what = functions | batch["frame"] & np.uint32(_ENDS)
        events = Events(self._monotonic(batch), known.threads[rows], what, frames)
        events, lost = _with_gaps(events, rows, batch["lost"], known.dropped)
        known.placed += lost
        return events

    def _monotonic(self, batch: Any) -> "NDArray[np.int64]":  # noqa: ANN401 - records
        return self._times.of_all(batch[TIME].astype(np.int64))

    def _known(
        self, session: "Session", batch: Any,  # noqa: ANN401 - records
    ) -> "tuple[Any, NDArray[np.uint32], NDArray[np.int64]]":  # fmt: skip
        """Return records of known functions, with the functions' numbers, times four, and the rows of threads."""
        known = self._sessions[session]
        places = np.searchsorted(known.addresses, batch["func"])
        if not _right(known.addresses, places, batch["func"]):
            self._see_functions(session)  # of libraries that have come since
            places = np.searchsorted(known.addresses, batch["func"])
            right = known.addresses.take(places, mode="clip") == batch["func"]
            batch, places = batch[right], places[right]
        tids = batch["tid"]
        rows = np.searchsorted(known.tids, tids)
        if not _right(known.tids, rows, tids):
            self._see_threads(session, tids)
            rows = np.searchsorted(known.tids, tids)
        return batch, known.functions[places] << np.uint32(END_BITS), rows

    def _take_values(self, session: "Session", name: str, batch: Any) -> None:  # noqa: ANN401 - records
        """Take in what was kept with calls."""
        assert self.values is not None
        batch, functions, rows = self._known(session, batch)
        threads = self._sessions[session].threads[rows]
        for first in range(0, len(batch), LINE_EVENTS):
            part = slice(first, first + LINE_EVENTS)
            own = batch[part]
            self._values.append(self.values.of(name, own, self._monotonic(own), threads[part], functions[part]))

    def _instant(self, trace: "Trace", row: Row) -> Instant:
        """Return a record of what is no call."""
        found = trace.document_of(row)
        pid, tid = int(found.pop("pid")), int(found.pop("tid"))
        if (pid, tid) not in self._numbers:
            self._number(pid, tid, row.fields.get("comm") or self._threads.name(pid, tid))
        given = found.pop("args", {})
        if not isinstance(given, dict):
            given = {f"arg{at}": each for at, each in enumerate(given)}
        moment, spec = int(found.pop("ts_ns")), str(found.pop("spec"))
        return Instant(moment, self._numbers[pid, tid], spec, given | found)

    def _number(self, pid: int, tid: int, name: str) -> int:
        """Give a number to a thread."""
        self._all_threads.append(calls.Thread(pid, tid, name))
        self._numbers[pid, tid] = len(self._all_threads) - 1
        return self._numbers[pid, tid]

    def _see_threads(self, session: "Session", tids: "NDArray[np.int32]") -> None:
        """Give numbers to threads that have not had an event yet."""
        known = self._sessions[session]
        for tid in sorted({*unique(tids).tolist()} - {*known.tids.tolist()}):
            pid = self._threads.process(session.pid, tid)
            number = self._number(pid, tid, self._threads.name(pid, tid))
            known.tids = np.append(known.tids, np.int32(tid))
            known.threads = np.append(known.threads, np.uint32(number))
            known.dropped = np.append(known.dropped, -1)
        order = np.argsort(known.tids)
        known.tids, known.threads, known.dropped = known.tids[order], known.threads[order], known.dropped[order]

    def _see_lost(self, sessions: "Sequence[Measured]", now: int, *, final: bool) -> None:
        """Write down how many events have been lost since the last look."""
        self._see_left_out(sessions, final=final)
        for session in sessions:
            if session.pid == KERNEL:
                continue
            process = on_process(session)
            lost = sum(process.handling.dropped().get(RECORD, {}).values())
            known = self._sessions.setdefault(session, _Process())
            if lost > known.lost:
                self._write()
                if self.flight is None:
                    self._put({"lost": {"pid": session.pid, "count": lost - known.lost}})
                self.lost += lost - known.lost
                known.lost = lost
            if final and known.lost > known.placed:
                self._waiting.append(self._lost_at_last(process, now))

    def _see_left_out(self, sessions: "Sequence[Measured]", *, final: bool) -> None:
        """Count the values and instants that are lost; those of the kernel at the end."""
        if self._trace is None and self.values is None:
            return
        looked_at = [each for each in sessions if final or each.pid != KERNEL]
        lost = [item for each in looked_at for item in dropped(each).items()]
        found = sum(sum(causes.values()) for name, causes in lost if name != RECORD)
        if found > self.left_out:
            self._put({"left_out": found - self.left_out})
            self.left_out = found

    def _lost_at_last(self, session: "Session", now: int) -> Events:
        """Return the gaps after the last events of threads: of all where it is not known whose events are lost."""
        known, reader = self._sessions[session], session.handling.reader_of(RECORD)
        assert reader is not None
        lost = dict.fromkeys(known.tids.tolist(), 0)
        full = reader.drops().full
        for number, (tid, told) in reader.last_told().items():
            if number and (more := full.get(number, 0) - told) > 0:
                lost[tid] = more
                known.placed += more
        threads = known.threads if known.lost > known.placed else known.threads[[lost[each] > 0 for each in lost]]
        what = [each << END_BITS | calls.GAP for each in lost.values() if each or known.lost > known.placed]
        count = len(threads)
        return Events(np.full(count, now), threads, np.array(what, np.uint32), np.zeros(count, np.uint32))

    def _put(self, line: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.put(line)

    def _write(self, *, final: bool = False) -> None:
        """Write what waits, or keep it in memory."""
        assert self._writer is not None
        self._written = time.monotonic()
        waiting, self._waiting = calls.joined(self._waiting), []
        flight = self.flight
        if flight is None:
            for each in self._new_names():
                self._put(each)
        for until, count, line in self._lines(waiting):
            frame = self._writer.frame(line)
            if flight is None:
                self._writer.put_frame(frame)
            else:
                flight.keep(until, count, frame)
        if flight is None:
            return
        jumping = {at for at, each in enumerate(self._functions) if each.jumps}
        is_due = flight.is_due(waiting, jumping)
        flight.let_go()
        if is_due or final:
            self._named = 0
            names = self._new_names(again=True)
            if self.lost:
                names.append({"lost": {"pid": 0, "count": self.lost}})
            if self.left_out:
                names.append({"left_out": self.left_out})
            if final:
                flight.write(self._writer, names)
            else:
                flight.dump(self.run.info, names)

    def _lines(self, waiting: Events) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield what waits line by line: until when it was, how many events it has, and the line."""
        values, self._values = self._values, []
        instants, self._instants = self._instants, []
        for end, each in values:
            yield int(each.events.times[-1]), 0, {"values": {"at": end, **each.document()}}
        if instants:
            yield max(each.time for each in instants), len(instants), {"instants": instants_line(instants)}
        for first in range(0, len(waiting), LINE_EVENTS):
            part = waiting.part(slice(first, first + LINE_EVENTS))
            yield int(part.times[-1]), len(part), {"events": part.document()}

    def _new_names(self, *, again: bool = False) -> list[dict[str, Any]]:
        """Return the lines with the names that were not written yet; ``again``: with all of them."""
        functions, threads = list(self._functions)[self._named :], self._all_threads[0 if again else self._told :]
        self._named, self._told = len(self._functions), len(self._all_threads)
        lines = ({"functions": [list(each) for each in functions]}, {"threads": [list(each) for each in threads]})
        found: list[dict[str, Any]] = [each for each in lines if any(each.values())]
        if again or not self._has_begun:
            self._has_begun = True
            labels = [] if self.values is None else [{"with": self.values.labels}]
            found = [{"clock": list(both_clocks())}, *labels, *found]
        return found

    def report(self, snapshots: "Sequence[Snapshot]") -> None:
        """Say what is not in the recording; ``snapshots``: how often the probes were hit."""
        if self.quiet:
            return
        from anyprobe.reports.heading import deaths
        from anyprobe.reports.quantities import counted

        for each in snapshots:
            for text in deaths((each.target, *each.others)):
                output.warn(text)
        refused = sum(not site.is_gone for each in snapshots for site in each.refused)
        if refused:
            sites = counted(refused, "site")
            output.warn(f"{sites} refused, where calls begin or end unseen; 'anyprobe show' has what and why")
        missed = sum(site.nmissed for each in snapshots for site in each.all_sites)
        if missed:
            output.warn(f"{missed:,} events are missing: nothing could be recorded there; 'anyprobe show' has where")
        if self.lost:
            output.warn(f"{self.lost:,} events are lost: they came faster than they could be kept")
        if self.left_out:
            output.warn(f"{self.left_out:,} values and instants are lost: they came faster than they could be kept")


def has_calls(specs: "Sequence[AnySpec]") -> bool:
    """Return whether some of what is recorded are functions of programs."""
    from anyprobe.probes.specs.parts import Spec

    return any(isinstance(each, Spec) and _is_function(each) for each in specs)


def _is_function(spec: "Spec") -> bool:
    """Return whether what a spec means has calls."""
    return spec.name == "entry" and not spec.is_marker


def _with_gaps(
    events: Events, rows: "NDArray[np.int64]", lost: "NDArray[np.uint32]", dropped: "NDArray[np.int64]"
) -> tuple[Events, int]:
    """Return events with one more of each thread where some of its events are lost, and how many are.

    Args:
        events: of several threads.
        rows: the thread of each.
        lost: how many its ring has lost before.
        dropped: of each thread, how many that was by its last event; it is brought up to date.
    """
    order = np.argsort(rows, kind="stable")
    own, counts = rows[order], lost[order].astype(np.int64)
    first = np.flatnonzero(np.diff(own, prepend=-1))
    before = np.roll(counts, 1)
    before[first] = np.where(dropped[own[first]] < 0, counts[first], dropped[own[first]])
    missing = counts - before & 0xFFFFFFFF
    missing[missing >> 31 > 0] = 0  # a signal handler's record is between the count and the time of this one
    last = np.append(first[1:], len(own)) - 1
    dropped[own[last]] = counts[last]
    gaps = np.sort(order[missing > 0])
    if not len(gaps):
        return events, 0
    found = np.zeros(len(rows), np.int64)
    found[order] = missing
    what = np.minimum(found[gaps], calls.MOST_LOST).astype(np.uint32) << np.uint32(END_BITS) | np.uint32(calls.GAP)
    with_gaps = Events(
        np.insert(events.times, gaps, events.times[gaps]),
        np.insert(events.threads, gaps, events.threads[gaps]),
        np.insert(events.what, gaps, what),
        np.insert(events.frames, gaps, events.frames[gaps]),
    )
    return with_gaps, int(missing.sum())


def _right(known: "NDArray[Any]", places: "NDArray[Any]", wanted: "NDArray[Any]") -> bool:
    """Return whether all of some numbers are where they would be among the known ones."""
    return bool(len(known)) and bool((known.take(places, mode="clip") == wanted).all())
