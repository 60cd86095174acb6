"""How probes are armed, disarmed and armed again."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from anyprobe.binary.images.modules import VDSO
from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import Interrupted, StopTimeout, UsageError
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.children import Gates
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.installing import Installer
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.timing import CallEnds, Times
from anyprobe.probes.providers import provided
from anyprobe.probes.providers.function import removal
from anyprobe.probes.providers.function.copies import AUDITED, has_libraries
from anyprobe.probes.providers.function.outside import registering
from anyprobe.probes.providers.function.probe import Probe, equipped, places_of, shared
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.providers.function.wanted.desired import Policy
from anyprobe.probes.specs.spec import Spec, check_functions, parsed
from anyprobe.probes.target_errors import typed

if TYPE_CHECKING:
    import builtins

    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.core.refusal import Refusal
    from anyprobe.data.findings.explanation import Explanation, ListedSite
    from anyprobe.data.findings.optimisation import Optimisation
    from anyprobe.probes.budget import Budget
    from anyprobe.probes.providers.base import Provider
    from anyprobe.probes.providers.function.handlers.points import Handler
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.optimising.optimiser import Optimiser
    from anyprobe.probes.providers.function.overhead import OverheadWatch
    from anyprobe.probes.providers.function.replacing.replacement import Replacement, Replacements
    from anyprobe.probes.providers.function.replacing.shared_object import SharedObject
    from anyprobe.probes.providers.function.wanted.retiring import Retirement

Probes = list[Probe]


class Arming:
    """The probes of one session, from a spec to what is installed, and back."""

    def __init__(
        self, host: "ProbeHost", times: Times, handlers: Decorators, calls: CallEnds, installer: Installer,
        modules: ModuleReconciler, gates: Gates,
    ) -> None:  # fmt: skip
        """Have armed nothing yet."""
        self._host, self.lock = host, host.lock
        self._times, self._handlers, self._calls = times, handlers, calls
        self._installer, self._modules, self._gates = installer, modules, gates
        self._watch: OverheadWatch | None = None
        self.covered: list[Probe] = []
        self.covered_since = "start"
        """The probes at the blocks of which the coverage is measured."""
        self.retirement: Retirement | None = None
        """What takes those out that were hit, where these set flags."""

    def count(self, *specs: str | Spec, follow: bool | None = None) -> Probes:
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
        return self.arm(parsed(specs), timed=False, follow=follow)

    def add_provider(self, provider: "Provider[Any]") -> None:
        """Have specs that a provider claims resolved, attached and read by it: see ``probes.providers.base``."""
        self._modules.providers.add(provider)

    def time(self, *specs: str | Spec, follow: bool | None = None) -> Probes:
        """Measure how long functions take, from entry to return. The specs name functions (their entries).

        Args:
            specs: the functions; ``:return`` and offsets are refused.
            follow: as for ``count``.

        Returns:
            One probe for each spec; the durations are ``snapshot().functions``.

        Raises:
            SpecError: a spec means nothing; then nothing is armed.
        """
        wanted = parsed(specs)
        check_functions(wanted)
        return self.arm(wanted, timed=True, follow=follow)

    def cover(
        self, *specs: str | Spec, follow: bool | None = None, counts: bool = False, edges: bool = False,
        lazy: bool = False,
    ) -> Probes:  # fmt: skip
        """Note which blocks of some functions run; ``snapshot().coverage`` has what that says of lines.

        A probe that was hit is taken out, as ``pump`` comes by: what has run costs nothing any more.

        Args:
            specs: modules, such as ``a.out`` or ``libssl``, or functions, such as ``a.out:parse_*``; one that was read
                already names the blocks itself (``%run``).
            follow: as for ``count``.
            counts: whether it is counted how often; then the probes stay in.
            edges: whether it is counted, too, how often control goes from each block to each other; means counts.
            lazy: whether the blocks of a function get their probes when it is entered for the first time, for which the
                thread waits a moment. Not with counts, and not in a program that forks.

        Returns:
            One probe for each spec; blocks that cannot be probed are in ``refused``, and not known in the results.

        Raises:
            SpecError: a spec means nothing; then nothing is armed.
        """
        from anyprobe.probes.coverage.covering import RUNS, UNDECIDED, blocks_of

        wanted = parsed([blocks_of(each) if isinstance(each, str) else each for each in specs])
        if edges:
            wanted += parsed([each.text.removesuffix(RUNS) + UNDECIDED for each in wanted])
            counts = True
        if not self._host.held:
            self.covered_since = "attach"
        found = self.arm(wanted, timed=False, follow=follow, flags=not counts, waits=lazy and not counts)
        self.covered += found
        if not counts:
            from anyprobe.probes.providers.function.wanted.retiring import Retirement

            if self.retirement is None:
                self.retirement = Retirement(self._host)
            self.retirement.probes += found
        return found

    @locked
    def take_out_hit(self) -> None:
        """Take out probes of coverage that were hit, as far as it is time for that."""
        if self.retirement is not None:
            self.retirement.look()

    def begin_optimising(
        self, *specs: str | Spec, measure: str | Spec | None = None, watch: float = 1.0, turns: int = 6,
        turn: float = 0.5, specialise: bool = False,
    ) -> "Optimiser":  # fmt: skip
        """Count what is called, and return what goes on from there, step by step; the arguments are ``optimise``'s."""
        from anyprobe.probes.providers.function.optimising.optimiser import Optimiser

        host = self._host
        if not host.unsafe:
            raise UsageError("optimise has functions run elsewhere: unsafe=True, where the session is opened")
        if host.options.live:
            raise UsageError("functions are moved in a stop of all threads: without live")
        wanted = parsed([*specs, *([measure] if measure is not None else [])])
        found = self.arm(wanted, timed=False)
        probes, measured = (found, None) if measure is None else (found[:-1], found[-1])
        if not specialise:
            return Optimiser(host, probes, measured, self.remove, watch=watch, turns=turns, turn=turn)
        from anyprobe.probes.providers.function.optimising.specialiser import Specialiser

        def at_entries(handler: "Handler", specs: list[str]) -> "list[Probe]":
            self._handlers.entry(*specs)(handler)
            return self._handlers.probes_of(handler)

        return Specialiser(host, probes, measured, self.remove, at_entries, watch=watch, turns=turns, turn=turn)

    def optimise(
        self, *specs: str | Spec, measure: str | Spec | None = None, watch: float = 1.0, turns: int = 6,
        turn: float = 0.5, specialise: bool = False,
    ) -> "Optimisation":  # fmt: skip
        """Have those of some functions that run most run elsewhere, side by side, if that makes the program faster.

        It is compared by turns, by the processor time for each call of one function. What is kept stays until the
        session ends; nothing else of the program changes.

        Args:
            specs: the functions, such as ``a.out:*``.
            measure: the function whose calls are measured; by default one of these, which then stays where it is.
            watch: seconds for which is counted which functions run, and then which blocks.
            turns: how often both ways are compared.
            turn: seconds of each turn.
            specialise: instead, have functions that are mostly called with one value of a parameter run as that value
                decides; by default their direct calls are what is measured by.

        Returns:
            What came of it.

        Raises:
            SpecError: a spec means nothing.
            UsageError: the session was not opened for changes (``unsafe=True``).
        """
        optimiser = self.begin_optimising(
            *specs, measure=measure, watch=watch, turns=turns, turn=turn, specialise=specialise
        )
        for seconds in optimiser.steps():
            self._host.wait(seconds)
        return optimiser.found

    def replace(
        self, spec: "str | Spec | Mapping[str | Spec, str | Spec | SharedObject]",
        by: "str | Spec | SharedObject | None" = None, *, when_quiet: bool = False,
        outside: Sequence[str | Spec] = (), timeout: float = 5.0,
    ) -> "Replacement":  # fmt: skip
        """Have calls of functions go to others with the same parameters, all from one moment on, or none.

        Calls that are inside of a function at that moment end in it. A function that replaces another one may call it.

        Args:
            spec: the functions that are replaced; or several of these, each with what replaces it.
            by: the function that is called instead, of the program or of a shared object that is loaded for it.
            when_quiet: only at a moment when no thread is inside of one of the functions that are replaced.
            outside: more functions that no thread may be inside of at that moment, such as one that calls several of
                those that are replaced.
            timeout: for how many seconds such a moment is waited for.

        Returns:
            The replacement, a sequence of probes: ``revert``, or leaving a ``with`` block, brings the functions back.

        Raises:
            SpecError: a spec means nothing, or not one function.
            UsageError: the session was not opened for changes (``unsafe=True``).
            SiteRefused: one of the functions cannot be replaced; nothing was changed.
            ThreadInside: there was no moment without a thread inside; nothing was changed.
        """
        if isinstance(spec, Mapping) != (by is None):
            raise UsageError("replace needs a function and what replaces it, or a mapping of several")
        pairs = spec if isinstance(spec, Mapping) else {spec: by or ""}
        from anyprobe.probes.providers.function.replacing.replacement import When

        return self._replacements.replace(pairs, When(when_quiet, outside, timeout))

    @Lazy
    def _replacements(self) -> "Replacements":
        from anyprobe.probes.providers.function.replacing.replacement import Replacements

        return Replacements(self._host, lambda: self._handlers.handling, self.enable, self.remove)

    def remove(self, *probes: Probe) -> None:
        """Disarm probes; what they counted stays in ``snapshot``. What had to stay armed is in ``warnings``.

        Args:
            probes: those to disarm, as ``count`` and the other methods return them.
        """
        host = self._host
        self._forget_budget(probes)
        self._installer.disarm(probes, places_of(probes))
        self._modules.desired.note_removed(probes, ())
        self._modules.change_children(probes, armed=False)
        self._calls.settle(probes)
        host.warn(*provided.detach(probes))

    def place_made(
        self, specs: Sequence[Spec], configure: "Callable[[Probe], None]", sites: Sequence[ResolvedSite | None] = (), *,
        follow: bool | None = None,
    ) -> Probes:  # fmt: skip
        """Arm probes whose places are turned by ``configure`` into what they are for; ``sites``: resolved already."""
        return self.arm(specs, timed=False, equip=configure, known=sites, follow=follow)

    @locked
    def limit_overhead(self, percent: float, *, again: bool = False) -> Probes:
        """Disarm what costs most until all probes together cost no more than some percent of one CPU.

        The cost since the last look is estimated. A spec of many functions loses only those; the probes that lost some
        are returned. What they counted stays in ``snapshot``, and ``warnings`` says which they were.

        Args:
            percent: of one CPU, for all probes of the session together.
            again: whether what was disarmed is tried again, one probe at a time, when the others cost no more than half
                of that: after ten seconds at first, and later and later where it has to go again.
        """
        host = self._host
        from anyprobe.probes.providers.function.overhead import TSC_TIMING_NS, VDSO_TIMING_NS, OverheadWatch, disarmed

        first = self._watch is None  # which has nothing to compare with
        self._watch = self._watch or OverheadWatch(VDSO_TIMING_NS if host.splicing.memory.clock else TSC_TIMING_NS)
        excess = self._watch.look(host.probes, percent)
        probes, text = disarmed([] if first else excess, self._watch.total, percent, self._installer.disarm)
        self._modules.desired.note_removed(
            (), [place for each in excess for place in each.unit.places] if probes else ()
        )
        if text:
            host.warn(text)
        if again:
            now = time.monotonic()
            self.budget.note_removed(probes, now)
            back = None if first or excess else self.budget.due(self._watch.total, percent, now)
            if back is not None:
                for place in back.all_places:
                    place.note = ""
                self.enable(back)
                self.budget.note_back(back, now)
                host.warn(
                    f"{back.spec} is tried again: the other probes cost about {self._watch.total:.3g} % of one CPU"
                )
        return probes

    @Lazy
    def budget(self) -> "Budget":
        """What was taken out by ``limit_overhead`` and is tried again."""
        from anyprobe.probes.budget import Budget

        return Budget()

    def _forget_budget(self, probes: Sequence[Probe]) -> None:
        """Have the user's word count more than what ``limit_overhead`` would try again."""
        budget = Arming.budget.made(self)
        if budget is not None:
            budget.forget(probes, time.monotonic())

    @property
    def overhead(self) -> float | None:
        """What all probes have cost, in percent of one CPU, between the last two looks of ``limit_overhead``."""
        return None if self._watch is None else self._watch.total

    @locked
    def enable(self, *probes: Probe) -> None:
        """Arm probes again that were removed.

        Args:
            probes: those to arm again; they count on.
        """
        host = self._host
        from anyprobe.probes.providers.function.wanted.replanning import keep_order_of_handlers

        host.check_attached()
        self._forget_budget(probes)
        self._modules.desired.note_enabled(probes)
        self._modules.look_for_libraries()  # what has come again meanwhile goes on from what there was
        with typed(host.process, "arming probes in"), self._installer.adopting_children(probes, first=True):
            removal.rearm(host.splicing, probes)
            host.warn(*provided.attach([each for each in probes if not each.armed]))
        keep_order_of_handlers(host, probes)
        self._calls.settle(probes)
        self._modules.change_children(probes, armed=True)
        registering.note(host, probes)

    @locked
    def explain(self, spec: str | Spec, *, timed: bool = False) -> "Explanation":
        """Return the plan or the refusals for one site, with liveness and generated code; touches nothing.

        ``timed``: as ``time`` would need it, at both ends of calls.

        Args:
            spec: one site.
            timed: whether the plan is for ``time``.

        Raises:
            SpecError: the spec means no site, or several.
        """
        from anyprobe.probes.providers.function.wanted import planning

        (wanted,) = parsed((spec,))
        return planning.explain(self._host, wanted, timed=timed)

    def resolve(
        self, spec: str | Spec, within: "Collection[LoadedObject] | None" = None
    ) -> "tuple[Sequence[ResolvedSite], builtins.list[tuple[str, Refusal]]]":
        """Return the sites that a spec means in the process now, or in some of its objects, and what is refused."""
        (wanted,) = parsed((spec,))
        return self._modules.resolve(wanted, within)

    @locked
    def list(self, *specs: str | Spec) -> "Sequence[ListedSite]":
        """Return what could be probed, and by which strategy; touches nothing.

        Args:
            specs: the sites, globs included.
        """
        from anyprobe.probes.providers.function.wanted import planning

        return planning.listed(self._host, parsed(specs))

    @locked
    def arm(
        self,
        specs: Sequence[Spec],
        *,
        timed: bool,
        equip: "Callable[[Probe], None] | None" = None,
        known: Sequence[ResolvedSite | None] = (),
        follow: bool | None = None,
        flags: bool = False,
        waits: bool = False,
    ) -> Probes:
        """Resolve specs and arm one probe for each, as ``count``, ``time``, ``cover`` and ``place_made`` ask for."""
        host = self._host
        if not specs:
            raise UsageError("at least one spec is needed")
        host.check_attached()
        needs_threads = timed or equip is not None
        if host.options.children == "ignore" and needs_threads:
            raise UsageError("of fork children only counts can be ignored: children='free' takes their probes out")
        if needs_threads:
            self._modules.providers.refuse_handlers(specs, "times are of" if timed else "handlers are for")
        begin, policy = time.perf_counter(), Policy.of(follow, host.options.pending)
        with typed(host.process, "resolving specs in"):
            self._modules.look_at_objects(needs_threads=needs_threads)
            if timed:
                self._times.choose(probed=self._probes_vdso())
                self._times.tell_threads_apart()
            late = self._modules.awaits_threads and needs_threads
            probes = [
                self._modules.want(spec, timed, policy, site, late=late, flags=flags, waits=waits)
                for spec, site in zip_longest(specs, known)
            ]
            for probe in probes if equip is not None else ():
                probe.equip = equip
                equipped(probe, equip)  # type: ignore[arg-type] # it is there
            shared(probes, host.probes if timed and host.options.nested else None)
        host.engine.seconds["resolve"] += time.perf_counter() - begin
        if timed:
            self._times.start()
        host.probes += probes
        try:
            self._installer.place(probes)
        except (Interrupted, StopTimeout):  # a second try makes probes of its own
            asked = [probe for probe in probes if not probe.armed]
            host.probes = [probe for probe in host.probes if probe not in asked]
            raise
        self._installer.fall_back(probes)
        self._modules.watch_loads()
        self._gates.watch_execs()
        registering.enter(host, probes)
        host.process.watch_end()
        host.began = host.began or time.monotonic()
        return probes

    def _probes_vdso(self) -> bool:
        return any(place.site.object.name == VDSO for probe in self._host.probes for place in probe.all_places)

    def arm_pending(self) -> None:
        """Run a dynamic program to where its libraries are mapped and nothing in them has run, and arm the rest.

        A static one runs to where its first thread has memory of its own; what the loader chooses is chosen before.
        """
        host = self._host
        static = self._modules.awaits_threads
        if host.process.run_to_libraries(lambda: has_libraries(host.objects, host.process.mem)):
            host.warn(AUDITED)
        self._modules.note_libraries()
        host.objects.refresh()
        needed = bool(host.once_mapped) or any(probe.is_timing or probe.equip for probe in host.probes)
        self._modules.thread_slots.begin(needed=needed)
        self._handlers.recheck(host.objects.reads_thread_word)
        for place in host.once_mapped:
            place()
        with self._gates.watching_execs():
            self._modules.reconcile(host.objects.objects)
        hold = None
        if self._modules.desired.awaits_choice and not static:
            from anyprobe.probes.providers.function.timing.held import held_at_choices

            hold = held_at_choices(host.process, self._times.walking, self._place_chosen, host.warn)
        host.handler_watch.place_gate()
        self._modules.desired.settle()
        self._modules.watch_loads()
        self._gates.watch_execs()
        if hold is not None:
            hold.leave_out(host.probes)

    def _place_chosen(self) -> Probes:
        host = self._host
        host.objects.refresh()
        return self._modules.reconcile(host.objects.objects)

    @contextmanager
    def placing_once(self) -> Iterator[None]:
        """Place a site that several specs mean, within a ``with`` block, for the first of them only.

        Threads wait where they load and execute from the block's end on, not while it compiles and plans.
        """
        host = self._host
        with self._modules.placing_once():
            yield
        with host.lock:
            self._modules.watch_loads()
            self._gates.watch_execs()
