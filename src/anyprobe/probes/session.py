"""Sessions: what a user holds while probing one process."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.core.collection import collect_what_was_made
from anyprobe.core.errors import Interrupted, StopTimeout, TargetError, TargetExited, UsageError
from anyprobe.core.refusal import Refusal
from anyprobe.data.last_results import armed_as
from anyprobe.data.snapshot import Snapshot
from anyprobe.probes import reading, removal
from anyprobe.probes.api import SessionApi
from anyprobe.probes.desired import DesiredState, Policy
from anyprobe.probes.duties import locked
from anyprobe.probes.handlers.handler_watch import HandlerWatch
from anyprobe.probes.handlers.trampolining import Trampolines
from anyprobe.probes.live_proof import LiveProof
from anyprobe.probes.options import DEFAULT, SessionOptions
from anyprobe.probes.outside import registering
from anyprobe.probes.probe import Place, Probe, dressed, edits_for, places_of, shared
from anyprobe.probes.providers import provided
from anyprobe.probes.providers.function.clobbering import clobbers
from anyprobe.probes.providers.function.copies import Copies
from anyprobe.probes.providers.function.objects import ObjectTable
from anyprobe.probes.providers.function.provider import FunctionProvider
from anyprobe.probes.providers.function.resolve import ResolvedSite, resolve_all
from anyprobe.probes.providers.provided import Providers
from anyprobe.probes.reconciling import Reconciled
from anyprobe.probes.scripts import entering
from anyprobe.probes.specs.spec import see_functions
from anyprobe.probes.target_errors import typed
from anyprobe.probes.timing.clock import Clock, ClockChoice
from anyprobe.probes.withdrawal import note_losses
from anyprobe.splice.edits import Module
from anyprobe.splice.plan.splices import AUTO, Strategy
from anyprobe.splice.processes import ProcessSplicing
from anyprobe.target.base import RunningProcess

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import ObjectFiles
    from anyprobe.data.explanation import Explanation, ListedSite
    from anyprobe.probes.overhead import OverheadWatch
    from anyprobe.probes.providers.base import Provider
    from anyprobe.target.system.procfs import Mapping

Refusals = list[tuple[str, Refusal]]
Probes = list[Probe]


class Session(Reconciled, SessionApi[Probe]):
    """Probes in one process. A context manager: leaving it removes everything.

    ``count`` and ``time`` arm probes; ``snapshot`` reads what they counted, also after the target's death.
    """

    def __init__(
        self, process: RunningProcess, options: SessionOptions = DEFAULT, *, held: bool = False,
        files: "ObjectFiles | None" = None,
    ) -> None:  # fmt: skip
        """Use ``attach`` or ``run``; ``files`` opens what is mapped, where that is not by the process's own root."""
        self._process, self._held, self.options = process, held, options
        self.unsafe, self.strict, self.lock = options.unsafe, options.strict, threading.RLock()
        self._began: float | None = None
        self._ended: float | None = None
        self._detached = False
        self.probes: Probes = []
        self.endings: list[Callable[[], None]] = []
        self._last: Snapshot | None = None
        """What was counted, once it is over."""
        self._closed = False
        self.warnings: Sequence[str] = ()
        if options.strategy == Strategy.TRAP:
            from anyprobe.probes import trapping

            self.warnings = [trapping.WARNING]
        self._objects = ObjectTable(process, files)
        self.copies = Copies(self._objects)
        self._awaits_libraries = held and any(self._objects.is_loader(each) for each in self._objects.objects)
        self._awaits_threads = held and not self._awaits_libraries and self._objects.libc() is not None
        self._desired = DesiredState()
        self.trampolines = Trampolines(self._objects, wanted=options.returns == "trampoline")
        self._clock: Clock | None = None
        self._choice = ClockChoice(options.clock, process.pid)
        self._clock_refusal: Refusal | None = None
        self._watch: OverheadWatch | None = None
        self._ns_per_tick = self.clock_step_ns = 0.0
        self._proof = LiveProof(self._objects)
        self.splicing = ProcessSplicing(
            process,
            clobbers,
            allowed=AUTO if options.strategy == "auto" else frozenset([Strategy(options.strategy)]),
            slots=self._objects.has_thread_slots(),
            maxactive=options.maxactive, callers=options.returns != "exits",
            nested=options.nested, raw=options.raw, by_thread=options.by_thread, may_lock=self._objects.may_lock_memory,
            proof=self._proof if options.live else None,
        )  # fmt: skip
        self.functions = FunctionProvider(self.splicing, self.copies, self._wanted_once)
        self._providers = Providers()
        self._handlers = HandlerWatch(self.splicing, self._objects, self.module)

    @property
    def refused(self) -> Refusals:
        """Everything that was asked for and not placed: canonical spec and reason."""
        return reading.refusals(self.probes)

    @property
    def stops_explained(self) -> Sequence[str]:
        """Why something was done in a stop, one sentence for each reason, where that was not wanted."""
        return () if self.splicing.live is None else self.splicing.live.notes()

    def count(self, *specs: str, follow: bool | None = None) -> Probes:
        """Count hits: entries, returns or single instructions, as the specs say.

        Raises ``SpecError`` for a spec that means nothing (then nothing is armed). Sites that cannot be spliced are in
        ``refused``.

        Args:
            specs: where: see *Specs* in the documentation, such as ``libc:malloc`` or ``a.out:parse*``.
            follow: whether functions in libraries that are loaded later are counted, too, as ``pump`` or ``reconcile``
                find them: then a spec may mean nothing yet. By default as the session's option ``pending`` says.

        Returns:
            One probe for each spec; what is refused is in ``refused``.

        Raises:
            SpecError: a spec means nothing; then nothing is armed.
            TargetExited: the process is gone.
        """
        return self._arm(specs, timed=False, follow=follow)

    def add_provider(self, provider: "Provider[Any]") -> None:
        """Have specs that a provider claims resolved, attached and read by it: see ``probes.providers.base``."""
        self._providers.add(provider)

    def time(self, *specs: str, follow: bool | None = None) -> Probes:
        """Measure how long functions take, from entry to return. The specs name functions (their entries).

        Args:
            specs: the functions; ``:return`` and offsets are refused.
            follow: as for ``count``.

        Returns:
            One probe for each spec; the durations are ``snapshot().functions``.

        Raises:
            SpecError: a spec means nothing; then nothing is armed.
        """
        see_functions(specs)
        return self._arm(specs, timed=True, follow=follow)

    def remove(self, *probes: Probe) -> None:
        """Disarm probes; what they counted stays in ``snapshot``. What had to stay armed is in ``warnings``.

        Args:
            probes: those to disarm, as ``count`` and the other methods return them.
        """
        self._disarm(probes, places_of(probes))
        self._desired.note_removed(probes, ())
        self._change_children(probes, armed=False)
        self.settle_return_points(probes)
        self.warn(*provided.detach(probes))

    @locked
    def _disarm(self, probes: Sequence[Probe], places: Sequence[Place]) -> None:
        if self._closed:
            self._check_attached()
        with typed(self._process, "disarming probes in"), self.return_points_given_up(probes, places):
            self.warn(*self.functions.detach(places))
        registering.note(self, probes)

    def place_made(
        self, specs: Sequence[str], dress: "Callable[[Probe], None]", sites: Sequence[ResolvedSite | None] = (), *,
        follow: bool | None = None,
    ) -> Probes:  # fmt: skip
        """Arm probes whose places are turned by ``dress`` into what they are for; ``sites``: resolved already."""
        return self._arm(specs, timed=False, dress=dress, known=sites, follow=follow)

    @locked
    def limit_overhead(self, percent: float) -> Probes:
        """Disarm what costs most until all probes together cost no more than some percent of one CPU.

        The cost since the last look is estimated. A spec of many functions loses only those; the probes that lost some
        are returned. What they counted stays in ``snapshot``, and ``warnings`` says which they were.

        Args:
            percent: of one CPU, for all probes of the session together.
        """
        from anyprobe.probes.overhead import TSC_TIMING_NS, VDSO_TIMING_NS, OverheadWatch, disarmed

        first = self._watch is None  # which has nothing to compare with
        self._watch = self._watch or OverheadWatch(VDSO_TIMING_NS if self.splicing.memory.clock else TSC_TIMING_NS)
        excess = self._watch.look(self.probes, percent)
        probes, text = disarmed([] if first else excess, self._watch.total, percent, self._disarm)
        self._desired.note_removed((), [place for each in excess for place in each.unit.places] if probes else ())
        if text:
            self.warn(text)
        return probes

    @locked
    def enable(self, *probes: Probe) -> None:
        """Arm probes again that were removed.

        Args:
            probes: those to arm again; they count on.
        """
        from anyprobe.probes.replanning import keep_order_of_handlers

        self._check_attached()
        self._desired.note_enabled(probes)
        self.look_for_libraries()  # what has come again meanwhile goes on from what there was
        with typed(self._process, "arming probes in"), self.adopting_children(probes, first=True):
            removal.rearm(self.splicing, probes)
            self.warn(*provided.attach([each for each in probes if not each.armed]))
        keep_order_of_handlers(self, probes)
        self.settle_return_points(probes)
        self._change_children(probes, armed=True)
        registering.note(self, probes)

    @property
    def ns_per_tick(self) -> float:
        """Nanoseconds of a tick of the time stamp counter, as measured by the last snapshot."""
        return self._ns_per_tick

    @locked
    def explain(self, spec: str, *, timed: bool = False) -> "Explanation":
        """Return the plan or the refusals for one site, with liveness and generated code; touches nothing.

        ``timed``: as ``time`` would need it, at both ends of calls.

        Args:
            spec: one site.
            timed: whether the plan is for ``time``.

        Raises:
            SpecError: the spec means no site, or several.
        """
        from anyprobe.probes import planning

        return planning.explain(self, spec, timed=timed)

    @locked
    def list(self, *specs: str) -> "Sequence[ListedSite]":
        """Return what could be probed, and by which strategy; touches nothing.

        Args:
            specs: the sites, globs included.
        """
        from anyprobe.probes import planning

        return planning.listed(self, specs)

    # -- life

    @locked
    def resume(self) -> None:
        """Let a program started by ``run`` go, with probes in its libraries in place before they run."""
        if self._held:
            self.place_waiting()
            self._held = False
            if self._desired.wanted or (self._awaits_libraries and self.follower is not None):
                self._arm_pending()
            self._watch_execs()
            self._began = time.monotonic()
            self._process.resume()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the target's end; return its wait status if it is our child and has ended.

        A program that was started by ``run`` and has not been let go yet is let go.

        Args:
            timeout: seconds after which this returns ``None``; without it, however long it takes.
        """
        if not self._process.exited():
            with suppress(TargetExited):
                self.resume()
        return super().wait(timeout)

    @property
    def detached(self) -> bool:
        """Whether this session is over."""
        return self._detached

    def detach(self) -> None:
        """Remove every splice, from fork children too, and unmap our memory. What was counted stays readable."""
        self._end()
        self._note_detached()

    def finish(self) -> Snapshot:
        """Remove everything, and return the results, in which what was armed until then is still armed."""
        if self._detached:
            return self.snapshot()
        with self.lock:
            self._note_losses()
            self.follow_handlers()
            others = provided.read(self.probes)
        self._end()
        found = self.snapshot()
        self._last, self._last_is_armed = found, True
        self._note_detached()
        return armed_as(others, found)

    @locked
    def _note_detached(self) -> None:
        for place in (each for probe in self.probes for each in probe.all_places):
            place.hook.detached = place.hook.armed

    def _end(self) -> None:
        if self._detached:
            return
        # these wait for threads, whose functions may use the session: without the lock
        self._end_thread()
        self._end_gate()
        self.end_callbacks()
        with self.lock:
            self._remove_all()
        self.end_listeners()

    def _remove_all(self) -> None:
        self._handlers.end()
        self.warn(*provided.detach(self.probes))
        self._note_losses()
        self._ended = self._ended or time.monotonic()
        if self._clock is not None:
            self._ns_per_tick, self.clock_step_ns = self._clock.ns_per_tick(), self._clock.step_ns()
            self._clock = None
        if self.splicing.access.touched:
            with typed(self._process, "removing probes from"):
                self.warn(*removal.detach(self._process, self.splicing))
        self._detached = True

    def _note_losses(self) -> None:
        """See what is no longer there: libraries unmapped, everything removed by another anyprobe."""
        if self._ended is None and self.splicing.upkeep.is_installed and not self.became():
            with suppress(TargetError):  # a program that has ended has lost nothing
                note_losses(self, self.copies, self._disarm)

    @locked
    def follow_handlers(self, *, often: bool = False) -> None:
        """Have signal handlers that the program has set since the last look see its own pcs while probes are hit.

        Costs a glance at ``/proc`` where there are none; ``often``: how it is called, so that not each has to be seen.
        """
        there = self._ended is None and not self._held and self.splicing.upkeep.is_installed
        if there and not self._process.exited() and self.became() is None:
            # what fails is tried again at the next look
            with suppress(TargetError), typed(self._process, "splicing signal handlers of"):
                self.warn(*self._handlers.follow(often=often))
                from anyprobe.probes.outside import requests

                requests.look(self)

    def _check_attached(self) -> None:
        if self._ended is not None:
            raise UsageError("this session has been detached")

    def close(self) -> None:
        """Detach and give all memory back; what ``snapshot`` returns afterwards is of this moment."""
        try:
            self.detach()
            self._desired, self.follower = DesiredState(), None
            if self._held:
                self.resume()
            self._last, self._closed = self._last_results(), True
            for end in self.endings:
                end()
        finally:
            with self.lock:  # which a thread may wait for that has not ended in time
                self._closed = True
                self.splicing.close()
                self._process.close()
            collect_what_was_made()  # in earlier sessions: what is bound together is freed by nobody else

    def __enter__(self) -> Self:
        """Return the session, which is the current one from here on."""
        entering.enter(self)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Detach, whatever happened."""
        entering.leave(self)
        self.close()

    # -- arming

    def resolve(
        self, spec: str, within: Collection[LoadedObject] | None = None
    ) -> tuple[Sequence[ResolvedSite], Refusals]:
        """Return the sites that a spec means in the process now, or in some of its objects, and what is refused."""
        resolution = self._markers_of(spec) or resolve_all(
            spec, self._objects.objects, ifunc_targets=self._objects.ifunc_slots, pid=self.pid, within=within
        )
        return resolution.sites, [(each.canonical, each.refusal) for each in resolution.refused]

    def refusal_of(self, site: ResolvedSite) -> Refusal | None:
        """Return why a site cannot be had, whatever its code is."""
        refusal = self._objects.refusal(site.object)
        if refusal is None and Strategy.TRAP in self.splicing.planning.allowed:
            from anyprobe.probes import trapping

            return trapping.trap_refusal(self._objects, site)
        return refusal

    def mappings(self) -> "Sequence[Mapping]":
        """Return the target's memory map as it is now."""
        return self._process.mappings()

    def clock_refusal(self) -> Refusal | None:
        """Return why nothing can be timed here, as far as that is known without a change."""
        return self._choice.choose(self._objects.objects, probed=False)

    def module(self, loaded: LoadedObject) -> Module:
        """Return the engine's module of an object."""
        module = self._objects.module(loaded)
        if self.splicing.live is not None:
            module.plans = None  # they are for changes in a stop
        self.engine.add_module(module)
        module.early = early = self._held and (self._objects.is_loader(loaded) or not self._awaits_libraries)
        module.slotless = early or loaded.image.moves_thread_pointer
        return module

    def module_at(self, address: int) -> Module | None:
        """Return the engine's module of the object that a run-time address lies in."""
        loaded = self._objects.at(address)
        return None if loaded is None else self.module(loaded)

    @locked
    def _arm(
        self,
        specs: Sequence[str],
        *,
        timed: bool,
        dress: "Callable[[Probe], None] | None" = None,
        known: Sequence[ResolvedSite | None] = (),
        follow: bool | None = None,
    ) -> Probes:
        if not specs:
            raise UsageError("at least one spec is needed")
        self._check_attached()
        needs_threads = timed or dress is not None
        if self.options.children == "ignore" and needs_threads:
            raise UsageError("of fork children only counts can be ignored: children='free' takes their probes out")
        if needs_threads:
            self._providers.refuse_handlers(specs, "times are of" if timed else "handlers are for")
        begin, policy = time.perf_counter(), Policy.of(follow, self.options.pending)
        with typed(self._process, "resolving specs in"):
            self._look_at_objects(needs_threads=needs_threads)
            if timed:
                self._clock_refusal = self._choice.choose(self._objects.objects, probed=self._probes_vdso())
                if self._clock is None and self._clock_refusal is None:
                    self._clock_refusal = self._choice.check_permission(self._process, self.splicing.access.pause_us)
                self.splicing.memory.use_clock(self._choice.address)
                self.tell_threads_apart()
            late = self._awaits_threads and needs_threads
            probes = [self._want(spec, timed, policy, site, late=late) for spec, site in zip_longest(specs, known)]
            for probe in probes if dress is not None else ():
                probe.dress = dress
                dressed(probe, dress)  # type: ignore[arg-type] # it is there
            shared(probes, self.probes if timed and self.options.nested else None)
        self.engine.seconds["resolve"] += time.perf_counter() - begin
        self._clock = self._clock or (self._choice.start() if timed else None)
        self.probes += probes
        try:
            self._place(probes)
        except (Interrupted, StopTimeout):  # a second try makes probes of its own
            asked = [probe for probe in probes if not probe.armed]
            self.probes = [probe for probe in self.probes if probe not in asked]
            raise
        self._fall_back(probes)
        self._watch_loads()
        self._watch_execs()
        registering.enter(self, probes)
        self._began = self._began or time.monotonic()
        return probes

    def _probes_vdso(self) -> bool:
        return any(place.site.object.name == VDSO for probe in self.probes for place in probe.all_places)

    def _place(self, probes: Sequence[Probe]) -> None:
        with typed(self._process, "arming probes in"):
            told = provided.attach(probes)
            try:
                with self.adopting_children(probes), self.joining_return_points(probes):
                    told += self.functions.attach(places_of(probes, fresh=True))
            except BaseException:
                provided.detach(probes)
                raise
        self.warn(*told)

    def _fall_back(self, probes: Sequence[Probe]) -> None:
        """See to functions whose exits could not all be spliced, and to markers that are better placed behind."""
        with typed(self._process, "arming probes in"):
            self.engine.change(edits_for([*self.trampolines.fall_back(probes), *self._moved(probes)]))
        self.place_return_points(probes)
