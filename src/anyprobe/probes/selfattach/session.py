"""Probing the Python program that one is in: ``attach_self``.

A process cannot stop itself. So an *attendant* is executed, which traces this process and holds the session; what is
asked of the session here is sent there. A thread of anyprobe does the sending, and is left out of all counts. It never
holds anything that the attendant waits for: the attendant asks for nothing.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast

from anyprobe.core.errors import TargetError, UsageError
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.aggregates.records import Records, rows_by_time
from anyprobe.data.aggregates.results import AggregationResult
from anyprobe.data.findings.explanation import Explanation, ListedSite
from anyprobe.data.readers.maps import Map
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.probes.api import SessionApi
from anyprobe.probes.options import OptionNames, SessionOptions, chosen
from anyprobe.probes.providers.function.postmortem import Ledger, read
from anyprobe.probes.scripts import entering
from anyprobe.probes.scripts.events import Event, Events, EventSource, Listener, Listeners
from anyprobe.probes.selfattach.client import Line, forget_slots, thread_pointer
from anyprobe.probes.selfattach.pickling import Parcel, Sender
from anyprobe.probes.selfattach.progress import Progress, line_on_terminal
from anyprobe.probes.selfattach.sharing import Shared
from anyprobe.probes.selfattach.stored import Stored
from anyprobe.probes.specs.spec import check_texts

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal
    from anyprobe.handlers.types.annotations import AnyType

Handler = Callable[..., Any]


class SelfProbe:
    """A probe in this process: what ``remove`` and ``enable`` take."""

    def __init__(self, session: "SelfSession", number: int, spec: str) -> None:
        """Stand for the attendant's probe of this number."""
        self._session, self.number, self.spec = session, number, spec

    @property
    def armed(self) -> bool:
        """Whether at least one place is armed."""
        ((_, _, armed, _),) = self._session.ask("states", [self.number])
        return bool(armed)

    def __repr__(self) -> str:
        """Return the spec and how much of it is armed."""
        with suppress(TargetError, UsageError):
            ((_, _, _, text),) = self._session.ask("states", [self.number])
            return str(text)
        return f"<Probe {self.spec}>"


@dataclass(eq=False)
class SelfCall:
    """A handler of both ends of a call; ``ret`` gives it the one for the return."""

    session: "SelfSession"
    number: int
    entry: list[SelfProbe]
    returns: list[SelfProbe]

    def ret(self, function: Handler) -> Handler:
        """Place the handler that runs when the call returns."""
        entries, returns = self.session.place_return(self.number, function)
        self.entry += entries
        self.returns += returns
        return function


class _OwnEvents(EventSource):
    """The records of a session in this process."""

    def __init__(self, session: "SelfSession") -> None:
        self._session = session

    def ended(self) -> bool:
        return self._session.detached

    def take(self, *, final: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            return rows_by_time(self._session.records(final=final, whole=False))
        except UsageError:  # it has just been closed; what is left comes with the next look
            return iter(())

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class SelfSession(SessionApi[SelfProbe]):
    """Probes in this very process, with the methods of ``Session``."""

    def __init__(self, options: SessionOptions, *, progress: Progress | None = None) -> None:
        """Use ``attach_self``."""
        self._owner = os.getpid()
        self.options, self.unsafe = options, options.unsafe
        self._sender = Sender()
        self._stored: dict[int, Stored] = {}
        self._handlers: dict[Handler, list[SelfProbe]] = {}
        self._listeners: Listeners | None = None
        self._last: tuple[Snapshot | None, dict[str, Records], list[str]] | None = None
        self._ledger: Ledger | None = None
        self._line = Line(progress)
        try:
            self.exe, _ = self._line.ask("open", options, self._line.thread_pointer)
        except BaseException:
            self._line.close()
            raise

    def __getattr__(self, name: str) -> NoReturn:
        """Say what to do where only sessions of other processes have something, as what kprobes need."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a session of attach_self has no {name}: kprobes, their events and dmesg need anyprobe.attach(PID), from "
            "another process"
        )

    @property
    def pid(self) -> int:
        """This process."""
        return self._owner

    @property
    def attendant(self) -> int:
        """The process that does the work."""
        return self._line.attendant

    def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - the answer
        """Have the attendant do something."""
        if os.getpid() != self._owner:
            raise UsageError("this session belongs to the process that this one was forked from")
        if self._last is not None:
            raise UsageError("this session has been detached")
        found = self._line.ask(method, *arguments)
        with suppress(IndexError):  # when no more are new
            while True:
                shared = self._line.shared.pop()
                self._take_over(shared)
        return found

    def _take_over(self, shared: Shared) -> None:
        """Have the memory here in which something counts."""
        file, stored = self._line.files[shared.file], self._stored.get(shared.storage)
        if stored is not None:
            stored.view = file.view(stored.storage, shared)
        else:  # the state of a handler in C
            cast("Any", self._sender.storages[shared.storage]).views.append(file.bytes_of(shared))

    # -- probes

    def count(self, *specs: str, follow: bool | None = None) -> list[SelfProbe]:
        """Count hits: entries, returns or single instructions, as the specs say; see ``Session.count``."""
        return self._probes(self.ask("count", specs, follow))

    def time(self, *specs: str, follow: bool | None = None) -> list[SelfProbe]:
        """Measure how long functions take, from entry to return."""
        return self._probes(self.ask("time", specs, follow))

    def remove(self, *probes: SelfProbe) -> None:
        """Disarm probes; what they counted stays."""
        self.ask("remove", [each.number for each in probes])

    def enable(self, *probes: SelfProbe) -> None:
        """Arm probes again that were removed."""
        self.ask("enable", [each.number for each in probes])

    def limit_overhead(self, percent: float) -> list[SelfProbe]:
        """Disarm what costs most until all probes cost no more than some percent of one CPU; return whose it was."""
        return self._probes(self.ask("limit_overhead", percent))

    def probes_of(self, *handlers: Handler) -> list[SelfProbe]:
        """Return the probes that call some handlers."""
        return [probe for handler in handlers for probe in self._handlers.get(handler, ())]

    def _probes(self, states: Sequence[tuple[int, str, bool, str]]) -> list[SelfProbe]:
        self._ledger = self.ask("ledger")  # by which we find what is counted if the other process can tell us no more
        return [SelfProbe(self, number, spec) for number, spec, _, _ in states]

    # -- handlers

    def entry(
        self, *specs: str, when: Handler | None = None, handler: Handler | None = None
    ) -> Callable[[Handler], Handler]:
        """Place a handler at the entries of functions; ``when`` is a condition for it to run."""
        return self._decorator("entry", specs, when, handler)

    def ret(
        self,
        *specs: str,
        when: Handler | None = None,
        retval: "AnyType | None" = None,
        handler: Handler | None = None,
    ) -> Callable[[Handler], Handler]:
        """Place a handler where functions return; ``retval`` is the result's type where debug information lacks it."""
        return self._decorator("ret", specs, when, handler, retval=retval)

    def at(
        self, *specs: str, when: Handler | None = None, handler: Handler | None = None
    ) -> Callable[[Handler], Handler]:
        """Place a handler before instructions."""
        return self._decorator("at", specs, when, handler)

    def after(
        self, *specs: str, when: Handler | None = None, handler: Handler | None = None
    ) -> Callable[[Handler], Handler]:
        """Place a handler after instructions."""
        return self._decorator("after", specs, when, handler)

    def replace(self, spec: str, by: str) -> list[SelfProbe]:
        """Have functions' calls go to another function of the program, which may call what it replaces."""
        return self._probes(self.ask("replace", spec, by))

    def type(self, name: str, module: str = "a.out") -> "AnyType":
        """Return what stands in handlers for a type of the program: see ``Session.type``."""
        from anyprobe.handlers.types.layouts import StructType

        self.ask("check_type", name, module)
        made = StructType(name, 0, ())
        self._sender.types[id(made)] = made, name, module
        return made

    def call(
        self, *specs: str, when: Handler | None = None, retval: "AnyType | None" = None
    ) -> Callable[[Handler], SelfCall]:
        """Place a handler at the entries of functions, and by ``.ret`` of the result another at their returns."""

        def place(function: Handler) -> SelfCall:
            number, probes = self._place("call", specs, function, when, retval=retval)
            return SelfCall(self, number, probes, [])

        return place

    def callback(self, *specs: str, timeout: float = 0.1) -> NoReturn:
        """Refuse: a thread that waits for Python here may hold what Python here needs."""
        del specs, timeout
        raise UsageError(
            "a thread of this program cannot wait for Python in this program: it may hold the interpreter's lock; "
            "use entry() with a handler, or on()"
        )

    def place_return(self, call: int, function: Handler) -> tuple[list[SelfProbe], list[SelfProbe]]:
        """Place the handler of a call's return, see ``SelfCall.ret``; return the probes at entries and returns."""
        entries, returns = self.ask("place_return", call, self._packed(function))
        return self._probes(entries), self._probes(returns)

    def _decorator(
        self, kind: str, specs: tuple[str, ...], when: Handler | None, handler: Handler | None, **options: object
    ) -> Callable[[Handler], Handler]:
        check_texts(specs)

        def place(function: Handler) -> Handler:
            _, probes = self._place(kind, specs, function, when, **options)
            self._handlers.setdefault(function, []).extend(probes)
            return function

        if handler is not None:
            place(handler)
        return place

    def _place(
        self, kind: str, specs: tuple[str, ...], function: Handler, when: Handler | None, **options: object
    ) -> tuple[int, list[SelfProbe]]:
        parcel, condition = self._packed(function), None if when is None else self._packed(when)
        number, states = self.ask("place", kind, specs, parcel, condition, options)
        return number, self._probes(states)

    def _packed(self, function: Handler) -> Parcel:
        parcel = self._sender.pack(function)
        for number in parcel.storages:
            storage = self._sender.storages[number]
            if not isinstance(storage, Aggregation | Map):
                continue
            made = self._stored[number] = Stored(self._line, storage)
            cast("list[Any]", storage.views).append(made)
        return parcel

    # -- results

    def snapshot(self) -> Snapshot:
        """Return what has been counted so far, as an immutable value."""
        if self._last is not None and self._last[0] is not None:
            return self._last[0]
        found: Snapshot = self.ask("snapshot")
        return replace(found, aggregations=self._results())

    def _results(self) -> tuple[AggregationResult, ...]:
        """Return what was counted; the attendant does not know what was cleared."""
        return tuple(each.result() for each in self._stored.values() if isinstance(each.storage, Aggregation))

    @property
    def warnings(self) -> Sequence[str]:
        """What the user should know."""
        found: Sequence[str] = self._last[2] if self._last is not None else self.ask("ask", "warnings")
        return found

    @property
    def refused(self) -> list[tuple[str, "Refusal"]]:
        """Everything that was asked for and not placed: canonical spec and reason."""
        found: list[tuple[str, Refusal]] = self.ask("ask", "refused")
        return found

    def misses(self) -> dict[str, int]:
        """Return what went wrong in handlers, by kind."""
        found: dict[str, int] = self.ask("misses")
        return found

    def records(self, *, final: bool = False, whole: bool = True) -> dict[str, Records]:
        """Return what was emitted since the last time, by name, as NumPy arrays by time.

        Not ``whole``: what has just been emitted is kept for the next time, so that this is in order with what comes.
        """
        if self._last is not None:
            snapshot, left, warnings = self._last
            self._last = snapshot, {}, warnings
            return left
        found: dict[str, Records] = self.ask("records", final, whole)
        return found

    def rows(self, *, final: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what was emitted since the last time one by one, by time: the name, then the fields."""
        return rows_by_time(self.records(final=final))

    def events(self, *, timeout: float | None = None) -> Events:
        """Iterate over what is emitted as it comes; see ``Session.events``."""
        return Events(_OwnEvents(self), timeout=timeout)

    def on(self, *names: str) -> Callable[[Listener], Listener]:
        """Have a function called with each record of some names, of all if none is given, in a thread of its own.

        That thread is left out of all counts.
        """
        if self._listeners is None:
            self._listeners = Listeners(_OwnEvents(self), self._leave_this_out, forget_slots)
        listeners = self._listeners

        def listen(function: Listener) -> Listener:
            listeners.add(names, function)
            return function

        return listen

    def _leave_this_out(self) -> None:
        self.ask("leave_out", thread_pointer())

    def explain(self, spec: str, *, timed: bool = False) -> Explanation:
        """Return the plan or the refusals for one site, ``timed`` as ``time`` would need it; touches nothing."""
        found: Explanation = self.ask("ask", "explain", (spec,), {"timed": timed})
        return found

    def list(self, *specs: str) -> Sequence[ListedSite]:
        """Return what could be probed, and by which strategy; touches nothing."""
        found: Sequence[ListedSite] = self.ask("ask", "list", specs)
        return found

    # -- life

    @property
    def detached(self) -> bool:
        """Whether this session is over."""
        return self._last is not None

    def wait(self, timeout: float) -> None:
        """Let some time go by: the program waits for itself."""
        time.sleep(timeout)

    def pump(self, timeout: float = 0.0) -> bool:
        """Have the attendant do everything that is due for so many seconds; return whether the session goes on."""
        deadline = time.monotonic() + timeout
        while not self.detached:
            pause: float = self.ask("work")
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, pause))
        return not self.detached

    @property
    def exited(self) -> bool:
        """Whether the target is gone: it is not, it asks."""
        return False

    def detach(self) -> None:
        """Remove every splice. What was counted stays readable."""
        self.close()

    def close(self) -> None:
        """Remove everything and let the attendant go, or remove what a dead attendant left."""
        if self._last is not None or os.getpid() != self._owner:
            return
        if self._listeners is not None:  # before the attendant goes, which their thread may be asking
            self._listeners.end()
        try:
            for stored in self._stored.values():
                stored.learn_names()
            snapshot, left, warnings = self._line.ask("close")
        except TargetError:
            if not self._line.closed:
                raise
            self._clean_up()  # what is counted by now is all
            snapshot, left = self._counted(), {}
            warnings = ["the attendant has died: records that it had not told of are lost"]
        finally:
            for stored in self._stored.values():
                stored.finish()
            for file in self._line.files:
                file.close()
            self._line.close()
        if snapshot is not None:
            snapshot = replace(snapshot, aggregations=self._results())
        self._last = snapshot, left, warnings
        if self._listeners is not None:
            self._listeners.tell(Event(name, fields) for name, fields in self.rows(final=True))

    def _counted(self) -> Snapshot | None:
        """Return what the counters hold that are shared with us."""
        if self._ledger is None:
            return None
        found = read(self._ledger, lambda bank: self._line.files[bank.file].bank(bank))
        return replace(found, sites=tuple(replace(each, armed=False) for each in found.sites))

    def _clean_up(self) -> None:
        """Have another attendant remove what the dead one left."""
        line = Line()
        try:
            line.ask("remove_leftovers")
        finally:
            line.close()

    def __repr__(self) -> str:
        """Return what it is on, in one line."""
        return f"<SelfSession on this program (pid {self.pid}){', detached' * self.detached}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: what was counted so far."""
        from anyprobe.data.snapshots.shown import page_of

        return page_of(self.snapshot())

    def __enter__(self) -> Self:
        """Return the session, which is the current one from here on."""
        entering.enter(self)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Detach, whatever happened."""
        entering.leave(self)
        self.close()


def attach_self(
    options: SessionOptions | None = None, *, progress: Progress | bool = False, **changes: Unpack[OptionNames]
) -> SelfSession:
    """Open a session on the Python program that this is, or the notebook; the options are those of ``attach``.

    Another process is executed that does the work. The thread that talks to it is not counted. ``progress``: ``True``
    shows a line on a terminal while something takes more than half a second; a function is called meanwhile, with what
    is being done, the seconds, and whether it is done.

    Args:
        options: how to probe, see ``SessionOptions``.
        progress: ``True``, or a function of what is being done, the seconds, and whether it is done.
        changes: the options one by one.

    Returns:
        The session: use it in a ``with`` block, which removes everything at its end.

    Raises:
        PermissionDenied, UnsupportedTarget: this program cannot be probed.
        UsageError: an option has a value that means nothing.
    """
    shown = line_on_terminal if progress is True else progress or None
    return SelfSession(chosen(options, changes), progress=shown)
