"""What sessions have to do again and again while their programs run, and when each of it is due."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

HANDLER_LOOKS = 0.02
"""Seconds between two looks at the signal handlers of a program, of which each takes 80 microseconds."""
PROGRAM_LOOKS = 0.2
"""Seconds between two looks whether a process has executed another program."""


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


def duties_of(sessions: Sequence[Attended]) -> Duties:
    """Return what sessions need: their scripts' intervals, and looks at the signal handlers that programs set."""
    duties = Duties()
    for session in sessions:
        duties.follow(session.hooks)

    def look_at_handlers() -> None:
        for session in sessions:
            session.follow_handlers(often=True)

    duties.every(HANDLER_LOOKS * max(len(sessions), 1), look_at_handlers)
    return duties
