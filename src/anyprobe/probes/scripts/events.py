"""Records one by one as they come, and Python functions that are called with them after the fact."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from anyprobe.core.errors import AnyprobeError
from anyprobe.data.aggregates.records import rows_by_time

if TYPE_CHECKING:
    from anyprobe.data.aggregates.records import Records

MARGIN_NS = 1_000_000
"""What is younger is kept for the next look: by then, whatever was emitted before it is complete, on all threads."""
_SHORTEST, _LONGEST = 0.001, 0.05
"""Seconds between two looks: few while something comes, more while nothing does."""
_ENDING = 5.0
_ERRORS = 100


class Event(NamedTuple):
    """One record: its name and its fields, ``ts`` among them."""

    name: str
    fields: dict[str, Any]


Listener = Callable[[Event], object]


class EventSource(ABC):
    """Where records come from."""

    @abstractmethod
    def ended(self) -> bool:
        """Whether nothing more will be emitted."""

    @abstractmethod
    def take(self, *, final: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return what has come since the last time, by time."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the end."""


class Emitting(Protocol):
    """A session in which records are emitted."""

    @property
    def detached(self) -> bool: ...  # noqa: D102 - as sessions have them
    @property
    def exited(self) -> bool: ...  # noqa: D102
    def records(self, *, final: bool = False, until: int | None = None) -> "dict[str, Records]": ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> int | None: ...  # noqa: D102


class SessionEvents(EventSource):
    """The records of a session."""

    def __init__(self, session: Emitting, now: Callable[[], int]) -> None:
        """Take them from there; ``now`` is the time as records have it."""
        self._session, self._now = session, now

    def ended(self) -> bool:
        """Whether the target or the session is over."""
        return self._session.detached or self._session.exited

    def take(self, *, final: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return what has come since the last time, by time."""
        until = None if final else self._now() - MARGIN_NS
        return rows_by_time(self._session.records(final=final, until=until))

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the target's end."""
        self._session.wait(seconds)


class Events:
    """Iterates over records as they come, by ``for`` and ``async for``.

    It ends with the target, with the session, or when nothing has come for ``timeout`` seconds.
    """

    def __init__(self, source: EventSource, *, timeout: float | None = None) -> None:
        """Take the records of a source."""
        self._source, self._timeout = source, timeout
        self.stopped = False
        """Set to have the iteration end after one more look."""

    def __iter__(self) -> Iterator[Event]:
        """Wait for records and yield them."""
        pauses = _Pauses(self._timeout)
        while True:
            found, over = self._look()
            yield from found
            pause = pauses.after(len(found))
            if over or pause is None:
                return
            self._source.wait(pause)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Wait for records and yield them; others run meanwhile."""
        import asyncio  # what comes here has it

        pauses = _Pauses(self._timeout)
        while True:
            found, over = self._look()
            for event in found:
                yield event
            pause = pauses.after(len(found))
            if over or pause is None:
                return
            await asyncio.sleep(pause)

    def _look(self) -> tuple[Sequence[Event], bool]:
        # first the end, then the look: what was emitted before the end is in it
        over = self.stopped or self._source.ended()
        return [Event(name, fields) for name, fields in self._source.take(final=over)], over


class _Pauses:
    """How long to wait between two looks."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout, self._pause, self._since = timeout, _SHORTEST, time.monotonic()

    def after(self, found: int) -> float | None:
        """Return the seconds to wait, ``None`` when nothing has come for too long."""
        now = time.monotonic()
        if found:
            self._pause, self._since = _SHORTEST, now
        else:
            self._pause = min(2 * self._pause, _LONGEST)
        if self._timeout is None:
            return self._pause
        left = self._since + self._timeout - now
        return min(self._pause, left) if left > 0 else None


class Listeners:
    """Functions that are called with each record of some names, in a thread of their own."""

    def __init__(
        self,
        source: EventSource,
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> None:
        """Take the records of a source; the thread calls ``before`` first and ``after`` in the end."""
        self._events, self._before, self._after = Events(source), before, after
        self._functions: list[tuple[frozenset[str], Listener]] = []
        self._thread: threading.Thread | None = None
        self.errors: list[Exception] = []
        """What functions have raised, the first hundred."""

    def add(self, names: Sequence[str], function: Listener) -> None:
        """Call a function with each record of some names, of all if there are none."""
        self._functions.append((frozenset(names), function))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="anyprobe events", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Have the functions called with what has come so far, and no more."""
        self._events.stopped = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENDING)

    def tell(self, events: Iterable[Event]) -> None:
        """Call the functions with events."""
        for event in events:
            for names, function in list(self._functions):
                if not names or event.name in names:
                    self._call(function, event)

    def _run(self) -> None:
        try:
            if self._before is not None:
                self._before()
            self.tell(self._events)
        except AnyprobeError as error:
            self._note(error)
        finally:
            if self._after is not None:
                self._after()

    def _call(self, function: Listener, event: Event) -> None:
        try:
            function(event)
        except Exception as error:  # noqa: BLE001 - the others are called all the same
            self._note(error)

    def _note(self, error: Exception) -> None:
        if len(self.errors) < _ERRORS:
            self.errors.append(error)
