"""The timing of calls: by which clock, since when, what threads have waited, and where calls end."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.refusal import Refusal
from anyprobe.probes.clock import Clock, ClockChoice
from anyprobe.probes.duties import locked
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.callbacks import Hit
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Place, Probe
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.providers.function.threads.clock_watch import ClockWatch
    from anyprobe.probes.providers.function.threads.processor_waits import Waiting
    from anyprobe.probes.providers.function.timing.return_points import ReturnPoints

_ASKING = (
    "{} threads ask for their time on processors at each reading, which takes them 0.3 to 0.6 µs: no perf event can be "
    "mapped there (kernel.perf_event_paranoid, ulimit -l, ulimit -n)"
)


class Times:
    """The clock of one session, and its own times."""

    def __init__(self, host: "ProbeHost") -> None:
        """Choose a clock as the session's options say; it starts with the first probe that times."""
        self._host = host
        self.choice = ClockChoice(host.options.clock, host.process.pid)
        self.clock: Clock | None = None
        self.refusal: Refusal | None = None
        """Why nothing can be timed, as far as it is known."""
        self.ns_per_tick: float = 0.0
        self.step_ns: float = 0.0
        """Nanoseconds of a tick of the clock, as measured last, and by how much it goes on at once."""
        self._are_ended, self._ended_at = False, 0

    def choose(self, *, probed: bool) -> None:
        """Choose a clock for calls that are to be timed; ``probed``: the vdso has probes itself."""
        host = self._host
        self.refusal = self.choice.choose(host.objects.objects, probed=probed)
        if self.clock is None and self.refusal is None:
            self.refusal = self.choice.check_permission(host.process, host.splicing.access.pause_us)
        host.splicing.memory.use_clock(self.choice.address, self.choice.rate)

    def start(self) -> None:
        """Start the clock that was chosen, if it does not run yet."""
        self.clock = self.clock or self.choice.start()

    def use_those_of(self, parent: "Times") -> None:
        """Time by the clock of another session."""
        self.choice, self.clock, self.refusal = parent.choice, parent.clock, parent.refusal
        self._host.splicing.memory.use_clock(self.choice.address, self.choice.rate)

    def leave_out(self, hit: "Hit") -> None:
        """Have calls that a thread has open begin as much later as it waits for anyprobe, when it goes on."""
        banks = [bank for bank in self._host.splicing.holdings.banks if bank.layout.records]
        if self.walking is not None and banks:
            from anyprobe.probes.providers.function.timing.held import open_calls

            hit.held = open_calls(banks, hit.owner, self.walking.ns_per_tick())

    def now(self) -> int:
        """Return this moment, or that of the session's end, by the clock; 0 where calls have ended with the program."""
        if self._are_ended:
            return 0
        return self._ended_at if self.clock is None else self.clock.now()

    @property
    def walking(self) -> Clock | None:
        """The clock, if it goes on while the program is held; None while there is none."""
        return None if self.choice.on_processors else self.clock

    def ran(self, own_id: int) -> int:
        """Return for how many ticks a thread has been on processors by now, 0 if it has ended."""
        nanoseconds = procfs.ran_on_processors(self._host.pid, own_id)
        return round(nanoseconds / self.clock.ns_per_tick()) if nanoseconds and self.clock is not None else 0

    def end(self) -> None:
        """Measure how long a tick is for the last time."""
        self.end_calls()
        self.measure()
        self._ended_at, self.clock = self.now(), None

    def end_calls(self) -> None:
        """Give calls that the program has ended in their time up to its end, once it has ended."""
        host = self._host
        if self.clock is not None and not self._are_ended and host.process.exited():
            from anyprobe.probes.providers.function.timing.ended import end_calls

            self._are_ended = True
            self.measure()
            end_calls(host.process, self.clock, self.ns_per_tick, host.probes)

    def known_refusal(self) -> Refusal | None:
        """Return why nothing can be timed here, as far as that is known without a change."""
        return self.choice.choose(self._host.objects.objects, probed=False)

    def duration(self) -> float:
        """Return the seconds since the first probes were armed, up to the end of the session or of the program."""
        host = self._host
        if host.began is None:
            return 0.0
        ended = host.ended or time.monotonic()
        return max(min(ended, host.process.ended_at or ended) - host.began, 0.0)

    @Lazy
    def waiting(self) -> "Waiting":
        """What the program's threads have waited for a processor, while calls are timed."""
        from anyprobe.probes.providers.function.threads.processor_waits import Waiting

        return Waiting(self._host.process)

    def look_at_waiting(self) -> None:
        """Look at what threads have waited since the last look, if any calls are timed."""
        waiting = Times.waiting.made(self)
        if waiting is not None:
            waiting.look()

    def waited(self) -> tuple[float, float]:
        """Return what share of the time a thread has waited for a processor, and what a hypervisor has taken."""
        waiting = Times.waiting.made(self)
        if waiting is None:
            return 0.0, 0.0
        waiting.look()
        return waiting.shares()

    @Lazy
    def clock_watch(self) -> "ClockWatch":
        """Whether the program forbids its threads to read the clock."""
        from anyprobe.probes.providers.function.threads.clock_watch import ClockWatch

        return ClockWatch(self._host)

    def clock_warnings(self) -> list[str]:
        """Return what is to be said of threads that may not read the clock."""
        watch = Times.clock_watch.made(self)
        said = [] if watch is None else list(watch.warnings())
        if self.choice.on_processors:
            from anyprobe.probes.providers.function.reading import BankValues

            banks = [bank for bank in self._host.splicing.holdings.banks if bank.layout.on_processors]
            asking = sum(BankValues().reader(bank).threads_asking() for bank in banks)
            said += [_ASKING.format(asking)] if asking else []
        return said

    def measure(self) -> None:
        """Measure how long a tick of the clock is, while it runs."""
        if self.clock is not None:
            self.ns_per_tick, self.step_ns = self.clock.ns_per_tick(), self.clock.step_ns()

    def tell_threads_apart(self) -> None:
        """See that timed calls can be told apart by thread, where that is wanted and any are timed."""
        host = self._host
        if (host.options.by_thread or self.choice.on_processors) and host.splicing.planning.slots:
            host.thread_ids.want()
        if host.options.by_thread and host.splicing.planning.slots:
            host.thread_names.look([host.pid])

    def refusal_of(self, site: "ResolvedSite") -> "Refusal | None":
        """Return why a function cannot be timed, as far as the session says so."""
        if self.refusal is not None or not site.object.image.is_go:
            return self.refusal
        from anyprobe.probes.providers.function.timing.go_calls import go_refusal

        return go_refusal(site.address, clock=self._host.splicing.memory.clock, on_processors=self.choice.on_processors)


class CallEnds:
    """The callers in which timed calls end, which are known or learned."""

    def __init__(self, host: "ProbeHost", times: Times) -> None:
        """Know no callers yet."""
        self._host, self.lock = host, host.lock
        self._times = times

    @Lazy
    def return_points(self) -> "ReturnPoints":
        """Where calls end that leave their function by a jump."""
        from anyprobe.probes.providers.function.timing.return_points import ReturnPoints

        return ReturnPoints(self._host)

    @property
    def used(self) -> "ReturnPoints | None":
        """The return points, None where none has been wanted."""
        return CallEnds.return_points.made(self)

    @contextmanager
    def joining(self, probes: "Sequence[Probe]") -> Iterator[None]:
        """Have callers that are known spliced together with functions that leave for these by a jump, in a ``with``."""
        if any(probe.timed for probe in probes):
            self.return_points.join(probes)
        yield

    def place(self, probes: "Sequence[Probe]") -> None:
        """Have calls that leave their function by a jump end in the callers that are known."""
        host = self._host
        if any(probe.timed for probe in probes):
            self._times.waiting.look()
        if any(timed.points for probe in probes for timed in probe.timed):
            from anyprobe.probes.providers.function.timing.go_tails import given_up

            host.engine.change(given_up(probes))
        if any(probe.timed or probe.handled for probe in probes):
            self.return_points.place(probes)

    def given_up(self, probes: "Sequence[Probe]", places: "Sequence[Place]") -> AbstractContextManager[None]:
        """Have no call end any more in callers that are among the places, which are about to be taken out."""
        followed = [calls for probe in probes for calls in probe.followed]
        return self.return_points.given_up(followed, places) if followed else nullcontext()

    def settle(self, probes: "Sequence[Probe]") -> None:
        """Say in which callers calls end, after probes were removed or armed again."""
        host = self._host
        timed = any(probe.timed for probe in probes)
        if timed or any(probe.handled for probe in probes):
            self.return_points.settle(probes)
        timing = any(timed.armed for probe in host.probes for timed in probe.timed)
        handling = any(place.armed and place.has_handler for probe in host.probes for place in probe.places)
        if timed and not timing and not handling:
            host.adopting.end()

    def learn(self) -> None:
        """Have calls that leave their function by a jump end in callers that were not known when it was armed."""
        if self.used is not None:  # else nothing is timed; this is asked often, without waiting for the lock
            self._learn()

    @locked
    def _learn(self) -> None:
        host = self._host
        if not host.is_over and not host.splicing.upkeep.evicted:
            self.return_points.learn()
