"""What is wanted in which loaded objects, made equal to what is installed as objects come and go."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING

from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.binary.objects.table_store import keeping_later
from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import Interrupted, SpecError, TargetError, TargetExited
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.clock import own_clock
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.installing import Installer
from anyprobe.probes.parts.timing import Times
from anyprobe.probes.providers.function.copies import has_libraries
from anyprobe.probes.providers.function.outside import registering
from anyprobe.probes.providers.function.placing import add_counted, add_timed, check_places, survey
from anyprobe.probes.providers.function.probe import Probe, equipped, shared
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.providers.function.wanted.desired import Desired, DesiredState, Finds, Policy, Taken, unchosen_in
from anyprobe.probes.providers.provided import Providers
from anyprobe.probes.specs.parts import Spec
from anyprobe.probes.target_errors import typed

if TYPE_CHECKING:
    from anyprobe.data.findings.pending import PendingSpec
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.following.fork_children import ForkChildren
    from anyprobe.probes.providers.function.gates.entry_gate import EntryGate, Waiting
    from anyprobe.probes.providers.function.gates.load_gate import LoadGate
    from anyprobe.probes.providers.function.handlers.callbacks import Hit
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.threads.thread_slots import ThreadSlots
    from anyprobe.probes.providers.function.wanted.slices import Later

_STARTING, _LOOKS = 1.0, 0.002
"""Seconds to wait for the loader of a program that has just begun, and between two looks at it."""


class ModuleReconciler:
    """What is wanted, where it has been looked for, and what that means in further objects."""

    def __init__(
        self, host: "ProbeHost", times: Times, handlers: Decorators, installer: Installer,
        fork_children: "Callable[[], ForkChildren]",
    ) -> None:  # fmt: skip
        """Want nothing yet; ``fork_children`` makes what sees to children that have loaded libraries themselves."""
        self._host, self.lock = host, host.lock
        self._times, self._handlers, self._installer = times, handlers, installer
        self._make_fork_children = fork_children
        self.providers = Providers(host)
        self._loads: LoadGate | None = None
        self._entries: EntryGate | None = None
        self.fork_children: ForkChildren | None = None
        self.desired = DesiredState()
        self._taken: Taken | None = None
        self._may_be_absent = False
        """Whether it is no mistake that specs mean nothing in this program: they are for others, too."""
        objects = host.objects
        self.awaits_threads = host.held and not host.awaits_libraries and objects.libc() is not None
        """Whether it is a static program with glibc whose first thread has no memory of its own yet."""

    def resolve(
        self, spec: Spec, within: Collection[LoadedObject] | None = None
    ) -> tuple[Sequence[ResolvedSite], list[tuple[str, Refusal]]]:
        """Return the sites that a spec means in the process now, or in some of its objects, and what is refused."""
        resolution = self.providers.splicing(spec).sites(spec, within)
        return resolution.sites, [(each.canonical, each.refusal) for each in resolution.refused]

    @property
    def pending(self) -> "Sequence[PendingSpec]":
        """The specs that follow what is loaded and have meant nothing yet."""
        return self.desired.pending

    @property
    @locked
    def may_count(self) -> bool:
        """Whether anything is armed, or will be when a library is loaded that was not there yet or is gone."""
        return any(each.armed for each in self._host.probes) or bool(self.desired.pending) or self.desired.may_return

    def permit_absent(self, *, permitted: bool = True) -> None:
        """Take no spec for a mistake that means nothing in this program: they are for others, too."""
        self._may_be_absent = permitted

    @property
    def is_placing_once(self) -> bool:
        """Whether specs are placed of which no two may count at one site: see ``placing_once``."""
        return self._taken is not None

    @contextmanager
    def placing_once(self) -> Iterator[None]:
        """Place a site that several specs mean, within a ``with`` block, for the first of them only."""
        self._taken = {}
        try:
            yield
        finally:
            self._taken = None

    def note_libraries(self) -> None:
        """Take note that libraries are mapped, and that the first thread has memory of its own."""
        self._host.awaits_libraries = self.awaits_threads = False

    def want_nothing(self) -> None:
        """Forget what was wanted: the session is over."""
        self.desired = DesiredState()

    def look_at_objects(self, *, needs_threads: bool = False) -> None:
        """See what the program has loaded by now: if it had only begun, its C library, and what threads have of it.

        What ``needs_threads`` waits for that, not for ever: the loader may wait itself.
        """
        host = self._host
        began = host.objects.libc() is None
        host.refresh_objects()
        if not began or host.splicing.holdings.banks or self._host.awaits_libraries:
            if needs_threads:
                self.thread_slots.look(needed=True)
            return
        deadline = time.monotonic() + (_STARTING if needs_threads else 0)
        while not has_libraries(host.objects, host.process.mem) and time.monotonic() < deadline:
            time.sleep(_LOOKS)
            host.refresh_objects()
        if host.objects.libc() is not None:
            self.thread_slots.begin(needed=needs_threads)
            self._handlers.recheck(host.objects.reads_thread_word)

    @locked
    def reconcile(self, modules: "Sequence[LoadedObject] | None" = None) -> list[Probe]:
        """Make what is armed equal to what is wanted, in objects where that has not been looked for yet.

        Args:
            modules: the objects; by default what is loaded now.

        Returns:
            The probes that have more places than before. Done by ``pump`` where probes follow what is loaded.
        """
        return self.place_fresh(modules, lambda: None)

    def place_fresh(self, modules: "Sequence[LoadedObject] | None", placed: "Callable[[], object]") -> list[Probe]:
        """Do so; ``placed`` is called once everything is in place, before it is written down, perhaps twice."""
        host = self._host
        if modules is None:
            host.check_attached()
            with typed(host.process, "resolving specs in"):
                self.look_at_objects()
            modules = host.objects.objects
        has_lost = self.desired.has_lost(modules) or self.may_have_missed()
        if has_lost:
            self._installer.note_losses()  # what is loaded again where it was goes on from there
        found: list[tuple[Desired, set[LoadedObject], Probe]] = []
        with typed(host.process, "resolving specs in"):
            for each, fresh in list(self.desired.lacking(modules)):
                part = self._make(each.probe.wanted, each, fresh)
                if each.probe.equip is not None:
                    equipped(part, each.probe.equip)
                found.append((each, fresh, part))
        if has_lost:
            self.tell_of_late_looks()
        if not found:
            return []
        shared([part for each, _, part in found if each.probe.is_timing], host.probes if host.options.nested else None)
        for each, _, part in found:
            each.take_over(part)
        finds = Finds(found, host.objects.is_permanent)

        def armed() -> None:
            finds.add()
            placed()

        try:
            at_once = finds.are_all and host.splicing.live is None  # else it is made piece by piece
            with host.splicing.upkeep.telling(armed) if at_once else nullcontext():
                self._installer.place([part for _, _, part in found])
        except BaseException:
            finds.give_up()
            raise
        finds.add()
        changed = [each.probe for each, _, part in found if part.all_places or part.exitless]
        self._installer.fall_back(changed)
        for each, _, part in found:
            self.watch_choices(part, each.unchosen)
        placed()
        registering.note(host, None if has_lost else changed)
        from anyprobe.probes.providers.function import expected

        expected.note({place.site.object.path for _, _, part in found for place in part.all_places})
        return changed

    def wanted_once(self, spec: Spec) -> Probe:
        """Return the probe that a spec means in the objects of now, which ends with them."""
        return self.want(spec, False, Policy.PRESENT, None)

    def want(
        self, spec: Spec, timed: bool, policy: Policy, known: ResolvedSite | None, *, late: bool = False,
        flags: bool = False, waits: bool = False,
    ) -> Probe:  # fmt: skip
        """Return the probe that a spec means in the objects of now, not armed yet.

        In a dynamic program that is still held, only the loader's part can be said now: nothing else runs before the
        libraries are mapped. ``late``: nothing of it can be placed before the first thread has memory of its own.
        """
        host = self._host
        provider = self.providers.claiming(spec) if known is None else None
        if provider is not None:
            return self.providers.resolved(provider, spec)
        policy = Policy.FOLLOW if host.held and host.objects.come_by_musl() else policy
        early = self._host.awaits_libraries or late
        made = Probe(spec, is_timing=timed, sets_flags=flags, waits=waits)
        desired = Desired(made, policy, taken=self._taken, is_early=early)
        if late and known is None:
            self.resolve(spec)  # what means nothing is a mistake now
        objects = set(filter(host.objects.is_loader, host.objects.objects)) if early else set(host.objects.objects)
        found = self._make(spec, desired, objects, known=known)
        desired.add(found)
        desired.is_early = early or (self.awaits_threads and bool(desired.unchosen))
        desired.note_unloadable(found, host.objects.is_permanent)
        desired.is_open = desired.is_early or desired.is_lasting
        if desired.is_open:
            self.desired.wanted.append(desired)
        return desired.probe

    def _make(
        self, spec: Spec, desired: Desired, modules: "set[LoadedObject]", *, known: ResolvedSite | None = None
    ) -> Probe:
        """Return what a spec means in some objects, not armed yet."""
        host = self._host
        part = desired.probe.unplaced()
        # of a program that is held, only the loader's functions can be placed: others are looked for when they can be
        within = modules if self._host.awaits_libraries else desired.within(modules)
        is_known = desired.look_in(modules)
        try:
            sites, part.refused = ((known,), []) if known is not None else self.resolve(spec, within)
            if known is None:
                desired.note_chosen(part, host.objects.objects if within is None else list(within))
        except SpecError as error:
            known_later = self._host.awaits_libraries or desired.may_mean_nothing or desired.wait_for(error)
            if not known_later and not self._may_be_absent:
                raise
            sites = ()
        if self._host.awaits_libraries:
            part.refused = []  # for want of the libraries
        desired.note_unchosen(part, host.objects.objects)
        here = [site for site in sites if site.object in modules and not is_known(site) and desired.takes(site)]
        if host.slices is not None:
            here = list(host.slices.split(desired, host.slices.hot_first(here)))
        self._add_sites(part, desired, here)
        if not self._host.awaits_libraries and desired.policy is not Policy.FOLLOW:
            check_places(part, desired.probe, sites)
        return part

    def _add_sites(self, part: Probe, desired: Desired, here: "list[ResolvedSite]") -> None:
        """Add what is placed, or refused, at some sites of a spec to a part of its probe."""
        host, timed = self._host, desired.probe.is_timing
        survey(here, host.module, timed=timed)
        module_of = cache(host.module)
        waiting = self._waiting_for_entry(desired.probe, here)
        for number, site in enumerate(here):
            checkpoint("finding", number, len(here))
            loaded = site.object
            refusal = host.slices and host.slices.late_for(site, number)
            refusal = refusal or host.refusal_of(site) or (self._times.refusal_of(site) if timed else None)
            if host.splicing.memory.clock and loaded.name == VDSO:
                refusal = own_clock(host.splicing.memory.clock)
            module = module_of(loaded)
            code = refusal or module.code.function_at(site.function.start)
            if isinstance(code, Refusal):
                part.refuse(site, code, module)
            elif timed:
                add_timed(part, site, code, module, in_callers=host.options.returns == "callers")
            elif waiting is None or not host.objects.is_permanent(loaded):
                add_counted(part, site, code, module)
            else:
                waiting.take(part, desired.probe, site, code, module)
        if waiting is not None:
            for each in waiting.left_over():
                add_counted(part, each.site, each.code, each.module)

    @locked
    def place_later(self) -> None:
        """Place some of the sites that were kept for later, if there are any."""
        host, slices = self._host, self._host.slices
        later = None if slices is None or host.is_over else slices.next_later()
        if later is None or slices is None:
            return
        began, desired = time.monotonic(), later.desired
        if not desired.is_removed:
            part = desired.probe.unplaced()
            try:
                with typed(host.process, "arming probes in"):
                    self._add_sites(part, desired, [site for site in later.sites if desired.takes(site)])
                    if desired.probe.equip is not None:
                        equipped(part, desired.probe.equip)
                    if part.is_timing:
                        shared([part], host.probes if host.options.nested else None)
                    self._installer.place([part])
            except (TargetExited, Interrupted):
                slices.give_back(later)  # nothing of it is installed, and the end tells what was left out
                raise
            except TargetError as error:
                self._refuse_later(later, f"it could not be placed: {error}")
                part = desired.probe.unplaced()
            desired.add(part)
            desired.note_unloadable(part, host.objects.is_permanent)
            self._installer.fall_back([desired.probe])
        slices.took(time.monotonic() - began)
        if not slices.waiting:
            registering.note(host, None)  # once: all that is placed is written each time
            host.warn(f"all functions are placed since {self._times.duration():.2f} s after the first of them")

    def leave_out_later(self) -> None:
        """Refuse what was kept for later and has not been placed: it is over."""
        host = self._host
        rest, why = ([], "") if host.slices is None else host.slices.left_out()
        for each in rest:
            self._refuse_later(each, why)
        if rest:
            host.warn(f"{sum(len(each.sites) for each in rest):,} functions are left out: {why}")

    def _refuse_later(self, later: "Later", why: str) -> None:
        for site in later.sites:
            refusal = Refusal(Reason.LEFT_OUT, site.function.start, why)
            later.desired.probe.refuse(site, refusal, self._host.module(site.object))

    def _waiting_for_entry(self, probe: Probe, sites: "Sequence[ResolvedSite]") -> "Waiting | None":
        """Return what has blocks get their probes as functions are entered, if that is wanted and can be."""
        if not probe.waits or not sites:
            return None
        from anyprobe.probes.providers.function.gates import entry_gate

        host = self._host
        self._entries = gate = self._entries or entry_gate.EntryGate(host)
        host.entry_gate = gate
        why = gate.why_not()
        if why:
            host.warn(f"all blocks get their probes at once, since {why}")
        return None if why else entry_gate.Waiting(gate)

    @Lazy
    def thread_slots(self) -> "ThreadSlots":
        """Whether threads have memory of their own that generated code finds."""
        host = self._host
        from anyprobe.probes.providers.function.threads.thread_slots import ThreadSlots

        return ThreadSlots(host, host.handler_watch.function_at, self._installer.disarm)

    def look_at_fork_children(self) -> None:
        """See to fork children that have loaded libraries themselves, and to those of them that have ended."""
        if self.fork_children is not None:
            self.fork_children.look()

    def end(self) -> None:
        """Have no thread wait any more that loads something; the caller does not hold the lock."""
        slots = ModuleReconciler.thread_slots.made(self)
        if slots is not None:
            slots.close()
        if self._loads is not None:
            self._loads.end()
            self._host.warn(*self._loads.missed())
        if (gate := self._host.entry_gate) is not None:
            gate.end()
            self._host.warn(*gate.missed())
        if self.fork_children is not None:
            self.fork_children.end()
            self._host.warn(*self.fork_children.notes())

    def look_for_libraries(self) -> None:
        """Place probes in what has been loaded since the last look, where some follow that."""
        host = self._host
        if host.other_program is None and self.desired.follows and not host.exited:
            with suppress(TargetExited):  # it may end meanwhile
                self.reconcile()

    def watch_loads(self) -> None:
        """Have threads wait that load libraries, from when probes are wanted in these; say so if they cannot."""
        host = self._host
        early = self._host.awaits_libraries or self.awaits_threads
        if early or not host.has_gates or not self.desired.follows or self._taken is not None:
            return
        if self._loads is None:
            from anyprobe.probes.providers.function import expected
            from anyprobe.probes.providers.function.gates.load_gate import LoadGate

            self._loads = LoadGate(host, self._look_at_loads)
            with typed(host.process, "arming probes in"):
                self._loads.place(host.objects, host.handler_watch.function_at)
            self.reconcile()  # what has been loaded since the specs were resolved
            expected.get_ready(host.objects, [each.probe.wanted for each in self.desired.following])
        self.tell_of_late_looks()

    def tell_of_late_looks(self) -> None:
        """Say that no thread waits which loads libraries, once that is of consequence."""
        host = self._host
        if self._loads is not None:
            host.warn(*self._loads.late_looks(self.desired.gone, others=self.desired.awaits_others))

    def may_have_missed(self) -> bool:
        """Return whether a library may have been loaded or unloaded without a thread that waited for it."""
        return self._loads is not None and self._loads.may_have_missed()

    def _look_at_loads(self, hit: "Hit") -> None:
        """Place what is wanted where a thread of the program, or of a fork child, waits that has loaded something."""
        host = self._host
        with collection_paused(), keeping_later():  # both have time when the thread has been let go
            child = self._child_that_waits(hit)
            if child is not None:
                self._place_in_child(child, hit.let_go)
                return
            with host.lock:
                if not host.is_over:
                    self.place_fresh(None, partial(self._let_go, hit))

    def _let_go(self, hit: "Hit") -> None:
        """Let a thread of the program's own go on, whose wait is in no time."""
        self._times.leave_out(hit)
        hit.let_go()

    def _child_that_waits(self, hit: "Hit") -> int | None:
        """Return the fork child whose thread waits; None where it is the program's own, or runs in its memory."""
        host = self._host
        from anyprobe.probes.providers.function.gates.waiting_tasks import child_that_waits

        assert self._loads is not None
        return child_that_waits(host.pid, hit.tid, host.splicing.holdings.inodes(), self._loads.__contains__)

    def watch_choices(self, part: "Probe", unchosen: "Collection[LoadedObject]") -> None:
        """Have threads wait where functions (IFUNC) are chosen in libraries that came later."""
        host = self._host
        later = [each for each in unchosen if not host.objects.is_permanent(each)]
        resolvers = unchosen_in(part, later) if later else []
        if resolvers and self._loads is not None:
            self._loads.watch_choices(resolvers, host.handler_watch.function_at, self._look_at_choice)

    def _look_at_choice(self, resolver: int, hit: "Hit") -> None:
        """Place what is wanted in a function that another has chosen, for which the thread waits."""
        host = self._host
        if self._child_that_waits(hit) is not None:
            return
        with host.lock:
            loaded = None if host.is_over else host.objects.note_choice(resolver, hit.retval)
            if loaded is not None and self._loads is not None:
                self._loads.choices_end(resolver)  # before more is placed, which may want its room
                self.desired.look_again(loaded)
                self.place_fresh(None, partial(self._let_go, hit))

    def _place_in_child(self, pid: int, let_go: "Callable[[], object]") -> None:
        host = self._host
        if host.options.children != "count":
            return
        with host.lock:
            if host.detached:
                return
            wanted = [each for each in self.desired.wanted if each.is_lasting and not each.is_removed]
            self.fork_children = self.fork_children or self._make_fork_children()
        self.fork_children.loads(pid, wanted, let_go)

    def change_children(self, probes: "Sequence[Probe]", *, armed: bool) -> None:
        """Arm or disarm what fork children have of some probes in what they have loaded themselves."""
        if self.fork_children is not None:
            self.fork_children.change(probes, armed=armed)

    def with_fork_children(self, own: "Snapshot") -> "Snapshot":
        """Return what was counted, that of fork children in what they have loaded themselves included."""
        return own if self.fork_children is None else self.fork_children.with_theirs(own)
