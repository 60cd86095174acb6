"""Calls that are open at the edges of a session, what descriptors are, and what the kernel counts of threads.

Handlers see calls that begin and end meanwhile. What was asleep before they came, or still is, is known by what the
kernel says of each thread at both edges: the call that it is in, and for how long it was on processors.
"""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import TargetError
from anyprobe.data.aggregates.results import AggregationResult, Key
from anyprobe.data.findings.offcpu import ASLEEP, KERNEL, LATE, Cause, Causes, State, cause_of
from anyprobe.data.layouts.cells import CellValue
from anyprobe.probes.clock import own_time, own_time_at
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.session import Session

_SINCE, _RAN, _AT, _STACK, _DESCRIPTOR = "asleep since", "ran until", "asleep at", "asleep stack", "asleep descriptor"
OPEN = (_SINCE, _RAN, _AT, _STACK, _DESCRIPTOR)
"""The maps of calls that are open, by thread."""
SEEN, LATE_RAN = "seen", "ran at late end"
_OF_DESCRIPTORS = frozenset({Cause.SOCKET, Cause.IO, Cause.FILE})
_MAJOR_FAULTS = 9
"""Where /proc/…/stat has them, after the name of the task."""
_SAME_NS = 50_000
"""What a thread that has not left its call since may have run: it was stopped with the others."""
_RESUMED, _LOOK = 1.0, 0.002
"""Seconds for which threads are waited for that are neither in a call nor have run, and between two looks at them."""
_LOCKS_ALONE = "lll_lock_wait"
"""The function of glibc in which nothing but locks are waited for."""
_CLOSED = "?"


class _Thread(NamedTuple):
    """What the kernel says of a thread at one moment."""

    ran: int
    queued: int
    major_faults: int
    moment: int
    """When it was looked at, as ``ctx.now`` has it."""
    call: tuple[str, ...]
    """The numbers that /proc/…/syscall has; none while it runs, or where that may not be read."""

    @property
    def place(self) -> tuple[str, ...]:
        """Its stack pointer and pc; the call's number is another one after it was begun again."""
        return self.call[-2:]


class SleepWindow:
    """The time from the arming of the handlers to the end of a session."""

    def __init__(self, session: "Session", causes: Causes) -> None:
        """Look at all threads; the handlers are there by now."""
        self._session, self._causes = session, causes
        self._threads = _threads(session.pid)
        # they were stopped until now, and go back to the calls in which they sleep once they get a processor again
        before = {tid: each.ran for tid, each in self._threads.items() if not each.call}
        until = time.monotonic() + _RESUMED
        while before and time.monotonic() < until:
            time.sleep(_LOOK)
            found = _threads(session.pid, before)
            self._threads |= found
            before = {
                tid: before[tid] for tid, each in found.items() if not each.call and each.ran - before[tid] < _SAME_NS
            }
        self._names: dict[int, str] = {}

    def results(self, snapshot: "Snapshot", opened: float = 0.0, closed: float = 0.0) -> tuple[AggregationResult, ...]:
        """Return a snapshot's aggregations by cause; at the end with calls at the edges, and the kernel's numbers.

        Args:
            snapshot: of this session.
            opened: when the time began that is measured, by the monotonic clock in seconds; 0: with the handlers.
            closed: when it ended; 0: with the session.
        """
        found = [each for each in snapshot.aggregations if each.name not in {ASLEEP, LATE}]
        asleep = next((each for each in snapshot.aggregations if each.name == ASLEEP), None)
        late = next((each for each in snapshot.aggregations if each.name == LATE), None)
        entries: dict[Key, CellValue] = {}
        for (function, stack, number), cell in (asleep.entries if asleep is not None else {}).items():
            key: Key = int(cause_of(self._causes, str(function))), stack, self.descriptor(int(number)), State.WHOLE
            entries[key] = entries[key].merged(cell) if key in entries else cell
        began = self._session.host.began or 0.0
        ends = own_time_at(opened or began), own_time_at(closed if opened and closed else began + snapshot.duration_s)
        edges = self._edges(late, *ends) if self._is_over else ()
        for key, nanoseconds in edges:
            cell = CellValue(1, nanoseconds, nanoseconds, nanoseconds, kind="quantize")
            entries[key] = entries[key].merged(cell) if key in entries else cell
        if self._is_over:
            found.append(self._of_kernel())
        dropped = asleep.dropped if asleep is not None else 0
        by = "cause", "stack", "descriptor", "state"
        return (*found, AggregationResult(ASLEEP, "quantize", by, entries, dropped=dropped))

    @property
    def _is_over(self) -> bool:
        return self._session.host.ended is not None or self._session.host.process.exited()

    def _edges(self, late: AggregationResult | None, first: int, moment: int) -> Iterator[tuple[Key, int]]:
        """Yield calls that began before the window, or have not ended in it: the key, and how long within it.

        ``first`` and ``moment`` are when it began and ended, as ``ctx.now`` has it.
        """
        now = self._now()
        handling = self._session.host.handlers.used
        maps = {} if handling is None else {each.name: each.entries for each in handling.maps()}
        seen = {int(key[0]) for key, value in maps.get(SEEN, {}).items() if value}
        since = maps.get(_SINCE, {})
        for key, began in since.items():
            tid = int(key[0])
            if began and tid in now:
                ran = now[tid].ran - int(maps[_RAN].get(key, 0))
                function = str(maps[_AT].get(key, "?"))
                number = int(maps[_DESCRIPTOR].get(key, -1))
                stack = self._with_python(str(maps[_STACK].get(key, function)), tid, now[tid])
                cause = cause_of(self._causes, function)
                off = moment - max(int(began), first) - max(ran, 0)
                if off > 0:
                    yield (int(cause), stack, self.descriptor(number), State.OPEN), off
        for (at, where, number_of), cell in (late.entries if late is not None else {}).items():
            tid = int(number_of)
            if (before := self._threads.get(tid)) is not None and before.call:
                ran = int(maps.get(LATE_RAN, {}).get((tid,), before.ran)) - before.ran
                cause = self._outermost(str(where), str(at))
                off = (cell.max or 0) - max(before.moment, first) - max(ran, 0)
                if off > 0:
                    yield (int(cause), where, self._descriptor_at(before, cause), State.BEFORE), off
        by_plain_name = {_plain(name): cause for name, cause in self._causes.items()}
        for tid, before in self._threads.items():
            after = now.get(tid)
            if tid in seen or not before.call or after is None:
                continue
            is_same = after.place == before.place if after.call else after.ran - before.ran < _SAME_NS
            name = self._session.shown("func", int(before.place[1], 16))
            cause = by_plain_name.get(_plain(name.partition("+")[0]), Cause.CALL)
            if cause is Cause.LOCK and _LOCKS_ALONE not in name:
                cause = Cause.FUTEX  # conditions wait there, too
            off = moment - max(before.moment, first) - (after.ran - before.ran)
            if is_same and off > 0:
                yield (int(cause), name, self._descriptor_at(before, cause), State.ALL_ALONG), off

    def _with_python(self, stack: str, tid: int, thread: _Thread) -> str:
        """Return a stack with Python's functions, if the thread has slept in the same call all the while."""
        pid, name = self._session.pid, self._session.host.symbols.asleep_in
        if name is None or not thread.call:
            return stack
        try:
            found = name(stack, procfs.own_id(tid))
        except (OSError, TargetError):
            return stack
        return found if _call_of(pid, tid)[-2:] == thread.place else stack

    def _outermost(self, frames: str, function: str) -> Cause:
        """Return what the outermost call waits for that is on a stack; inner functions end first."""
        known = (self._causes.get(frame.partition("+")[0]) for frame in reversed(frames.split(" < ")))
        return next((each for each in known if each is not None), cause_of(self._causes, function))

    def _descriptor_at(self, thread: _Thread, cause: Cause) -> str:
        return self.descriptor(int(thread.call[1], 16) if cause in _OF_DESCRIPTORS and len(thread.call) > 3 else -1)

    def _now(self) -> Mapping[int, _Thread]:
        process = self._session.host.process
        if not process.exited():
            return _threads(self._session.pid)
        return {tid: _Thread(each.ran, each.waited, 0, 0, ()) for tid, each in process.scheduled_at_end.items()}

    def _of_kernel(self) -> AggregationResult:
        """Return what the kernel has counted of threads that are there at the end; of the others nothing is known."""
        now, exited = self._now(), self._session.host.process.exited()
        nothing = _Thread(0, 0, 0, 0, ())
        pairs = [(self._threads.get(tid, nothing), after) for tid, after in now.items()]
        queued = sum(max(after.queued - before.queued, 0) for before, after in pairs)
        entries: dict[Key, CellValue] = {("run_queue_ns",): CellValue(len(pairs), queued, kind="sum")}
        if not exited:
            faults = sum(max(after.major_faults - before.major_faults, 0) for before, after in pairs)
            entries["major_faults",] = CellValue(len(pairs), faults, kind="sum")
        return AggregationResult(KERNEL, "sum", ("what",), entries)

    def descriptor(self, number: int) -> str:
        """Return what a descriptor is, as it was seen first; empty where there is none, ``?`` where it was closed."""
        if number < 0:
            return ""
        if self._names.get(number, _CLOSED) == _CLOSED:
            self._names[number] = _name_of(self._session.pid, number)
        return self._names[number]


def _plain(name: str) -> str:
    """Return the name of a function without what the C library puts before it for its own use."""
    module, _, function = name.rpartition(":")
    return f"{module}:{function.removeprefix('__GI_').lstrip('_').removeprefix('libc_')}"


def _threads(pid: int, wanted: Collection[int] | None = None) -> dict[int, _Thread]:
    """Return what the kernel says of threads of a process, or of some of them."""
    found = {}
    with suppress(OSError):
        for tid in procfs.read_tasks(pid) if wanted is None else wanted:
            with suppress(OSError, ValueError, IndexError):  # it has ended
                ran, queued, *_ = map(int, procfs.read_file(f"/proc/{pid}/task/{tid}/schedstat").split())
                stat = procfs.read_file(f"/proc/{pid}/task/{tid}/stat").rpartition(b")")[2].split()
                found[tid] = _Thread(ran, queued, int(stat[_MAJOR_FAULTS]), own_time()[0], _call_of(pid, tid))
    return found


def _call_of(pid: int, tid: int) -> tuple[str, ...]:
    with suppress(OSError):
        words = procfs.read_file(f"/proc/{pid}/task/{tid}/syscall").decode().split()
        return tuple(words) if len(words) > 3 else ()  # "running", or -1 and where it stands
    return ()


def _name_of(pid: int, number: int) -> str:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return _CLOSED
    if not target.startswith("socket:["):
        return target
    return _peer(pid, target[len("socket:[") : -1]) or target


def _peer(pid: int, inode: str) -> str:
    """Return the other end of a socket, by its inode; of a Unix socket its path; empty where that is not known."""
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for row in _rows(pid, name):
            if len(row) > 9 and row[9] == inode:
                return f"{name.removesuffix('6')} {_address(row[1])} to {_address(row[2])}"
    for row in _rows(pid, "unix"):
        if len(row) > 6 and row[6] == inode:
            return f"unix {row[7]}" if len(row) > 7 else f"unix socket {inode}"
    return ""


def _rows(pid: int, name: str) -> Iterator[list[str]]:
    with suppress(OSError), open(f"/proc/{pid}/net/{name}", errors="surrogateescape") as file:
        yield from map(str.split, file)


def _address(text: str) -> str:
    import ipaddress

    words, _, port = text.partition(":")
    content = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(content)
    mapped = getattr(address, "ipv4_mapped", None) or address
    shown = f"[{mapped}]" if mapped.version == 6 else str(mapped)
    return f"{shown}:{int(port, 16) or '*'}"
