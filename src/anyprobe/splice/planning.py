"""From edits to plans: what is allowed in a target, and what is known of it, with one planner for each module."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.checkpoints import checkpoint
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.apply.outcomes import give_up, refuse, spread
from anyprobe.splice.apply.preparation import keep_room, look_at_space
from anyprobe.splice.apply.site_clobbers import function_of
from anyprobe.splice.apply.staleness import modules_of
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import NO_PLAN, NOTHING, Claiming, Edit, FunctionState, Module, Planned, hook_of, planned_of
from anyprobe.splice.memory.space import GO_HEAP_ROOM, AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import AUTO, FunctionPlan, Strategy, Want, WantKind
from anyprobe.splice.plan.springboards import PunPlaces, Springboards
from anyprobe.splice.regions.banks import FOLLOWED, TIMING, Hook, needs_slots

if TYPE_CHECKING:
    from anyprobe.splice.plan.context import PlanContext
    from anyprobe.splice.plan.planner import Planner
    from anyprobe.target.base import Target
    from anyprobe.target.system.procfs import Mapping

_LOOKS = 16
"""How many functions are planned between two looks whether the target is still there."""
_FREE = frozenset({ActionKind.MOVE, ActionKind.REBIND})


class HandlersKnown(Protocol):
    """What is known of the program's signal handlers."""

    @property
    def faults(self) -> bool:
        """Whether the program handles faults of its own and is told where."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all handlers are shown the program's own pcs."""
        ...

    def refusal(self, module: Module, want: Want) -> Refusal | None:
        """Return why an action cannot be where a handler comes on a stack that nothing may write to."""
        ...


class LivePlanning(Protocol):
    """Finds plans that can be carried out while the program runs."""

    def plan_beside(self, edit: Edit, claims: Claims) -> Planned | None:
        """Plan what an edit changes beside the function's other splices, if that can be."""
        ...

    def plan(self, edit: Edit, wants: Sequence[Want], claims: Claims) -> FunctionPlan | Refusal | None:
        """Return a plan for all of a function, or why there is none; nothing while the program is held anyway."""
        ...


class Planning:
    """Plans the edits of one session. Nothing here touches the target; what is planned is claimed."""

    def __init__(
        self, target: "Target", *, allowed: frozenset[Strategy], slots: bool,
        kept: Callable[[], Iterable[tuple[int, int]]] = tuple,
    ) -> None:  # fmt: skip
        """Begin with what is allowed, and whether the target's runtime has thread slots.

        ``kept`` tells where instructions are that anyprobe's own calls in the target borrow, and how many bytes, so
        that no splice may take them.
        """
        self._target, self.allowed, self.slots, self._kept = target, allowed, slots, kept
        self.springboards = Springboards(AddressSpace([]))
        self._handlers: HandlersKnown | None = None
        self._context: PlanContext | None = None
        """What the last plan has respected, and the next one may as well."""

    def regard(self, handlers: HandlersKnown) -> None:
        """Have plans made with regard to the program's signal handlers, of which nothing is known before."""
        self._handlers = handlers

    def allow(self, strategies: frozenset[Strategy]) -> None:
        """Use these strategies from now on."""
        self.allowed = strategies

    def use_slots(self, *, on: bool) -> None:
        """Use thread slots, or none, from now on."""
        self.slots = on

    @property
    def faults_handled(self) -> bool:
        """Whether the program handles faults of its own."""
        return self._handlers is not None and self._handlers.faults

    @property
    def pcs_shown(self) -> bool:
        """Whether all signal handlers are shown the program's own pcs, as far as that is known."""
        return self._handlers is None or self._handlers.is_complete

    def use_space(self, mappings: "Sequence[Mapping]") -> None:
        """Have springboards placed in the address space as the memory map has it now."""
        look_at_space(self.springboards, self._target, mappings)

    def allow_near_heap(self, module: Module) -> None:
        """Let springboards stand near the heap if a module is a program of Go: libraries lie above the heap."""
        boards = self.springboards
        if boards.heap_room != GO_HEAP_ROOM and module.code.text.is_go and module.high <= self._target.heap_start:
            boards.heap_room = GO_HEAP_ROOM
            self.use_space(self._target.mappings())

    def plan_all(self, edits: Sequence[Edit], live: LivePlanning | None) -> None:
        """Plan edits."""
        for module in modules_of(edits):  # before any plan is made: all claims that are copied from these have them
            self._see_module(module)
        keep_room(self.springboards.space, edits)
        faults, self._context = self.faults_handled, None
        with Claiming() as claiming:
            for number, edit in enumerate(edits):
                if edit.added or edit.anew:
                    checkpoint("planning", number, len(edits))
                planned = None if edit.removed or live is not None else self._from_memory(edit, claiming, faults=faults)
                if planned is not None:
                    claiming.add_taken(edit, planned)
                elif (mixed := _mixed(edit)) is not None:
                    give_up(edit, mixed)
                elif edit.taken_out and not (edit.added or edit.anew):
                    claiming.add(edit, _without(edit))
                elif _leaves_nothing(edit):
                    claiming.add(edit, NOTHING)
                elif number % _LOOKS == 0 and self._target.exited():  # no long work for a program that has ended
                    raise self._target.gone()
                else:
                    self._plan(edit, live, claiming)

    def plan_without_slots(self, edits: Sequence[Edit]) -> None:
        """Plan edits again after the target's threads have turned out to have no slots."""
        self.slots = False
        for edit in edits:
            wants = self.permitted(edit, edit.wants)
            edit.give_back()
            with edit.module.claims.trial(planned_of(edit.leaving)) as claims:
                plan = self.planner(edit.module, claims).plan(edit.state.code, wants)
            edit.claim(replace(edit.planned, wants=wants, plan=plan))

    def hides_faults(self, module: Module, state: FunctionState) -> bool:
        """Return whether a splice of a function is not as it has to be where the program handles faults."""
        context, planned = self.context(module, module.claims), planned_of(state.splices)
        ends = ((each, max(each.write_at + each.written, each.hosts_until)) for each in planned)
        return any(context.fault_refusal(each.insns, end) is not None for each, end in ends)

    def _see_module(self, module: Module) -> None:
        """See that springboards have places, and that no splice takes instructions that anyprobe's calls borrow."""
        self.allow_near_heap(module)
        module.claims.places = PunPlaces(self.springboards, module.bias)
        for address, size in self._kept():
            if module.low <= address < module.high:
                start = address - module.bias
                module.claims.borrowed.keep_range(start, start + size)

    def _from_memory(self, edit: Edit, claiming: Claiming, *, faults: bool) -> Planned | None:
        """Return the plan that an earlier session made, where the edit is a first, plain entry counter.

        ``faults``: the program handles some of its own. What is returned has taken its bytes from what is claimed.
        """
        module, added = edit.module, edit.added
        plans, state = module.plans, edit.state
        if plans is None or len(added) != 1 or state.wants or state.splices or self.allowed != AUTO:
            return None
        want = added[0]
        hook = want.tag
        if want.kind is not WantKind.ENTRY or not isinstance(hook, Hook) or hook.kind in TIMING:
            return None
        if needs_slots(hook) and not self.has_slots(module):
            return None
        function = function_of(edit, want)
        splice = plans.find(function.start, want, function.whole)
        if splice is None:
            return None
        claims, middle = claiming.claims_to_add_to(module), splice.write_at + splice.written
        if self._handlers is not None and self._handlers.refusal(module, want) is not None:
            return None
        if faults and self.context(module, claims).fault_refusal(splice.insns, middle):
            return None
        if not claims.take(splice.write_at, middle, splice.end):
            return None
        return Planned(splice.wants, FunctionPlan((splice,)))

    def _plan(self, edit: Edit, live: LivePlanning | None, claiming: Claiming) -> None:
        """Plan the function anew with all its wants; additions that would cost an armed hook its place are refused."""
        claims = claiming.claims_of(edit.module)
        planned = None if live is None else live.plan_beside(edit, claims)
        found = self._plan_anew(edit, live, claims) if planned is None else planned
        if isinstance(found, Refusal):
            give_up(edit, found)
        else:
            claiming.add(edit, found)

    def _plan_anew(self, edit: Edit, live: LivePlanning | None, before: Claims) -> Planned | Refusal:
        """Plan a function, without a want that is refused and its group, until none is."""
        state = edit.state
        kept = [] if edit.removed == state.wants else [want for want in state.wants if want not in edit.removed]
        wants, vital = (
            self.permitted(edit, kept + edit.added),
            frozenset[Want]() if edit.yields else frozenset(kept),
        )
        # each plan is made on a copy of its own: where nothing is there to be left out, they need no other
        with before.trial(planned_of(state.splices)) if state.splices else nullcontext(before) as claims:
            while True:
                found = None if live is None else live.plan(edit, wants, claims)
                plan = found if isinstance(found, FunctionPlan) else self._planned(edit, claims, wants, vital)
                refused = spread(plan.refused, wants)
                if not refused:
                    return Planned(wants, plan, needs_stop=found if isinstance(found, Refusal) else None)
                lost = [] if edit.yields else [want for want in refused if want in kept]
                for want, why in refused.items():
                    refuse(want, why)
                wants = [want for want in wants if want not in refused]
                if lost:
                    for hook in filter(None, map(hook_of, lost)):
                        hook.refusal = None
                    detail = "would take the place of probes already armed"
                    return Refusal(Reason.OVERLAP, state.code.start, detail)

    def _planned(self, edit: Edit, claims: Claims, wants: Sequence[Want], vital: frozenset[Want]) -> FunctionPlan:
        """Return the plan for all that is wanted of a function: one that is kept, if it holds, or a new one."""
        plans, code = edit.module.plans, edit.state.code
        if plans is None or any(want.in_place for want in wants):  # kept plans do not tell these from others
            return self.planner(edit.module, claims).plan(code, wants, vital)
        if not wants:
            return NO_PLAN
        context = self._context
        if context is None or context.claims is not claims or context.code is not edit.module.code:
            context = self._context = self.context(edit.module, claims)
        found = None
        if len(wants) == 1 and wants[0].kind is WantKind.ENTRY and not plans.others.knows(code.start):
            from anyprobe.splice.plan.planner import plain_plan

            found = plain_plan(context, code, wants[0])

        def make(context: "PlanContext") -> FunctionPlan:
            from anyprobe.splice.plan.planner import Planner  # not needed where all plans are kept ones

            return Planner(context).plan(code, wants, vital)

        if found is None:
            within = any(want.kind is WantKind.OFFSET for want in wants)
            found = (plans.blocks if within else plans.others).plan(context, code, wants, vital, make)
        if found.is_plain(wants):
            plans.remember(function_of(edit, wants[0]).start, found.splices[0])
        return found

    def planner(self, module: Module, claims: Claims) -> "Planner":
        """Return a planner for a module that respects some claims."""
        from anyprobe.splice.plan.planner import Planner  # not needed where all plans are remembered ones

        return Planner(self.context(module, claims))

    def context(self, module: Module, claims: Claims) -> "PlanContext":
        """Return what plans of a module respect: some claims, what is allowed, and what the program does."""
        from anyprobe.splice.plan.context import PlanContext

        if claims.places is None:  # as a plan that is only to be explained may come first
            claims.places = PunPlaces(self.springboards, module.bias)
        go = module.code.text.is_go
        return PlanContext(
            module.code,
            claims,
            claims.places.reachable,
            self.allowed,
            plain_jumps_only=go,
            parking=module.code.text.parking,
            faults_handled=self.faults_handled,
            pcs_shown=go or self.pcs_shown,
            faults_skipped=not go,
            writable=module.writable,
            bias=module.bias,
        )

    def has_slots(self, module: Module) -> bool:
        """Return whether the threads that run a module have slots."""
        return self.slots and not module.slotless and not module.code.text.is_go

    def permitted(self, edit: Edit, wants: Sequence[Want]) -> Sequence[Want]:
        """Refuse what needs per-thread memory, or a stack, where there is none; return the others."""
        wants = self._with_slots(edit, wants)
        if self._handlers is None:
            return wants
        new = wants if edit.yields else edit.added
        whys = [(want, self._handlers.refusal(edit.module, want)) for want in new]
        refused = spread([(want, why) for want, why in whys if why is not None], wants)
        for want, why in refused.items():
            refuse(want, why)
        return [want for want in wants if want not in refused] if refused else wants

    def _with_slots(self, edit: Edit, wants: Sequence[Want]) -> Sequence[Want]:
        """Refuse what needs per-thread memory where there is none."""
        if self.has_slots(edit.module):
            return wants
        refused = []
        calls = _calls_refused(edit, wants)
        for want in wants:
            hook = hook_of(want)
            if hook is not None and needs_slots(hook) and (why := _without_slots(edit, want, hook, calls)) is not None:
                refuse(want, why)
                refused.append(want)
        return [want for want in wants if want not in refused] if refused else wants


def _without_slots(edit: Edit, want: Want, hook: Hook, calls: str | None) -> Refusal | None:
    """Return why a hook cannot be where threads have no slots; ``calls``: why the calls there cannot be followed."""
    text, timing = edit.module.code.text, hook.kind in TIMING
    if text.is_go and hook.kind in FOLLOWED:
        return None if calls is None else Refusal(Reason.GO_TIMING, want.address, calls)
    if text.is_go and hook.kind is ActionKind.HANDLER and hook.handler is not None and hook.handler.stacks:
        from anyprobe.splice.plan.goroutine_stacks import looks_for_room

        if (lacking := hook.handler.lacks_on_spare_stacks) or want.after:
            detail = f"handlers in Go have no {lacking or 'places after instructions'}"
            return Refusal(Reason.NO_THREAD_SLOT, want.address, detail)
        if hook.handler.has_data and (calls := _not_followed(edit, want)) is not None:
            return Refusal(Reason.GO_TIMING, want.address, calls)
        looks = looks_for_room(text, function_of(edit, want), want)
        if isinstance(looks, Refusal):
            return looks
        hook.looks_for_room = looks
        return None
    what = "timing needs" if timing else "handlers need"
    when = ", which is not there yet where a started program begins" if edit.module.early else ""
    return Refusal(Reason.NO_THREAD_SLOT, want.address, f"{what} glibc's thread control block{when}; count instead")


def _calls_refused(edit: Edit, wants: Sequence[Want]) -> str | None:
    """Return why the calls of a Go function cannot be followed by goroutine, where that is wanted."""
    hooks = (hook_of(want) for want in wants)
    if not edit.module.code.text.is_go or not any(hook is not None and hook.kind in FOLLOWED for hook in hooks):
        return None
    return _not_followed(edit, *wants)


def _not_followed(edit: Edit, *wants: Want) -> str | None:
    from anyprobe.splice.plan.go_calls import why_not_followed

    return why_not_followed(edit.module.code.text, edit.state.code, wants)


def _without(edit: Edit) -> Planned:
    """Return what is left of a function after splices are taken out that serve nothing else: all others as they are."""
    removed, state = set(edit.removed), edit.state
    staying = [splice for splice in state.splices if splice not in edit.taken_out]
    return Planned([want for want in state.wants if want not in removed], NO_PLAN, staying)


def _mixed(edit: Edit) -> Refusal | None:
    """Return why nothing can be added: a function that runs elsewhere has no probes, and one with probes stays."""
    kinds = [
        [hook.kind for want in wants if (hook := hook_of(want)) is not None] for wants in (edit.added, edit.state.wants)
    ]
    moved, others = [ActionKind.MOVE in each for each in kinds], [not _FREE.issuperset(each) for each in kinds]
    if (moved[0] and any(others)) or (moved[1] and others[0]):
        return Refusal(Reason.OVERLAP, edit.state.code.start, "a function with probes cannot run elsewhere as well")
    return None


def _leaves_nothing(edit: Edit) -> bool:
    """Return whether nothing is wanted of the function any more."""
    removed, wants = edit.removed, edit.state.wants
    return not edit.added and (removed == wants or all(want in removed for want in wants))
