"""What every session can do, on another process and on the program itself: write functions that take either."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from anyprobe.core.cachedproperty import Lazy

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal
    from anyprobe.data.aggregates.records import Records
    from anyprobe.data.findings.explanation import Explanation, ListedSite
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.handlers.types.annotations import AnyType
    from anyprobe.probes.providers.function.handlers.points import Handler
    from anyprobe.probes.scripts.events import Emitting, Events, Listener, Listeners, SessionEvents


class ProbeApi(Protocol):
    """A probe: what ``count``, ``time`` and ``probes_of`` return, and ``remove`` and ``enable`` take."""

    @property
    def spec(self) -> str:
        """The spec as it was written."""
        ...

    @property
    def armed(self) -> bool:
        """Whether at least one place is armed."""
        ...


class CallApi(Protocol):
    """A handler of both ends of a call."""

    @property
    def entry(self) -> Sequence[ProbeApi]:
        """The probes at entries."""
        ...

    @property
    def returns(self) -> Sequence[ProbeApi]:
        """The probes at returns."""
        ...

    def ret(self, function: "Handler") -> "Handler":
        """Place the handler that runs when the call returns."""
        ...


P = TypeVar("P", bound=ProbeApi)


class AnySessionApi(Protocol[P]):
    """A session: probes in one program (``SessionApi``), or in the running kernel (``KernelSession``).

    Each method is described where sessions have it; leaving the ``with`` block removes everything.
    """

    @property
    def pid(self) -> int:
        """The program's process id, 0 of the kernel."""
        ...

    @property
    def exited(self) -> bool:
        """Whether the program is gone."""
        ...

    @property
    def detached(self) -> bool:
        """Whether the session is over."""
        ...

    @property
    def refused(self) -> "Sequence[tuple[str, Refusal]]":
        """Everything that was asked for and not placed: canonical spec and reason."""
        ...

    # -- probes

    def count(self, *specs: str, follow: bool = ...) -> list[P]:
        """Count hits, with ``follow`` in libraries or modules that are loaded later, too."""
        ...

    def time(self, *specs: str) -> list[P]:
        """Measure how long functions take, from entry to return."""
        ...

    def remove(self, *probes: P) -> None:
        """Disarm probes; what they counted stays."""
        ...

    def enable(self, *probes: P) -> None:
        """Arm probes again that were removed."""
        ...

    def probes_of(self, *handlers: "Handler") -> list[P]:
        """Return the probes that call some handlers."""
        ...

    def explain(self, spec: str) -> "Explanation":
        """Return the plan or the refusals for one site; touches nothing."""
        ...

    def list(self, *specs: str) -> "Sequence[ListedSite]":
        """Return what could be probed, and by which strategy; touches nothing."""
        ...

    # -- handlers

    def entry(
        self, *specs: str, when: "Handler | None" = None, handler: "Handler | None" = None
    ) -> "Callable[[Handler], Handler]":
        """Place a handler at the entries of functions; ``when`` is a condition for it to run."""
        ...

    def ret(
        self,
        *specs: str,
        when: "Handler | None" = None,
        retval: "AnyType | None" = None,
        handler: "Handler | None" = None,
    ) -> "Callable[[Handler], Handler]":
        """Place a handler where functions return."""
        ...

    def at(
        self, *specs: str, when: "Handler | None" = None, handler: "Handler | None" = None
    ) -> "Callable[[Handler], Handler]":
        """Place a handler before instructions."""
        ...

    def call(
        self, *specs: str, when: "Handler | None" = None, retval: "AnyType | None" = None
    ) -> "Callable[[Handler], CallApi]":
        """Place a handler at the entries of functions, and by ``.ret`` of the result another at their returns."""
        ...

    def type(self, name: str, module: str = ...) -> "AnyType":
        """Return a type of the program or of the kernel by its name."""
        ...

    # -- results

    def snapshot(self) -> "Snapshot":
        """Return what has been counted so far, as an immutable value."""
        ...

    def misses(self) -> dict[str, int]:
        """Return what handlers could not do, by kind."""
        ...

    def records(self, *, final: bool = False) -> "dict[str, Records]":
        """Return what was emitted since the last time, by name, as NumPy arrays by time."""
        ...

    def rows(self, *, final: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what was emitted since the last time one by one, by time: the name, then the fields."""
        ...

    def events(self, *, timeout: float | None = None) -> "Events":
        """Iterate over what is emitted as it comes."""
        ...

    def on(self, *names: str) -> "Callable[[Listener], Listener]":
        """Have a Python function called with each record of some names, of all if none is given, as it comes."""
        ...

    # -- life

    def wait(self, timeout: float) -> int | None:
        """Wait for so long, or until the program's end."""
        ...

    def pump(self, timeout: float = 0.0) -> bool:
        """Do everything that is due for so many seconds; return whether the program still runs with these probes."""
        ...

    def detach(self) -> None:
        """Remove everything. What was counted stays readable."""
        ...

    def close(self) -> None:
        """Detach and give all memory back."""
        ...

    def __enter__(self) -> Self:
        """Return the session, which is the current one from here on."""
        ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Detach, whatever happened."""
        ...


class SessionApi(AnySessionApi[P], Protocol[P]):
    """A session on a program: on another process (``Session``) or on this one (``SelfSession``)."""

    def count(self, *specs: str, follow: bool | None = None) -> list[P]:
        """Count hits, with ``follow`` in libraries that are loaded later, too."""
        ...

    def time(self, *specs: str, follow: bool | None = None) -> list[P]:
        """Measure how long functions take, from entry to return; ``follow`` as for ``count``."""
        ...

    def limit_overhead(self, percent: float) -> list[P]:
        """Disarm what costs most until all probes cost no more than some percent of one CPU; return whose it was."""
        ...

    def explain(self, spec: str, *, timed: bool = False) -> "Explanation":
        """Return the plan or the refusals for one site; touches nothing."""
        ...

    def after(
        self, *specs: str, when: "Handler | None" = None, handler: "Handler | None" = None
    ) -> "Callable[[Handler], Handler]":
        """Place a handler after instructions."""
        ...

    def replace(self, spec: str, by: str) -> Sequence[P]:
        """Have functions' calls go to another function of the program."""
        ...

    def type(self, name: str, module: str = "a.out") -> "AnyType":
        """Return a type of the program by its name, from debug information."""
        ...


class Emitted(ABC):
    """The part of a session that hands out what handlers emit."""

    @abstractmethod
    def records(self, *, final: bool = False, until: int | None = None) -> "dict[str, Records]":
        """Return what was emitted since the last time, by name, as NumPy arrays by time (``ts``, in nanoseconds).

        ``final``: nothing is emitted any more, so what is not complete by now never will be. What was emitted after
        ``until`` is kept for the next time.
        """

    @abstractmethod
    def emission_time(self) -> int:
        """Return this moment as records have it."""

    def rows(self, *, final: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what was emitted since the last time one by one, of all names by time: the name, then the fields.

        Args:
            final: as for ``records``.
        """
        from anyprobe.data.aggregates.records import rows_by_time

        return rows_by_time(self.records(final=final))

    def events(self, *, timeout: float | None = None) -> "Events":
        """Iterate over what is emitted as it comes, by ``for`` or ``async for``: each with ``name`` and ``fields``.

        It ends with the target or the session, and when nothing has come for ``timeout`` seconds.

        Args:
            timeout: seconds without a record after which the iteration ends.

        Returns:
            An iterator, also an asynchronous one, over the records with ``name`` and fields.
        """
        from anyprobe.probes.scripts.events import Events

        return Events(self._source(), timeout=timeout)

    @property
    def _current(self) -> object:
        """What is the current session while functions are called with records."""
        return self

    @Lazy
    def listeners(self) -> "Listeners":
        """The Python functions that are called with records."""
        from anyprobe.probes.scripts.entering import enter
        from anyprobe.probes.scripts.events import Listeners

        return Listeners(self._source(), lambda: enter(self._current))

    @property
    def has_listeners(self) -> bool:
        """Whether records go to Python functions, which nothing else may take them from."""
        return Emitted.listeners.made(self) is not None

    def _source(self) -> "SessionEvents":
        from anyprobe.probes.scripts.events import SessionEvents

        return SessionEvents(cast("Emitting", self), self.emission_time)

    def on(self, *names: str) -> "Callable[[Listener], Listener]":
        """Have a Python function called here with each record of some names, of all if none is given, as it comes.

        Args:
            names: of records.

        Returns:
            A decorator that gives the function back.
        """

        def listen(function: "Listener") -> "Listener":
            self.listeners.add(names, function)
            return function

        return listen
