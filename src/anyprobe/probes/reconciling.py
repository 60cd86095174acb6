"""The part of a session that makes what is installed equal to what is wanted, as objects are loaded."""

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, cast

from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.binary.objects.table_store import keeping_later
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import SpecError, TargetError
from anyprobe.core.refusal import Refusal
from anyprobe.probes.desired import Desired, DesiredState, Finds, Policy, Taken, unchosen_in
from anyprobe.probes.duties import locked
from anyprobe.probes.outside import registering
from anyprobe.probes.probe import Probe, dressed, shared
from anyprobe.probes.providers.function.copies import AUDITED, has_libraries
from anyprobe.probes.providers.function.placing import add_counted, add_timed, see_places, survey
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.providers.provided import Providers
from anyprobe.probes.pumping import Pumped
from anyprobe.probes.specs.spec import means_markers, parse
from anyprobe.probes.target_errors import typed
from anyprobe.probes.timing.clock import own_clock

if TYPE_CHECKING:
    from anyprobe.data.pending import PendingSpec
    from anyprobe.data.snapshot import Snapshot
    from anyprobe.probes.following.exec_gate import ExecGate
    from anyprobe.probes.following.follower import Follower
    from anyprobe.probes.following.fork_gate import ForkGate
    from anyprobe.probes.following.forked import Forked
    from anyprobe.probes.handlers.callbacks import Hit
    from anyprobe.probes.handlers.handler_watch import HandlerWatch
    from anyprobe.probes.handlers.load_gate import LoadGate
    from anyprobe.probes.live_proof import LiveProof
    from anyprobe.probes.probe import Place
    from anyprobe.probes.providers.function.provider import FunctionProvider
    from anyprobe.probes.providers.function.resolve import Resolution
    from anyprobe.probes.providers.usdt.sites import MarkerTable
    from anyprobe.probes.session import Session
    from anyprobe.probes.timing.clock import Clock

_STARTING, _LOOKS = 1.0, 0.002
"""Seconds to wait for the loader of a program that has just begun, and between two looks at it."""


class Reconciled(Pumped):
    """A session whose probes are looked for in further objects."""

    functions: "FunctionProvider"
    _clock: "Clock | None"
    _desired: DesiredState
    _providers: Providers
    _proof: "LiveProof"
    _handlers: "HandlerWatch"
    _awaits_libraries: bool
    """Whether the target is a dynamic program that has not mapped its libraries yet."""
    _awaits_threads: bool
    """Whether it is a static program with glibc whose first thread has no memory of its own yet."""
    """Whether the target is a dynamic program that has not mapped its libraries yet."""
    _loads: "LoadGate | None" = None
    _execs: "ExecGate | None" = None
    _forks: "ForkGate | None" = None
    _forked: "Forked | None" = None
    """The sessions on fork children that have loaded libraries themselves."""
    follower: "Follower | None" = None
    """Who follows what the program executes."""
    is_one_of_many: bool = False
    """Whether it is no mistake that specs mean nothing in this program: they are for others, too."""
    _taken: "Taken | None" = None

    @contextmanager
    def placing_once(self) -> Iterator[None]:
        """Place a site that several specs mean, within a ``with`` block, for the first of them only.

        Threads wait where they load and execute from the block's end on, not while it compiles and plans.
        """
        self._taken = {}
        try:
            yield
        finally:
            self._taken = None
        with self.lock:
            self._watch_loads()
            self._watch_execs()

    @abstractmethod
    def _check_attached(self) -> None:
        """Raise if the session is over."""

    @abstractmethod
    def _place(self, probes: Sequence[Probe]) -> None:
        """Arm probes."""

    @abstractmethod
    def _fall_back(self, probes: Sequence[Probe]) -> None:
        """See to functions whose exits could not all be spliced."""

    @contextmanager
    def adopting_children(self, probes: Sequence[Probe], *, first: bool = False) -> Iterator[None]:
        """Let fork children be timed, if probes placed within a ``with`` block time anything, or have handlers.

        ``first``: what that needs is placed before, not together with them.
        """
        handled = any(place.hook.handler is not None for probe in probes for place in probe.all_places)
        if not handled and not any(probe.timed for probe in probes):
            yield
            return
        edits = self.clock_watch.edits(probes)
        if self.options.children == "count":
            edits = self.adopting.with_edits(edits)
        if first:
            self.engine.change(edits)
            yield
        else:
            with self.functions.joining(edits):
                yield
        self.adopting.settle()

    @property
    def pending(self) -> "Sequence[PendingSpec]":
        """The specs that follow what is loaded and have meant nothing yet."""
        return self._desired.pending

    @property
    @locked
    def may_count(self) -> bool:
        """Whether anything is armed, or will be when a library is loaded that was not there yet or is gone."""
        return any(each.armed for each in self.probes) or bool(self._desired.pending) or self._desired.may_return

    @abstractmethod
    def _note_losses(self) -> None:
        """See what is no longer there."""

    @cached_property
    def _markers(self) -> "MarkerTable":
        from anyprobe.probes.providers.usdt.sites import MarkerTable

        return MarkerTable(self.warn)

    def _markers_of(self, spec: str) -> "Resolution | None":
        """Return the USDT markers that a spec means, ``None`` if it is about something else."""
        if not means_markers(spec):
            return None
        return self._markers.resolve(parse(spec), self._objects.objects, self.mappings())

    def _moved(self, probes: Sequence[Probe]) -> "Iterable[Place]":
        """Return the places of markers that move behind the marker's nop."""
        if all(place.site.marker is None for probe in probes for place in probe.all_places):
            return ()
        from anyprobe.probes.providers.usdt.behind import moved_behind

        return moved_behind(probes)

    def _look_at_objects(self, *, needs_threads: bool = False) -> None:
        """See what the program has loaded by now: if it had only begun, its C library, and what threads have of it.

        What ``needs_threads`` waits for that, not for ever: the loader may wait itself.
        """
        began = self._objects.libc() is None
        self._proof.refresh()
        if not began or self.splicing.holdings.banks or self._awaits_libraries:
            if needs_threads:
                self.thread_slots.look(needed=True)
            return
        deadline = time.monotonic() + (_STARTING if needs_threads else 0)
        while not has_libraries(self._objects, self._process.mem) and time.monotonic() < deadline:
            time.sleep(_LOOKS)
            self._proof.refresh()
        if self._objects.libc() is not None:
            self.thread_slots.begin(needed=needs_threads)
            self.recheck_handlers(self._objects.reads_thread_word)

    def _arm_pending(self) -> None:
        """Run a dynamic program to where its libraries are mapped and nothing in them has run, and arm the rest.

        A static one runs to where its first thread has memory of its own; what the loader chooses is chosen before.
        """
        static = self._awaits_threads
        if self._process.run_to_libraries(lambda: has_libraries(self._objects, self._process.mem)):
            self.warn(AUDITED)
        self._awaits_libraries = self._awaits_threads = False
        self._objects.refresh()
        self.thread_slots.begin(needed=any(probe.is_timing or probe.dress for probe in self.probes))
        self.recheck_handlers(self._objects.reads_thread_word)
        with self._watching_execs():
            self.reconcile(self._objects.objects)
        hold = None
        if self._desired.awaits_choice and not static:
            from anyprobe.probes.timing.held import held_at_choices

            hold = held_at_choices(self._process, self._clock, self._place_chosen, self.warn)
        self._handlers.place_gate()
        self._desired.settle()
        self._watch_loads()
        self._watch_execs()
        if hold is not None:
            hold.leave_out(self.probes)

    def _watch_loads(self) -> None:
        """Have threads wait that load libraries, from when probes are wanted in these; say so if they cannot."""
        early = self._awaits_libraries or self._awaits_threads
        if early or not self._desired.follows or self._taken is not None:
            return
        if self._loads is None:
            from anyprobe.probes.handlers.load_gate import LoadGate
            from anyprobe.probes.providers.function import expected

            self._loads = LoadGate(self, self._look_at_loads)
            with typed(self._process, "arming probes in"):
                self._loads.place(self._objects, self._handlers.function_at)
            self.reconcile()  # what has been loaded since the specs were resolved
            expected.get_ready(self._objects, [parse(each.probe.spec) for each in self._desired.following])
        self._tell_of_late_looks()

    def _tell_of_late_looks(self) -> None:
        """Say that no thread waits which loads libraries, once that is of consequence."""
        if self._loads is not None:
            self.warn(*self._loads.late_looks(self._desired.gone, others=self._desired.awaits_others))

    def _watch_execs(self) -> None:
        """Have threads wait that execute another program, where programs are followed; say so if they cannot."""
        self.children.begin()
        self._watch_forks()
        with self._watching_execs():
            pass

    @contextmanager
    def _watching_execs(self) -> Iterator[None]:
        """Do so in one change with what is armed within a ``with`` block."""
        follower = self.follower
        if follower is None or self._execs is not None or self._awaits_libraries or self._taken is not None:
            yield
            return
        from anyprobe.probes.following.exec_gate import ExecGate

        gate = self._execs = ExecGate(self, partial(follower.executes, self))
        with typed(self._process, "arming probes in"):
            edits = gate.edits(self._objects, self._handlers.function_at)
            with self.functions.joining(edits):
                yield
        follower.watches(self)
        for each in gate.refusals():
            self.warn(f"programs that {self.exe} executes are not seen, since {each}")

    def _watch_forks(self) -> None:
        """Have fork children wait, where they are to have no probes; say so if they cannot."""
        if self.options.children != "free" or self._forks is not None:
            return
        if self._awaits_libraries or self._taken is not None:
            return
        from anyprobe.probes.following.fork_gate import ForkGate

        self._forks = ForkGate(self)
        with typed(self._process, "arming probes in"):
            why = self._forks.place(self._objects, self._handlers.function_at)
        if why:
            self.warn(f"fork children keep their probes until they are looked for, since {why}")

    def _look_for_forked(self) -> None:
        """See to fork children that did not wait to be relieved of their probes, or have some of their own."""
        if self._forks is not None:
            with suppress(TargetError):
                self._forks.look()
        if self._forked is not None:
            self._forked.look()

    def waits_at(self, address: int) -> bool:
        """Return whether threads that are about to execute sleep at an address."""
        return self._execs is not None and address in self._execs

    def missed_execs(self) -> int:
        """Return how many threads that executed were not waited for, or not to the end."""
        return 0 if self._execs is None else self._execs.missed()

    def follow_no_more(self) -> None:
        """Let threads go that are about to execute; the caller does not hold the lock."""
        if self._execs is not None:
            self._execs.end()

    def _look_at_loads(self, hit: "Hit") -> None:
        """Place what is wanted where a thread of the program, or of a fork child, waits that has loaded something."""
        with collection_paused(), keeping_later():  # both have time when the thread has been let go
            child = self._child_that_waits(hit)
            if child is not None:
                self._place_in_child(child, hit.let_go)
                return
            with self.lock:
                if not self._is_over:
                    self._reconcile(None, hit.let_go)

    def _child_that_waits(self, hit: "Hit") -> int | None:
        """Return the fork child whose thread waits; None where it is the program's own, or runs in its memory."""
        from anyprobe.probes.following.waiting_tasks import child_that_waits

        assert self._loads is not None
        return child_that_waits(self.pid, hit.tid, self.splicing.holdings.inodes(), self._loads.__contains__)

    def _watch_choices(self, part: Probe, unchosen: "Collection[LoadedObject]") -> None:
        """Have threads wait where functions (IFUNC) are chosen in libraries that came later."""
        later = [each for each in unchosen if not self._objects.is_permanent(each)]
        resolvers = unchosen_in(part, later) if later else []
        if resolvers and self._loads is not None:
            self._loads.watch_choices(resolvers, self._handlers.function_at, self._look_at_choice)

    def _look_at_choice(self, resolver: int, hit: "Hit") -> None:
        """Place what is wanted in a function that another has chosen, for which the thread waits."""
        if self._child_that_waits(hit) is not None:
            return
        with self.lock:
            loaded = None if self._is_over else self._objects.note_choice(resolver, hit.retval)
            if loaded is not None and self._loads is not None:
                self._loads.choices_end(resolver)  # before more is placed, which may want its room
                self._desired.look_again(loaded)
                self._reconcile(None, hit.let_go)

    def _place_in_child(self, pid: int, let_go: "Callable[[], object]") -> None:
        from anyprobe.probes.following.forked import Forked, Wanted

        if self.options.children != "count":
            return
        with self.lock:
            if self.detached:
                return
            wanted = [Wanted.of(each) for each in self._desired.wanted if each.is_lasting and not each.is_removed]
            self._forked = self._forked or Forked(cast("Session", self))
        self._forked.loads(pid, wanted, let_go)

    def _change_children(self, probes: Sequence[Probe], *, armed: bool) -> None:
        """Arm or disarm what fork children have of some probes in what they have loaded themselves."""
        if self._forked is not None:
            self._forked.change(probes, armed=armed)

    def _with_forked(self, own: "Snapshot") -> "Snapshot":
        """Return what was counted, that of fork children in what they have loaded themselves included."""
        return own if self._forked is None else self._forked.with_theirs(own)

    def _end_gate(self) -> None:
        """Have no thread wait any more; the caller does not hold the lock."""
        self.follow_no_more()
        if self._forks is not None:
            self._look_for_forked()
            self._forks.end()
            self.warn(*self._forks.notes())
        if "thread_slots" in vars(self):
            self.thread_slots.close()
        if self._loads is not None:
            self._loads.end()
            self.warn(*self._loads.missed())
        if self._forked is not None:
            self._forked.end()
            self.warn(*self._forked.notes())

    def hold_handlers(self) -> None:
        """Have a program that is not running yet wait where it sets handlers for faults, till ``follow_handlers``."""
        self._handlers.hold(self)

    def _place_chosen(self) -> list[Probe]:
        self._objects.refresh()
        return self.reconcile(self._objects.objects)

    @locked
    def reconcile(self, modules: "Sequence[LoadedObject] | None" = None) -> list[Probe]:
        """Make what is armed equal to what is wanted, in objects where that has not been looked for yet.

        Args:
            modules: the objects; by default what is loaded now.

        Returns:
            The probes that have more places than before. Done by ``pump`` where probes follow what is loaded.
        """
        return self._reconcile(modules, lambda: None)

    def _reconcile(self, modules: "Sequence[LoadedObject] | None", placed: "Callable[[], object]") -> list[Probe]:
        """Do so; ``placed`` is called once everything is in place, before it is written down, perhaps twice."""
        if modules is None:
            self._check_attached()
            with typed(self._process, "resolving specs in"):
                self._look_at_objects()
            modules = self._objects.objects
        has_lost = self._desired.has_lost(modules) or (self._loads is not None and self._loads.may_have_missed())
        if has_lost:
            self._note_losses()  # what is loaded again where it was goes on from there
        found: list[tuple[Desired, set[LoadedObject], Probe]] = []
        with typed(self._process, "resolving specs in"):
            for each, fresh in list(self._desired.lacking(modules)):
                part = self._make(each.probe.spec, each, fresh)
                if each.probe.dress is not None:
                    dressed(part, each.probe.dress)
                found.append((each, fresh, part))
        if has_lost:
            self._tell_of_late_looks()
        if not found:
            return []
        shared([part for each, _, part in found if each.probe.is_timing], self.probes if self.options.nested else None)
        for each, _, part in found:
            each.take_over(part)
        finds = Finds(found, self._objects.is_permanent)

        def armed() -> None:
            finds.add()
            placed()

        try:
            at_once = finds.are_all and self.splicing.live is None  # else it is made piece by piece
            with self.splicing.upkeep.telling(armed) if at_once else nullcontext():
                self._place([part for _, _, part in found])
        except BaseException:
            finds.give_up()
            raise
        finds.add()
        changed = [each.probe for each, _, part in found if part.all_places or part.exitless]
        self._fall_back(changed)
        for each, _, part in found:
            self._watch_choices(part, each.unchosen)
        placed()
        registering.note(self, None if has_lost else changed)
        from anyprobe.probes.providers.function import expected

        expected.note({place.site.object.path for _, _, part in found for place in part.all_places})
        return changed

    def _wanted_once(self, spec: str) -> Probe:
        return self._want(spec, False, Policy.PRESENT, None)

    def _want(
        self, spec: str, timed: bool, policy: Policy, known: ResolvedSite | None, *, late: bool = False
    ) -> Probe:  # fmt: skip
        """Return the probe that a spec means in the objects of now, not armed yet.

        In a dynamic program that is still held, only the loader's part can be said now: nothing else runs before the
        libraries are mapped. ``late``: nothing of it can be placed before the first thread has memory of its own.
        """
        provider = self._providers.claiming(spec) if known is None else None
        if provider is not None:
            return self._providers.resolved(provider, spec)
        policy = Policy.FOLLOW if self._held and self._objects.come_by_musl() else policy
        early = self._awaits_libraries or late
        desired = Desired(Probe(spec, is_timing=timed), policy, taken=self._taken, is_early=early)
        if late and known is None:
            self.resolve(spec)  # what means nothing is a mistake now
        objects = set(filter(self._objects.is_loader, self._objects.objects)) if early else set(self._objects.objects)
        found = self._make(spec, desired, objects, known=known)
        desired.add(found)
        desired.is_early = early or (self._awaits_threads and bool(desired.unchosen))
        desired.note_unloadable(found, self._objects.is_permanent)
        desired.is_open = desired.is_early or desired.is_lasting
        if desired.is_open:
            self._desired.wanted.append(desired)
        return desired.probe

    def _make(
        self, spec: str, desired: Desired, modules: "set[LoadedObject]", *, known: ResolvedSite | None = None
    ) -> Probe:
        """Return what a spec means in some objects, not armed yet."""
        timed = desired.probe.is_timing
        part = Probe(spec, is_timing=timed)
        # of a program that is held, only the loader's functions can be placed: others are looked for when they can be
        within = modules if self._awaits_libraries else desired.within(modules)
        is_known = desired.look_in(modules)
        try:
            sites, part.refused = ((known,), []) if known is not None else self.resolve(spec, within)
            if known is None:
                desired.note_chosen(part, self._objects.objects if within is None else list(within))
        except SpecError as error:
            known_later = self._awaits_libraries or desired.may_mean_nothing or desired.wait_for(error)
            if not known_later and not self.is_one_of_many:
                raise
            sites = ()
        if self._awaits_libraries:
            part.refused = []  # for want of the libraries
        desired.note_unchosen(part, self._objects.objects)
        here = [site for site in sites if site.object in modules and not is_known(site) and desired.takes(site)]
        survey(here, self.module, timed=timed)
        module_of = cache(self.module)
        for number, site in enumerate(here):
            checkpoint("finding", number, len(here))
            loaded = site.object
            refusal = self.refusal_of(site) or (self._timing_refusal(site) if timed else None)
            if self.splicing.memory.clock and loaded.name == VDSO:
                refusal = own_clock(self.splicing.memory.clock)
            module = module_of(loaded)
            code = refusal or module.code.function_at(site.function.start)
            if isinstance(code, Refusal):
                part.refuse(site, code, module)
            elif timed:
                add_timed(part, site, code, module, in_callers=self.options.returns == "callers")
            else:
                add_counted(part, site, code, module)
        if not self._awaits_libraries and desired.policy is not Policy.FOLLOW:
            see_places(part, desired.probe, sites)
        return part
