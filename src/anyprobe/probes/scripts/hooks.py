"""What a script does in the controller: when its probes are in place, again and again, and at the end."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import AnyprobeError, UsageError
from anyprobe.probes.scripts.entering import entered

Hook = Callable[[], object]


@dataclass
class _Interval:
    function: Hook
    seconds: float
    next: float


@dataclass
class Hooks:
    """The functions of one session; those of the beginning wait for it if ``waits``."""

    waits: bool = False
    session: Any = None
    """What is the current session while they run."""
    _begin: list[Hook] = field(default_factory=list)
    _end: list[Hook] = field(default_factory=list)
    _intervals: list[_Interval] = field(default_factory=list)

    def add_begin(self, function: Hook) -> None:
        """Call a function when the probes are in place: at once, unless the session says when that is."""
        if self.waits:
            self._begin.append(function)
        else:
            self._call(function)

    def add_end(self, function: Hook) -> None:
        """Call a function when the probes are removed."""
        self._end.append(function)

    def add_interval(self, function: Hook, seconds: float) -> None:
        """Call a function every so many seconds."""
        if not seconds > 0:
            raise UsageError(f"an interval of {seconds} seconds")
        self._intervals.append(_Interval(function, seconds, time.monotonic() + seconds))

    def begin(self) -> None:
        """Call those of the beginning; intervals begin now."""
        functions, self._begin, self.waits = self._begin, [], False
        for function in functions:
            self._call(function)
        now = time.monotonic()
        for each in self._intervals:
            each.next = now + each.seconds

    def look(self) -> float | None:
        """Call those whose time has come; return when the next one's comes."""
        for each in self._intervals:
            if time.monotonic() >= each.next:
                self._call(each.function)
                # what could not be called in time is left out
                each.next = max(each.next + each.seconds, time.monotonic())
        return self.next

    @property
    def next(self) -> float | None:
        """When the next one's time comes, None if there is none."""
        return min((each.next for each in self._intervals), default=None)

    def end(self) -> None:
        """Call those of the end, once."""
        functions, self._end, self._intervals = self._end, [], []
        for function in functions:
            self._call(function)

    def _call(self, function: Hook) -> None:
        try:
            with nullcontext() if self.session is None else entered(self.session):
                function()
        except AnyprobeError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's, whatever it is
            import traceback

            told = traceback.TracebackException.from_exception(error)
            told.stack = traceback.StackSummary.from_list(list(told.stack)[1:])
            raise UsageError("the script failed\n" + "".join(told.format()).rstrip()) from None


class Scripted:
    """What sessions of all kinds have for scripts."""

    @property
    def _current(self) -> object:
        """What is the current session while the functions run."""
        return self

    @Lazy
    def hooks(self) -> Hooks:
        """What is done in the controller at the beginning, at the end, and in between."""
        return Hooks(session=self._current)

    def begin(self, function: Hook) -> Hook:
        """Call a function here when all probes of a script are in place, before a started program runs on.

        Args:
            function: without parameters.

        Returns:
            The same function.
        """
        self.hooks.add_begin(function)
        return function

    def end(self, function: Hook) -> Hook:
        """Call a function here when the probes have been removed: what was counted is complete then.

        Args:
            function: without parameters.

        Returns:
            The same function.
        """
        self.hooks.add_end(function)
        return function

    def interval(self, seconds: float) -> Callable[[Hook], Hook]:
        """Call a function here every so many seconds; outside of scripts, whenever ``hooks.look()`` is called.

        Args:
            seconds: how often.

        Returns:
            A decorator that gives the function back.
        """

        def decorate(function: Hook) -> Hook:
            self.hooks.add_interval(function, seconds)
            return function

        return decorate
