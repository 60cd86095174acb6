"""The part of a session that looks after it while its program runs: at a call of ``pump``, or in a thread."""

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import TargetExited
from anyprobe.data.last_results import disarmed, with_end_of
from anyprobe.data.snapshot import Snapshot
from anyprobe.probes import reading
from anyprobe.probes.desired import DesiredState
from anyprobe.probes.duties import PROGRAM_LOOKS, Duties, Tended, duties_of, locked
from anyprobe.probes.observed import Observed
from anyprobe.target.system.kernel_log import kernel_log

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.core.refusal import Refusal
    from anyprobe.probes.adopting import Adopting
    from anyprobe.probes.clock_watch import ClockWatch
    from anyprobe.probes.ended_children import EndedChildren
    from anyprobe.probes.handlers.handler_watch import HandlerWatch
    from anyprobe.probes.probe import Place, Probe
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.thread_slots import ThreadSlots
    from anyprobe.probes.timing.clock import Clock
    from anyprobe.probes.timing.return_points import ReturnPoints
    from anyprobe.probes.timing.waiting import Waiting

_NAMED = 4
"""How many values are named that may have been missing."""
_WAITING_LOOKS = 1.0
"""Seconds between looks at what threads have waited."""


class Pumped(Observed, Tended):
    """A session that does what is due."""

    _desired: DesiredState
    _handlers: "HandlerWatch"
    _clock_refusal: "Refusal | None"
    _began: float | None
    _ended: float | None
    _detached: bool
    _closed: bool
    _last: Snapshot | None
    """What was counted, once it is over."""
    _last_is_armed = False
    """Whether the results of an ended session still say what was armed until then."""
    _clock: "Clock | None"
    _ns_per_tick: float
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

    @locked
    def snapshot(self) -> Snapshot:
        """Return what has been counted so far, as an immutable value.

        Does not disturb the target, unless that has set signal handlers since the last look: see ``follow_handlers``.
        """
        if self._last is not None:
            if self._last_is_armed:  # seldom asked for after the results
                self._last, self._last_is_armed = disarmed(self._last), False
            return self._last if self._closed else with_end_of(self.target_info, self._last)
        if self._clock is not None:
            self._ns_per_tick, self.clock_step_ns = self._clock.ns_per_tick(), self._clock.step_ns()
        self._note_losses()
        self.follow_handlers()
        with collection_paused():
            found = self._with_forked(reading.snapshot(self, self._ns_per_tick, self._duration(), self.collected()))
        self._last = found if self._detached else None
        return found

    def _last_results(self) -> Snapshot:
        """Return the results of a session that is about to be closed."""
        return self.snapshot() if self._last is None else with_end_of(self.target_info, self._last)

    def _duration(self) -> float:
        """Return the seconds since the first probes were armed, up to the end of the session."""
        return 0.0 if self._began is None else (self._ended or time.monotonic()) - self._began

    @abstractmethod
    def _disarm(self, probes: "Sequence[Probe]", places: "Sequence[Place]") -> None:
        """Put the program's own bytes back at some places."""

    @abstractmethod
    def _note_losses(self) -> None:
        """See what is no longer there."""

    @abstractmethod
    def _with_forked(self, own: Snapshot) -> Snapshot:
        """Return what was counted, that of fork children in what they have loaded themselves included."""

    @cached_property
    def waiting(self) -> "Waiting":
        """What the program's threads have waited for a processor, while calls are timed."""
        from anyprobe.probes.timing.waiting import Waiting

        found = Waiting(self.process)
        self.duties.every(_WAITING_LOOKS, found.look)
        return found

    def waited(self) -> tuple[float, float]:
        """Return what share of the time a thread has waited for a processor, and what a hypervisor has taken."""
        if "waiting" not in vars(self):
            return 0.0, 0.0
        self.waiting.look()
        return self.waiting.shares()

    @cached_property
    def return_points(self) -> "ReturnPoints":
        """Where calls end that leave their function by a jump."""
        from anyprobe.probes.timing.return_points import ReturnPoints

        return ReturnPoints(self)

    @cached_property
    def thread_slots(self) -> "ThreadSlots":
        """Whether threads have memory of their own that generated code finds."""
        from anyprobe.probes.thread_slots import ThreadSlots

        return ThreadSlots(self, self._handlers.function_at, self._disarm)

    @cached_property
    def clock_watch(self) -> "ClockWatch":
        """Whether the program forbids its threads to read the clock."""
        from anyprobe.probes.clock_watch import ClockWatch

        return ClockWatch(self)

    @property
    def noticed(self) -> Sequence[str]:
        """What is to be said of what has happened: the clock is forbidden, children have died, values were missing."""
        said = list(self.clock_watch.warnings() if "clock_watch" in vars(self) else ())
        log = kernel_log()
        if log is not None and log.faults():
            from anyprobe.probes.death import deaths_of_children

            said += deaths_of_children(self)
        if "handling" in vars(self):
            from anyprobe.core.code import Miss

            if ended := self.lost()[1].get(Miss.ABANDONED, 0):
                said.append(_ended_by(self.handling.demanded, ended))
        return said

    @cached_property
    def adopting(self) -> "Adopting":
        """Whether fork children may come to blocks of their own."""
        from anyprobe.probes.adopting import Adopting

        return Adopting(self)

    @contextmanager
    def joining_return_points(self, probes: "Sequence[Probe]") -> Iterator[None]:
        """Have callers that are known spliced together with functions that leave for these by a jump, in a ``with``."""
        if any(probe.timed for probe in probes):
            self.return_points.join(probes)
        yield

    def place_return_points(self, probes: "Sequence[Probe]") -> None:
        """Have calls that leave their function by a jump end in the callers that are known."""
        if any(probe.timed for probe in probes):
            self.waiting.look()
        if any(timed.points for probe in probes for timed in probe.timed):
            from anyprobe.probes.timing.go_tails import given_up

            self.engine.change(given_up(probes))
        if any(probe.timed or probe.handled for probe in probes):
            self.return_points.place(probes)

    def return_points_given_up(
        self, probes: "Sequence[Probe]", places: "Sequence[Place]"
    ) -> AbstractContextManager[None]:
        """Have no call end any more in callers that are among the places, which are about to be taken out."""
        followed = [calls for probe in probes for calls in probe.followed]
        return self.return_points.given_up(followed, places) if followed else nullcontext()

    def settle_return_points(self, probes: "Sequence[Probe]") -> None:
        """Say in which callers calls end, after probes were removed or armed again."""
        timed = any(probe.timed for probe in probes)
        if timed or any(probe.handled for probe in probes):
            self.return_points.settle(probes)
        timing = any(timed.armed for probe in self.probes for timed in probe.timed)
        handling = any(place.armed and place.hook.handler for probe in self.probes for place in probe.places)
        if timed and not timing and not handling:
            self.adopting.end()

    def learn_return_points(self) -> None:
        """Have calls that leave their function by a jump end in callers that were not known when it was armed."""
        if "return_points" in vars(self):  # else nothing is timed; this is asked often, so nobody's lock is waited for
            self._learn_return_points()

    @locked
    def _learn_return_points(self) -> None:
        if not self._is_over and not self.splicing.upkeep.evicted:
            self.return_points.learn()

    def tell_threads_apart(self) -> None:
        """See that timed calls can be told apart by thread, where that is wanted and any are timed."""
        if self.options.by_thread and self.splicing.planning.slots:
            self.thread_ids.want()
            self.thread_names.look([self.pid])

    @locked
    def look_at_children(self) -> None:
        """Learn which processes the fork children are that have begun to count, as long as they are there."""
        if self._closed:
            return
        from anyprobe.probes.reading import BankValues

        self._look_for_forked()
        if self.options.by_thread:
            self.thread_names.look([self.pid, *(pid for pid, _ in self.children.alive())])
        values = BankValues()
        holdings = self.splicing.holdings
        for bank in (*holdings.banks, *holdings.goroutine_banks):
            reader = values.reader(bank)
            self.children.note(bank, reader.forked())
            if reader.copies:
                inodes = holdings.inodes()
                self._ended_children.look(bank, reader, self.children, inodes, self._forget_child)
                if "handling" in vars(self) and self.handling.has_pools:
                    never_seen = self.children.never_seen(bank, reader.copies)
                    gone = self._ended_children.unmapped(bank, never_seen, inodes)
                    self.children.told(bank, gone)
                    for child in (*self.children.ended(bank, reader.copies), *gone):
                        self._forget_child(child.number + 1)
        if "return_points" in vars(self) and not self.detached:
            self.return_points.look_at_children()

    @cached_property
    def _ended_children(self) -> "EndedChildren":
        from anyprobe.probes.ended_children import EndedChildren

        return EndedChildren()

    def _forget_child(self, copy: int) -> None:
        """Give up the data of calls that a fork child was in when it ended."""
        if "handling" in vars(self):
            self.handling.forget_child(copy)

    def _timing_refusal(self, site: "ResolvedSite") -> "Refusal | None":
        """Return why a function cannot be timed, as far as the session says so."""
        if self._clock_refusal is not None or not site.object.image.is_go:
            return self._clock_refusal
        from anyprobe.probes.timing.go_calls import go_refusal

        return go_refusal(site.address, clock=self.splicing.memory.clock)

    def _look_for_forked(self) -> None:
        """Relieve fork children of their probes, where they did not wait for that."""

    @property
    def _is_over(self) -> bool:
        return self.detached or self.exited or self._other_program is not None

    def _look_at_program(self) -> None:
        if self._other_program is None and not self.exited:
            self._other_program = self.became()
            if self._other_program is not None:
                self.warn(f"process {self.pid} became {self._other_program}, without probes")
        self.look_at_children()
        self.look_for_libraries()

    def look_for_libraries(self) -> None:
        """Place probes in what has been loaded since the last look, where some follow that."""
        if self._other_program is None and self._desired.follows and not self.exited:
            with suppress(TargetExited):  # it may end meanwhile
                self.reconcile()


def _ended_by(demanded: Iterable[str], runs: int) -> str:
    """Return in words what was missing, or may have been, where handlers have ended for that."""
    names = list(demanded)
    some = "1 run of a handler" if runs == 1 else f"{runs:,} runs of handlers"
    if len(names) == 1:
        return f"{names[0]} was missing, which has ended {some}"
    more = f", or {len(names) - _NAMED} more" * (len(names) > _NAMED)
    return f"a missing value has ended {some}: {', or '.join(names[:_NAMED])}{more}"
