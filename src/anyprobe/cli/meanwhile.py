"""What a measuring command does from the moment its probes are armed to the end: duties, and waiting for the end."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TextIO

from anyprobe.cli import ending
from anyprobe.core.errors import TargetError, TargetExited

if TYPE_CHECKING:
    from anyprobe.cli.interrupts import Interrupts
    from anyprobe.cli.plan import Plan, Sessions
    from anyprobe.probes.session import Session

    Show = Callable[[Sessions, Plan, TextIO], None]

OVERHEAD_LOOKS = 0.5
"""Seconds between two looks at what the probes cost."""
RECORD_LOOKS = 0.02
"""Seconds between two looks for records that handlers have emitted."""


class Meanwhile:
    """The duties of a measuring command, what it waits for, and whether it goes on.

    Where a time is given and programs are followed, what targets that have ended have left behind is a target, too.
    """

    def __init__(
        self, sessions: "Sessions", plan: "Plan", stream: TextIO, *,
        ends: dict[int, int], interrupts: "Interrupts", replacements: ending.Replacements, show: "Show",
    ) -> None:  # fmt: skip
        """``ends``: a descriptor for each process; ``show`` shows what was counted since the last time."""
        from anyprobe.probes.duties import PROGRAM_LOOKS, duties_of

        self.sessions, self.plan, self.interrupts = sessions, plan, interrupts
        self._ends = ends
        self.show = partial(show, sessions, plan, stream)
        self._deadline = None if plan.seconds is None else sessions.window.begun() + plan.seconds
        duties = (
            duties_of([each.host.loop for each in sessions.processes])
            if sessions.tree is None
            else sessions.tree.duties()
        )
        for each in sessions.kernel:
            duties.follow(each.hooks)
            if plan.pending:
                duties.every(PROGRAM_LOOKS, each.reconcile)
        duties.every(PROGRAM_LOOKS, lambda: replacements.look(ends), first=PROGRAM_LOOKS)
        duties.every(PROGRAM_LOOKS, lambda: look_for_libraries(sessions.processes), first=PROGRAM_LOOKS)
        if plan.by is not None or plan.children == "free":
            duties.every(PROGRAM_LOOKS, lambda: [each.host.child_watch.look() for each in sessions.processes])
        else:
            duties.every(PROGRAM_LOOKS, lambda: look_for_children(sessions.processes))
        if plan.every is not None:
            duties.every(plan.every, self.show, first=plan.every, steady=True)
        if plan.max_overhead is not None:
            duties.every(OVERHEAD_LOOKS, lambda: limit_overhead(sessions.processes, plan))
        if plan.records is not None:
            records = plan.records
            duties.every(RECORD_LOOKS, lambda: records.look(sessions.all, stream))
        self._duties = duties
        self._remaining = ending.Remaining(None if self._deadline is None else sessions.tree)

    @property
    def has_targets(self) -> bool:
        """Whether anything is measured that has not ended."""
        return bool(self._ends or self.sessions.endless or self._remaining)

    @property
    def goes_on(self) -> bool:
        """Whether it is not over: by a signal, by the time, with all targets, with as many records as are wanted."""
        plan = self.plan
        over = self.interrupts.requested or (plan.records is not None and plan.records.enough)
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return self.has_targets and not over and not late

    def work(self) -> float | None:
        """Do what is due; return when something is due next, or it is over by the time."""
        due = None
        with self.interrupts.ending_functions():
            due = self._duties.work()
        return min((each for each in (self._deadline, due) if each is not None), default=None)

    def rest(self, until: float | None, wakers: Iterable[int] = ()) -> None:
        """Wait until a moment, or for the end of a target, a signal, or one of some more descriptors."""
        pause = None if until is None else max(until - time.monotonic(), 0.0)
        for descriptor in self.interrupts.wait((*self._ends, *wakers), pause):
            self._ends.pop(descriptor, None)

    def wait(self) -> None:
        """Do the duties until it is over."""
        while self.goes_on:
            until = self.work()
            if self.has_targets:
                self.rest(until)


def look_for_children(sessions: "Sequence[Session]") -> None:
    """Learn which fork children count by now, so that it is known which signals end them."""
    for session in sessions:
        session.host.child_watch.look_for_new()


def look_for_libraries(sessions: "Sequence[Session]") -> None:
    """Place probes in what programs have loaded where no thread waits for them; one that just dies is met elsewhere."""
    for session in sessions:
        with suppress(TargetError):
            session.host.modules.look_for_libraries()


def limit_overhead(sessions: "Sequence[Session]", plan: "Plan") -> None:
    """Take out probes that cost too much; a target that has just died is met by the next wait."""
    for session in sessions:
        try:
            known = len(session.warnings)
            session.limit_overhead(plan.max_overhead or 0.0)
            plan.warn(*session.warnings[known:])
        except TargetExited:
            continue
        except TargetError as error:  # it would not stop in time: the next look tries again
            plan.warn(str(error))
