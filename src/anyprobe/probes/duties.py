"""What sessions have to do again and again while their programs run, and when each of it is due."""

import itertools
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from anyprobe.core.errors import AnyprobeError, UsageError

HANDLER_LOOKS = 0.02
"""Seconds between two looks at the signal handlers of a program, of which each takes 80 microseconds."""
MEMORY_LOOKS = 1.0
"""Seconds between two looks at memory that handlers must not fault in."""
LEARNING_LOOKS = 0.01
"""Seconds between two looks at which callers of timed functions are not known yet."""
FLAG_LOOKS = 0.05
"""Seconds between two moments at which probes may be taken out that only tell whether they are hit."""
PLACING_LOOKS = 0.01
"""Seconds between two slices of probes that are placed while others count already."""
PROGRAM_LOOKS = 0.2
"""Seconds between two looks whether a process has executed another program, or the kernel has other modules."""
_ENDING = 5.0
"""Seconds that the end of a session waits for its thread, whose work is short."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Locked")


class Intervals(Protocol):
    """Functions that are called at moments of their own."""

    @property
    def next(self) -> float | None:
        """When the next one is due, None if there is none."""
        ...

    def look(self) -> float | None:
        """Call those whose time has come; return when the next one's comes."""
        ...


class Attended(Protocol):
    """A session, as far as it has to be looked after."""

    @property
    def hooks(self) -> Intervals:
        """What a script has asked for, by ``session.interval``."""
        ...

    def follow_handlers(self, *, often: bool = False) -> None:
        """Have signal handlers that the program has set see its own pcs."""
        ...

    def learn_return_points(self) -> None:
        """Have calls end in callers that were not known."""
        ...

    def look_at_memory(self) -> None:
        """See whether memory has come that handlers must not fault in."""
        ...

    def take_out_hit(self) -> None:
        """Take out probes that only had to tell whether they are hit."""
        ...


@dataclass
class _Duty:
    act: Callable[[], object]
    seconds: float
    next: float
    steady: bool


@dataclass
class Duties:
    """A table of functions and of when they are due; nothing happens but in ``work``."""

    _duties: list[_Duty] = field(default_factory=list)
    _intervals: list[Intervals] = field(default_factory=list)

    def every(self, seconds: float, act: Callable[[], object], *, first: float = 0.0, steady: bool = False) -> None:
        """Have a function called every so many seconds, for the first time ``first`` seconds from now.

        The time counts from the end of one call to the next, or with ``steady`` from one due moment to the next.
        """
        self._duties.append(_Duty(act, seconds, time.monotonic() + first, steady))

    def follow(self, intervals: Intervals) -> None:
        """Have functions called that know themselves when they are due."""
        self._intervals.append(intervals)

    def work(self) -> float | None:
        """Do what is due, each once; return the moment at which the next is, as ``next_moment`` does."""
        moments = [each.look() for each in self._intervals]
        for each in self._duties:
            now = time.monotonic()
            if now < each.next:
                continue
            try:
                each.act()
            finally:  # what has failed is tried again at its next moment, and not at once
                each.next = each.next + each.seconds if each.steady else time.monotonic() + each.seconds
        return _first((*moments, *(duty.next for duty in self._duties)))

    def next_moment(self) -> float | None:
        """Return the moment (``time.monotonic``) at which something is due next, None if there is nothing."""
        return _first((*(each.next for each in self._intervals), *(duty.next for duty in self._duties)))


def _first(moments: Iterable[float | None]) -> float | None:
    return min((each for each in moments if each is not None), default=None)


class _HooksOfAll(NamedTuple):
    """The functions of all sessions of the moment: there may be more than at the beginning."""

    sessions: Sequence[Attended]

    @property
    def next(self) -> float | None:
        return _first(each.hooks.next for each in list(self.sessions))

    def look(self) -> float | None:
        return _first([each.hooks.look() for each in list(self.sessions)])


def duties_of(sessions: Sequence[Attended]) -> Duties:
    """Return what sessions need: their scripts' intervals, and looks at the signal handlers that programs set."""
    duties = Duties()
    duties.follow(_HooksOfAll(sessions))

    turns = itertools.count()

    def look_at_handlers() -> None:
        """Look at one after the other: there may be many, and more than at the beginning."""
        if there := len(sessions):
            sessions[next(turns) % there].follow_handlers(often=True)

    def learn() -> None:
        for each in sessions:
            each.learn_return_points()

    def look_at_memory() -> None:
        for each in sessions:
            each.look_at_memory()

    def take_out_hit() -> None:
        for each in sessions:
            each.take_out_hit()

    duties.every(FLAG_LOOKS, take_out_hit)
    duties.every(MEMORY_LOOKS, look_at_memory)
    duties.every(LEARNING_LOOKS, learn)
    duties.every(HANDLER_LOOKS, look_at_handlers)
    return duties


class Locked(Protocol):
    """What only one thread at a time may change or read."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by the thread that does."""
        ...


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Have one thread at a time in the methods of a session, or of its parts, that change or read it."""

    @wraps(method)
    def alone(self: S, *args: P.args, **named: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **named)

    return cast("Callable[Concatenate[S, P], R]", alone)


class Tended:
    """A session with duties, which a thread may do."""

    lock: AbstractContextManager[object]
    warnings: Sequence[str]
    _thread: threading.Thread | None = None

    @property
    @abstractmethod
    def duties(self) -> Duties:
        """What is due, and when."""

    @property
    @abstractmethod
    def detached(self) -> bool:
        """Whether it has been detached."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing is due any more."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Tell the user something, by ``warnings``."""

    def pump_in_background(self) -> None:
        """Have a thread do what is due, from now to the end of the session; functions of ``interval`` run in it, too.

        What it meets with is in ``warnings``, each thing once: nothing ends for it.
        """
        if self.detached:
            raise UsageError("this session has been detached")
        if self._thread is None:
            self._stopping = threading.Event()
            self._thread = threading.Thread(target=self._run, name="anyprobe pump", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self.is_over:
            try:
                self.duties.work()
            except AnyprobeError as error:
                if not self.is_over and str(error) not in self.warnings:
                    self.warn(str(error))
            due = self.duties.next_moment()
            pause = PROGRAM_LOOKS if due is None else due - time.monotonic()
            if self._stopping.wait(min(max(pause, 0.001), PROGRAM_LOOKS)):
                return

    def end_thread(self) -> None:
        """Let the thread end, if there is one and this is not it; the caller does not hold the lock."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            if thread is not threading.current_thread():
                thread.join(_ENDING)
