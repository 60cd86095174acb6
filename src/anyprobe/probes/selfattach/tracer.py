"""The process that probes the program which started it: executed, with an interpreter and memory of its own.

It does what the program asks for over a channel, one request after the other, and needs nothing of it while its threads
stand still: no lock, no memory, no interpreter. It ends with the channel or the program, whichever ends first, and
takes the probes out.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pickle import PicklingError
from typing import Any

from anyprobe.core.errors import AnyprobeError, UsageError
from anyprobe.data.readers.maps import MapView
from anyprobe.data.readers.tables import TableView
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.probes.clock import own_time
from anyprobe.probes.opening import attach
from anyprobe.probes.options import SessionOptions
from anyprobe.probes.providers.function.handlers.handling import Call
from anyprobe.probes.providers.function.postmortem import Files, Ledger, ledger_of
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.function.threads.uncounted import MOST_UNCOUNTED, UncountedThreads
from anyprobe.probes.scripts.events import MARGIN_NS
from anyprobe.probes.selfattach.channel import Answer, Channel, ChannelClosed, Failure, Request
from anyprobe.probes.selfattach.pickling import Parcel, Receiver
from anyprobe.probes.selfattach.sharing import Shared, described
from anyprobe.probes.session import Session
from anyprobe.target.system import gateway

_RECEIVING = frozenset({"45", "47"})
"""``recvfrom`` and ``recvmsg``."""
_PATIENCE = 0.05
_IDLE = 0.2
ProbeState = tuple[int, str, bool, str]
"""A probe's number, its spec, whether it is armed, and what it says of itself."""


class Attendant:
    """Serves one program; its methods are what requests name."""

    def __init__(self, pid: int, reader: int) -> None:
        """Serve the program ``pid``, whose thread ``reader`` talks to us."""
        self._pid, self._reader = pid, reader
        self._session: Session | None = None
        self._received = Receiver(self._type)
        self._probes: dict[int, Probe] = {}
        self._numbers: dict[int, int] = {}
        self._calls: dict[int, Call] = {}
        self._readers = UncountedThreads()
        self._told: set[int] = set()
        self._files = Files()

    @property
    def session(self) -> Session:
        """The session; raise ``UsageError`` when there is none."""
        if self._session is None:
            raise UsageError("this session has been detached")
        return self._session

    # -- life

    def open(self, options: SessionOptions, thread_pointer: int) -> tuple[str, list[str]]:
        """Attach; return the program's executable and warnings."""
        self._session = attach(self._pid, options)
        self._session.splicing.memory.leave_out(MOST_UNCOUNTED)
        self._readers.add(thread_pointer)
        return self._session.exe, list(self._session.warnings)

    def remove_leftovers(self) -> None:
        """Remove what an attendant that has died left behind."""
        from anyprobe.probes.providers.function.outside.leftover import remove

        remove(self._pid)

    def close(self) -> tuple[Snapshot | None, dict[str, Any], list[str]]:
        """Take everything out; return what was counted in the end."""
        session, self._session = self._session, None
        if session is None:
            return None, {}, []
        try:
            session.detach()
            return session.snapshot(), session.records(final=True), list(session.warnings)
        finally:
            session.close()

    # -- probes

    def count(self, specs: Sequence[str], follow: bool | None) -> list[ProbeState]:
        """Count hits."""
        return self._states(self.session.count(*specs, follow=follow))

    def time(self, specs: Sequence[str], follow: bool | None) -> list[ProbeState]:
        """Time functions."""
        return self._states(self.session.time(*specs, follow=follow))

    def place(
        self, kind: str, specs: Sequence[str], handler: Parcel, when: Parcel | None, options: dict[str, Any]
    ) -> tuple[int, list[ProbeState]]:
        """Place a handler by one of a session's decorators; return the call's number, if it is one."""
        function = self._received.unpack(handler)
        condition = None if when is None else self._received.unpack(when)
        made = getattr(self.session, kind)(*specs, when=condition, **options)(function)
        if isinstance(made, Call):
            number = len(self._calls) + 1
            self._calls[number] = made
            return number, self._states(made.entry)
        return 0, self._states(self.session.probes_of(function))

    def place_return(self, call: int, handler: Parcel) -> tuple[list[ProbeState], list[ProbeState]]:
        """Place the handler of a call's return; return the probes at entries and returns that came by it."""
        made = self._calls[call]
        entries, returns = len(made.entry), len(made.returns)
        made.ret(self._received.unpack(handler))
        return self._states(made.entry[entries:]), self._states(made.returns[returns:])

    def replace(self, spec: str, by: str) -> list[ProbeState]:
        """Send calls of a function to another."""
        return self._states(self.session.replace(spec, by))

    def remove(self, numbers: Sequence[int]) -> None:
        """Disarm probes."""
        self.session.remove(*(self._probes[each] for each in numbers))

    def enable(self, numbers: Sequence[int]) -> None:
        """Arm probes again."""
        self.session.enable(*(self._probes[each] for each in numbers))

    def states(self, numbers: Sequence[int]) -> list[ProbeState]:
        """Return how probes are now."""
        return self._states([self._probes[each] for each in numbers])

    def limit_overhead(self, percent: float) -> list[ProbeState]:
        """Disarm what costs too much."""
        return self._states(self.session.limit_overhead(percent))

    def _states(self, probes: Sequence[Probe]) -> list[ProbeState]:
        found = []
        for probe in probes:
            number = self._numbers.setdefault(id(probe), len(self._numbers) + 1)
            self._probes[number] = probe
            found.append((number, probe.spec, probe.armed, repr(probe)))
        return found

    # -- results

    def snapshot(self) -> Snapshot:
        """Return what has been counted."""
        return self.session.snapshot()

    def ledger(self) -> Ledger:
        """Return where everything is counted; what files that is in goes along."""
        session = self.session
        found = session.snapshot()
        return ledger_of(session.probes, found, self._files, session.host.times.ns_per_tick)

    def ask(self, name: str, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - whatever the session says
        """Return an attribute of the session, or what a method of it returns."""
        found = getattr(self.session, name)
        return found(*arguments, **(named or {})) if callable(found) else found

    def records(self, final: bool, whole: bool = True) -> dict[str, Any]:
        """Return what was emitted; not ``whole``: without the youngest, so that what comes later is later."""
        return self.session.records(final=final, until=None if final or whole else own_time()[0] - MARGIN_NS)

    def work(self) -> float:
        """Do what is due in the session; return the seconds until something is again."""
        due = self.session.duties.work()
        return _IDLE if due is None else max(due - time.monotonic(), 0.0)

    def check_type(self, name: str, module: str) -> None:
        """See that there is a type."""
        self._type(name, module)

    def _type(self, name: str, module: str) -> object:
        return self.session.type(name, module)

    def misses(self) -> dict[str, int]:
        """Return what went wrong in handlers."""
        return self.session.handling.misses()

    def newly_shared(self) -> tuple[list[Shared], list[int]]:
        """Return where storages are that the program has not been told of, and descriptors that it has not got."""
        found: list[Shared] = []
        for number, storage in self._received.storages.items() if self._session is not None else ():
            store = self.session.handling.store_of(storage)
            if number in self._told or store is None or not storage.views:
                continue
            self._told.add(number)
            view = storage.views[-1]
            assert isinstance(view, TableView | MapView | memoryview)
            found.append(described(number, self._files.number_of(store.arena), store.piece.offset, view))
        return found, self._files.take_unsent()

    # -- the program's own readers

    def leave_out(self, thread_pointer: int) -> None:
        """See that one more thread of anyprobe's in the program, which waits for our answer, counts nowhere."""
        self._readers.add(thread_pointer)

    def leave_readers_out(self) -> None:
        """See that anyprobe's threads in the program count nowhere and run no handlers."""
        if self._session is not None:
            self._readers.leave_out(self._session.host)

    def await_reader(self) -> None:
        """Wait until the thread that talks to us waits for our answer: only then its slot may be changed."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            with suppress(OSError), open(f"/proc/{self._pid}/task/{self._reader}/syscall") as file:
                if file.read().split(" ", 1)[0] in _RECEIVING:
                    return
            time.sleep(0.0001)


def serve(end: socket.socket, pid: int) -> None:
    """Serve the program ``pid`` over a channel until one of the two ends."""
    channel = Channel(end)
    program = gateway.pidfd_open(pid)
    channel.send(os.getpid())
    reader: int = channel.receive()
    attendant = Attendant(pid, reader)
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    poll.register(program, select.POLLIN)
    try:
        while True:
            ready = dict(poll.poll())
            if program in ready:
                return
            answer = _answer(attendant, channel.receive())
            shared, descriptors = attendant.newly_shared()
            whole = answer if isinstance(answer, Failure) else Answer(answer, tuple(shared))
            try:
                channel.send(whole, descriptors)
            except (PicklingError, TypeError, AttributeError, RecursionError) as error:
                channel.send(Failure.of(error), descriptors)  # nothing of the other has gone yet
    except ChannelClosed:
        return
    finally:
        with suppress(AnyprobeError):
            attendant.close()


def _answer(attendant: Attendant, request: Request) -> object:
    method: Callable[..., object] = getattr(attendant, request.method)
    try:
        attendant.await_reader()
        try:
            return method(*request.arguments)
        finally:
            attendant.leave_readers_out()
    except Exception as error:  # noqa: BLE001 - each is told to whom has asked
        return Failure.of(error)


def main(descriptor: int, pid: int) -> None:
    """Run the attendant of ``pid`` on an inherited socket."""
    serve(socket.socket(fileno=descriptor), pid)
