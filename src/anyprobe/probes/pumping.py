"""The part of a session that looks after it while its program runs: at a call of ``pump``, or in a thread."""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from anyprobe.core.errors import AnyprobeError, UsageError
from anyprobe.probes.desired import DesiredState
from anyprobe.probes.duties import PROGRAM_LOOKS, Duties, duties_of
from anyprobe.probes.observed import Observed

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.probe import Probe

_ENDING = 5.0
"""Seconds that the end of a session waits for its thread, whose work is short."""


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Pumped")


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Have one thread at a time in the methods of a session that change or read it, once it has a thread of its own."""

    @wraps(method)
    def alone(self: S, *args: P.args, **named: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **named)

    return cast("Callable[Concatenate[S, P], R]", alone)


class Pumped(Observed):
    """A session that does what is due."""

    _thread: threading.Thread | None = None
    _desired: DesiredState
    _other_program: str | None = None
    """What the process has executed instead of the program with the probes."""

    def pump(self, timeout: float = 0.0) -> bool:
        """Do everything that is due now, and what becomes due until ``timeout`` seconds have passed.

        That is: functions of ``interval``, signal handlers that the program has set since the last look, requests of
        other commands (``optimize``), and what was added to ``duties``. ``session.duties.every(0.5, lambda:
        session.limit_overhead(5))`` keeps probes below 5 % of a CPU.

        Args:
            timeout: seconds to go on for; 0 for what is due now.

        Returns:
            Whether the program still runs with these probes: it has not ended, has not executed another one, and the
            session has not been detached. Where it is over, this returns at once.
        """
        deadline = time.monotonic() + timeout
        while not self._is_over:
            due = self.duties.work()
            now = time.monotonic()
            if now >= deadline:
                return not self._is_over
            self._process.wait(min(deadline, due if due is not None else deadline) - now)
        return False

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

    @cached_property
    def duties(self) -> Duties:
        """What is due, and when."""
        duties = duties_of([self])
        duties.every(PROGRAM_LOOKS, self._look_at_program)
        return duties

    @abstractmethod
    def reconcile(self, modules: "Sequence[LoadedObject] | None" = None) -> "list[Probe]":
        """Make what is armed equal to what is wanted."""

    @abstractmethod
    def follow_handlers(self, *, often: bool = False) -> None:
        """Have signal handlers that the program has set since the last look see its own pcs while probes are hit."""

    @property
    def _is_over(self) -> bool:
        return self.detached or self.exited or self._other_program is not None

    def _look_at_program(self) -> None:
        if self._other_program is None and not self.exited:
            self._other_program = self.became()
            if self._other_program is not None:
                self.warn(f"process {self.pid} became {self._other_program}, without probes")
        if self._other_program is None and self._desired.follows and not self.exited:
            self.reconcile()

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.duties.work()
            except AnyprobeError as error:
                if not self._is_over and str(error) not in self.warnings:
                    self.warn(str(error))
            due = self.duties.next_moment()
            pause = PROGRAM_LOOKS if due is None else due - time.monotonic()
            if self._stopping.wait(min(max(pause, 0.001), PROGRAM_LOOKS)):
                return

    def _end_thread(self) -> None:
        """Let the thread end, if there is one and this is not it; the caller does not hold the lock."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            if thread is not threading.current_thread():
                thread.join(_ENDING)
