"""What a measuring command is to do, by its command line, and what it does from the arming of its probes to the end."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

from anyprobe.cli.programs import ending
from anyprobe.cli.terminal import output
from anyprobe.core.errors import TargetError, TargetExited
from anyprobe.data.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from anyprobe.cli.handlers.records import Records
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.cli.terminal.interrupts import Interrupts
    from anyprobe.data.archives.runs import Run
    from anyprobe.probes.following.followed import Followed
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session

    Show = Callable[["Sessions", "Plan", TextIO], None]

OVERHEAD_LOOKS = 0.5
"""Seconds between two looks at what the probes cost."""
RECORD_LOOKS = 0.02
"""Seconds between two looks for records that handlers have emitted."""


class Front(Protocol):
    """What shows results while they are measured, and leads the wait for the end: a screen, a server."""

    @property
    def owns_terminal(self) -> bool:
        """Whether nothing else may read from the terminal, or write to it."""
        ...

    @property
    def has_led(self) -> bool:
        """Whether it has shown anything: where nothing could be placed, the report at the end says why."""
        ...

    def lead(self, meanwhile: "Meanwhile") -> None:
        """Do the duties again and again, until it is over."""
        ...

    def take(self, together: "Snapshot", last: "Snapshot | None") -> None:
        """Take note of the results so far, and of what was added since the last time."""
        ...

    def warn(self, message: str) -> None:
        """Tell the user something."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, apart from where: the command line of a measuring command, read."""

    specs: "tuple[AnySpec, ...]"
    arm: "Callable[[Measured, Sequence[AnySpec]], object]"
    render: "Callable[[Snapshot, Console, int], None]"
    seconds: float | None
    every: float | None = None
    format: str | None = None
    """The file format of the results; None: a table."""
    strategy: str
    maxactive: int | None = None
    output: str | None = None
    quiet: bool
    fold: bool = False
    exit_status: bool
    top: int = 0
    mechanism: str | None = None
    include_self: bool = False
    at_end: str | None = None
    """Whether a started command is told to end, or left; None: told where the session ends by itself."""
    max_overhead: float | None = None
    again: bool = False
    """Whether what was taken out for what it costs is tried again."""
    max_setup: float | None = None
    """For how many seconds probes are placed; None: until all are."""
    at_once: bool = False
    """Whether all but the hottest functions are placed while these count already."""
    clock: str | None = None
    returns: str | None = None
    self_time: bool = False
    """Whether timed functions have self times."""
    raw: bool = False
    """Whether times are shown as they were measured, with what probes take of them."""
    tree: bool = False
    """Whether results have the tree of timed calls."""
    live: bool = False
    pending: bool | None = None
    """Whether specs follow what is loaded later; None: those that name a module which is not loaded."""
    follow: bool | None = False
    """Whether programs that are executed are counted in, too; None: where a command is started."""
    children: str | None = None
    """What becomes of fork children: ``count``, the default, ``ignore`` or ``free``."""
    by: str | None = None
    """``pid``: documents have the hits of each process; ``tid``: those of each thread, where functions are timed."""
    unsafe: bool = False
    buckets: bool | None = None
    """Whether documents have the buckets of timed functions; None: those of ``--every`` have not."""
    nonzero: bool | None = None
    """Whether documents leave out what was not hit; None: those of ``--every`` do."""
    shown: list[Snapshot] = field(default_factory=list)
    """The results that were shown last."""
    said: set[str] = field(default_factory=set)
    """Warnings that the user has seen."""
    always: Mapping[str, object] = field(default_factory=dict)
    """What the JSON document has even where nothing could be placed."""
    records: "Records | None" = None
    """What shows the records that handlers emit, where there may be any."""
    window: "Window | None" = None
    """The time that is measured, where what makes results has to know it."""
    seen: "Callable[[Snapshot], Snapshot] | None" = None
    """What makes results of what one process has counted, where that is not the same."""
    maps: bool = False
    """Whether to show what maps hold, too."""
    full_names: bool = True
    """Whether tables show long names of functions whole."""
    stacked: bool = False
    """Whether what is counted by stack is shown as a tree of calls."""
    covers: bool = False
    """Whether results have the coverage."""
    run: "Run | None" = None
    """What else is known of results that are kept, or shown again."""
    spaced: bool = True
    """Whether an empty line is between results of intervals and those at the end."""
    lines: bool = False
    """Whether records are all that there is to show: then what is left to say goes to standard error."""

    front: "Front | None" = None
    """What shows results while they are measured, and leads the wait for the end; None: text on a stream."""

    def warn(self, *messages: str) -> None:
        """Tell the user what has not been told yet."""
        for message in messages:
            if not self.quiet and message not in self.said:
                (output.warn if self.front is None else self.front.warn)(message)
            self.said.add(message)


class Window:
    """What programs have counted before it opened and when it closed: they are armed, and disarmed, one by one.

    A program that comes later is measured from then on, one that ends to its end.
    """

    def __init__(self) -> None:
        """Be open as long as each session is."""
        self._before: dict[int, Snapshot] = {}
        self._last: dict[int, Snapshot] = {}
        self.opened = 0.0
        """When it opened, by the monotonic clock in seconds; 0: it has not, and is the time of each session."""
        self.closed = 0.0
        """When it closed; 0: it has not yet."""

    def open(self, sessions: "Iterable[Measured]", *, in_slices: bool = False) -> None:
        """Begin for several sessions, all of them armed; ``in_slices``: for one, too, whose probes count since then."""
        known = list(sessions)
        if len(known) > 1 or in_slices:
            self.opened = time.monotonic()
            self._before = _snapshots(known)

    def begun(self) -> float:
        """Return when it has begun: now, where there is one session alone."""
        return self.opened or time.monotonic()

    def close(self, sessions: "Iterable[Measured]") -> None:
        """End, before the first of them is disarmed."""
        self.closed = time.monotonic()
        if self._before:
            self._last = _snapshots(list(sessions))

    def within(self, of: "Callable[[Measured], Snapshot]") -> "Callable[[Measured], Snapshot]":
        """Have what ``of`` returns of a session be of this time alone."""
        return (lambda session: self._of(session, of(session))) if self._before else of

    def _of(self, session: "Measured", found: Snapshot) -> Snapshot:
        last, before = self._last.get(id(session)), self._before.get(id(session))
        if last is not None and last.target.alive:
            found = replace(
                last,
                target=found.target,
                pause_us=found.pause_us,
                warnings=found.warnings,
                refused=found.refused,
                pending=found.pending,
                maps=found.maps,
            )
        if before is None:
            return found
        from anyprobe.data.snapshots.interval import since

        seconds = (self.closed or time.monotonic()) - self.opened
        return replace(since(found, before, ""), interval=None, duration_s=seconds)


def _snapshots(sessions: "Sequence[Measured]") -> dict[int, Snapshot]:
    """Return what all have counted by now; what a program has that has just ended is there later, too."""
    from anyprobe.cli.programs import targets
    from anyprobe.probes.providers.function.still import still

    found = {}
    with still([targets.on_process(each).host for each in sessions if each.pid != targets.KERNEL]):
        for each in sessions:
            with suppress(TargetError):
                found[id(each)] = each.snapshot()
    return found


class Sessions(NamedTuple):
    """What is measured: programs, and the kernel."""

    opened: "Sequence[Session]"
    window: Window
    """The time of which results are."""
    kernel: "Sequence[KernelSession]" = ()
    endless: bool = False
    """Whether there is no process with which it ends."""
    tree: "Followed | None" = None
    """What follows the programs that these execute."""

    @property
    def processes(self) -> "Sequence[Session]":
        """The sessions on programs, on those that were executed too, which may have come just now."""
        return self.opened if self.tree is None else self.tree.sessions

    def results(self, of: "Callable[[Measured], Snapshot]") -> list[Snapshot]:
        """Return the results of all, those of programs that have ended too."""
        of = self.window.within(of)
        found = [of(each) for each in self.opened] if self.tree is None else self.tree.results(of)
        return [*found, *map(of, self.kernel)]

    @property
    def all(self) -> "list[Measured]":
        """Both, in the order of results."""
        return [*self.processes, *self.kernel]


class Meanwhile:
    """The duties of a measuring command, what it waits for, and whether it goes on.

    Where a time is given and programs are followed, what targets that have ended have left behind is a target, too.
    """

    def __init__(
        self, sessions: "Sessions", plan: "Plan", stream: TextIO, *,
        ends: dict[int, int], interrupts: "Interrupts", replacements: ending.Replacements, show: "Show",
    ) -> None:  # fmt: skip
        """``ends``: a descriptor for each process; ``show`` shows what was counted since the last time."""
        from anyprobe.probes.duties import PLACING_LOOKS, PROGRAM_LOOKS, duties_of

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
        if plan.at_once:
            duties.every(PLACING_LOOKS, lambda: place_later(sessions.processes))
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


def place_later(sessions: "Sequence[Session]") -> None:
    """Place some more of what is placed while the rest counts already."""
    for session in sessions:
        session.host.loop.place_later()


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
            session.limit_overhead(plan.max_overhead or 0.0, again=plan.again)
            plan.warn(*session.warnings[known:])
        except TargetExited:
            continue
        except TargetError as error:  # it would not stop in time: the next look tries again
            plan.warn(str(error))
