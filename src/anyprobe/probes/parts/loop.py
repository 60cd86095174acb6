"""What is done again and again while a program runs: at a call of ``pump``, or in a thread."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import TargetError
from anyprobe.probes.duties import PLACING_LOOKS, PROGRAM_LOOKS, Duties, Tended, duties_of
from anyprobe.probes.parts.arming import Arming
from anyprobe.probes.parts.children import ChildWatch
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.installing import Installer
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.timing import CallEnds, Times

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.scripts.hooks import Hooks

WAITING_LOOKS = 1.0
"""Seconds between looks at what threads have waited."""


class DutyLoop(Tended):
    """The duties of one session, and the thread that may do them."""

    def __init__(
        self, host: "ProbeHost", times: Times, handlers: Decorators, calls: CallEnds, installer: Installer,
        modules: ModuleReconciler, child_watch: ChildWatch, arming: Arming,
    ) -> None:  # fmt: skip
        """Have nothing to do but what every session has."""
        self._host, self.lock = host, host.lock
        self._times, self._handlers, self._calls, self._installer = times, handlers, calls, installer
        self._modules, self._child_watch, self._arming = modules, child_watch, arming

    @property
    def detached(self) -> bool:
        """Whether the session is over."""
        return self._host.detached

    @property
    def warnings(self) -> Sequence[str]:  # type: ignore[override] # they are the host's
        """What the user should know."""
        return self._host.warnings

    def warn(self, *texts: str) -> None:
        """Tell the user something, by ``warnings``."""
        self._host.warn(*texts)

    @property
    def hooks(self) -> "Hooks":
        """What a script has asked for."""
        return self._handlers.hooks

    def follow_handlers(self, *, often: bool = False) -> None:
        """Have signal handlers that the program has set see its own pcs."""
        self._installer.follow_handlers(often=often)

    def learn_return_points(self) -> None:
        """Have calls end in callers that were not known."""
        self._calls.learn()

    def look_at_memory(self) -> None:
        """See whether memory has come that handlers must not fault in."""
        self._handlers.look_at_memory()

    def place_later(self) -> None:
        """Place some more of what is placed while the rest counts already."""
        with suppress(TargetError):  # one that just dies is met elsewhere
            self._modules.place_later()

    def take_out_hit(self) -> None:
        """Take out probes that only had to tell whether they are hit."""
        self._arming.take_out_hit()

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
        while not self.is_over:
            due = self.duties.work()
            now = time.monotonic()
            if now >= deadline:
                return not self.is_over
            self._host.process.wait(min(deadline, due if due is not None else deadline) - now)
        return False

    @Lazy
    def duties(self) -> Duties:
        """What is due, and when."""
        duties = duties_of([self])
        duties.every(WAITING_LOOKS, self._times.look_at_waiting)
        duties.every(PROGRAM_LOOKS, self._look_at_program)
        if self._host.slices is not None:
            duties.every(PLACING_LOOKS, self.place_later)
        return duties

    @property
    def is_over(self) -> bool:
        """Whether nothing is due any more: detached, ended, or another program."""
        return self._host.is_over

    def _look_at_program(self) -> None:
        host = self._host
        if host.other_program is None and not host.exited:
            host.other_program = host.became()
            if host.other_program is not None:
                host.warn(f"process {host.pid} became {host.other_program}, without probes")
        self._child_watch.look()
        self._modules.look_for_libraries()
