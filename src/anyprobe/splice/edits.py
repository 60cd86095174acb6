"""What an engine works on: modules, their probed functions, and what a change does to one of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import AddressRange
from anyprobe.core.bulk import bulk_dataclass
from anyprobe.core.refusal import Refusal
from anyprobe.journal.installed import Part
from anyprobe.splice.emitted import EmittedPatch, EmittedSplice, FunctionChange
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.splice.plan.splices import Clobbers, FunctionPlan, PlannedSplice, Want
from anyprobe.splice.plan.together import first_of
from anyprobe.splice.regions.banks import Hook
from anyprobe.target.system.procfs import Mapping


def hook_of(want: Want) -> Hook | None:
    """Return the hook that a want carries (loop branches carry none)."""
    return want.tag if isinstance(want.tag, Hook) else None


def planned_of(splices: Iterable[EmittedSplice]) -> list[PlannedSplice]:
    """Return what was planned of live splices."""
    return [splice.planned for splice in splices]


@dataclass(eq=False, slots=True)
class FunctionState:
    """A probed function: what is wanted of it and the splices that serve it.

    Functions that are planned together share one; two that come to be are merged.
    """

    code: FunctionCode
    """The first one, where others are planned together with it."""
    wants: list[Want] = field(default_factory=list)
    splices: list[EmittedSplice] = field(default_factory=list)
    merged_into: "FunctionState | None" = None

    @property
    def root(self) -> "FunctionState":
        """The state that this one is part of by now: itself, if it was never merged into another."""
        return self if self.merged_into is None else self.merged_into.root

    def reorder(self, wants: list[Want]) -> None:
        """Have the same wanted in another order, which the next plan goes by."""
        self.wants = wants

    def merge(self, other: "FunctionState") -> None:
        """Take over what is wanted of another function and the splices that serve it."""
        if other.root is not self:
            merged = other.root
            self.wants, self.splices = self.wants + merged.wants, self.splices + merged.splices
            merged.wants, merged.splices, merged.merged_into = [], [], self


@dataclass(eq=False)
class Module:
    """One object in the target: its code, where it lies, what is spliced in it."""

    name: str
    code: CodeMap
    bias: int
    low: int
    high: int
    plans: EntryPlans | None = None
    """Entry plans of earlier sessions."""
    slotless: bool = False
    """Code here may run without the C library's thread control block: atomic operations only."""
    early: bool = False
    """That is so because a program that has just been started has no such block yet."""
    parts: Sequence[Part] = ()
    """Where which parts of the file are executable: not the same any more, then the module is gone."""
    claims: Claims = field(default_factory=Claims)
    writable: tuple[AddressRange, ...] = ()
    """Link-time ranges that the program may write to, or could at some time: nothing is spliced there."""
    shown: set[int] = field(default_factory=set)
    """Where handlers see all registers, or send threads elsewhere with them (link-time addresses)."""
    functions: dict[int, FunctionState] = field(default_factory=dict)
    left: dict[int, EmittedPatch] = field(default_factory=dict)
    """The patches that were left when its file was unmapped, by the run-time addresses of what led to them: where it is
    mapped again, the same code serves again."""
    losses: int = 0
    """How often it was found that splices in it are there no more, or cannot be since it is not."""
    changes: int = 0
    """How often its splices have changed: what was derived from them earlier is out of date after another one."""

    def keep_clear(self, address: int) -> bool:
        """Have no splice displace what begins at a link-time address from now on; return whether none has done so."""
        self.claims.landings.add(address)
        self.code.add_entry(address)
        self.plans = None  # they were made without regard to it
        if address not in self.claims.written and address not in self.claims.displaced:
            return True
        return any(splice.planned.head == address == splice.address - self.bias for splice in self.splices())

    def note_writable(self, mappings: Iterable[Mapping]) -> bool:
        """Take note of text that the program may write to; return whether there is more than was known."""
        found = {*self.writable}
        for each in mappings:
            if each.executable and each.writable and each.start < self.high and self.low < each.end:
                found.add(AddressRange(each.start - self.bias, each.end - self.bias))
        more = len(found) > len(self.writable)
        if more:
            self.writable = tuple(sorted(found, key=lambda each: each.start))
            self.plans = None  # they were made without regard to it
        return more

    def in_writable_text(self) -> list[EmittedSplice]:
        """Return the splices in text that the program may write to."""
        places = [(splice, splice.address - self.bias) for splice in self.splices()] if self.writable else []
        return [splice for splice, at in places if any(at in area for area in self.writable)]

    def show(self, address: int) -> None:
        """Have no action before a link-time address overwrite registers that are dead: a handler may see them."""
        self.shown.add(address)
        from anyprobe.binary.liveness.site import DeadInCallees

        self.code.analyses.get(DeadInCallees).keep_all(address)

    def settle(self, state: FunctionState, wants: list[Want], splices: list[EmittedSplice]) -> None:
        """Take note of what is wanted of a function now, and of the splices that serve it."""
        state.wants, state.splices = wants, splices
        self.changes += 1

    def splices(self) -> Iterator[EmittedSplice]:
        """Yield what is spliced here."""
        for state in self.functions.values():
            yield from state.splices

    def state_of(self, code: FunctionCode, elsewhere: Iterable[int] = ()) -> FunctionState:
        """Return the state of a function and of those that are planned together with it, made on demand.

        ``elsewhere``: addresses that are wanted of its parts, with whose neighbours it is planned together, then.
        """
        first = self._first_of(code)
        state = self.functions.setdefault(first.start, FunctionState(first)).root
        for address in elsewhere:
            part = None if code.start <= address < code.end else self.code.containing(address)
            if part is not None:
                state.merge(self.state_of(part))
        return state

    def known_state(self, code: FunctionCode) -> FunctionState | None:
        """Return the state of a function, if it has one."""
        state = self.functions.get(self._first_of(code).start)
        return None if state is None else state.root

    def _first_of(self, code: FunctionCode) -> FunctionCode:
        return first_of(self.code, code) if self.plans is None else self.plans.first_of(self.code, code)


NO_PLAN = FunctionPlan()
"""No splices are to be made."""


@bulk_dataclass(frozen=True, slots=True)
class Planned:
    """What is to become of a function: what is wanted of it that can be had, and the splices for that."""

    wants: Sequence[Want] = ()
    plan: FunctionPlan = NO_PLAN
    staying: Sequence[EmittedSplice] = ()
    """The splices that remain as they are; the plan is for what these do not serve."""
    needs_stop: Refusal | None = None
    """Why it cannot be made while the program runs, where that was wanted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of an edit: it is made, or given up, perhaps for a reason."""

    given_up: bool = False
    refusal: Refusal | None = None


NOTHING = Planned()
"""The function is to be as if nothing had ever been wanted of it."""
_MADE = Outcome()


@dataclass(eq=False, slots=True)
class Edit:
    """A change of one function, from what is wanted to what has become of it: a value for each stage on the way.

    Its methods, and ``Claiming``, are what takes it from stage to stage.
    """

    module: Module
    state: FunctionState
    added: list[Want] = field(default_factory=list)
    removed: list[Want] = field(default_factory=list)
    anew: bool = False
    """Whether nothing may stay as it is, even if the same is wanted of it."""
    taken_out: frozenset[EmittedSplice] = frozenset()
    """The splices that serve what is removed and nothing else: only these leave, and nothing is planned anew."""
    yields: bool = False
    """Whether it rather loses what is armed than leaves it as it is, which may harm the program."""
    is_one_of_many: bool = False
    """Whether its patches are made as where thousands of functions change at once, since as many follow."""
    planned: Planned = NOTHING
    change: FunctionChange | None = None
    """What is emitted, to be applied."""
    outcome: Outcome | None = None
    before: Claims | None = None
    """The module's claims without the plan's: the plan has claimed nothing while they are what the module has."""

    @property
    def wants(self) -> Sequence[Want]:
        """What is wanted of the function afterwards, as planned."""
        return self.planned.wants

    @property
    def plan(self) -> FunctionPlan:
        """The splices to be made."""
        return self.planned.plan

    @property
    def staying(self) -> Sequence[EmittedSplice]:
        """The splices that remain as they are."""
        return self.planned.staying

    @property
    def given_up(self) -> bool:
        """Whether the function stays as it is."""
        return self.outcome is not None and self.outcome.given_up

    @property
    def refusal(self) -> Refusal | None:
        """Why it was given up."""
        return None if self.outcome is None else self.outcome.refusal

    def claim(self, planned: Planned) -> None:
        """Have a plan's splices claim their bytes in place of those that leave: all of it by one store."""
        self.before, self.planned = self.module.claims, planned
        self.module.claims = self.before.replaced(planned_of(self.leaving), self.plan.splices)

    def give_back(self) -> None:
        """Have those that were to leave claim their bytes again, unless they still do."""
        if self.before is None or self.module.claims is self.before:
            return
        # whatever interrupts this, either both stores are made or it is all done again
        self.before = self.module.claims.replaced(self.plan.splices, planned_of(self.leaving))
        self.module.claims = self.before

    def emitted(self, change: FunctionChange) -> None:
        """Take note of what is emitted for the plan."""
        self.change = change

    def made(self) -> None:
        """Take note that the change is made."""
        self.outcome = _MADE

    def abandon(self, why: Refusal | None) -> None:
        """Forget the plan and what was emitted for it: the function stays as it is, perhaps for a reason."""
        self.give_back()
        self.change = self.before = None
        self.planned = Planned(list(self.state.wants))
        self.outcome = Outcome(given_up=True, refusal=why)

    @property
    def leaving(self) -> tuple[EmittedSplice, ...]:
        """The splices that are taken out, or replaced."""
        staying, splices = frozenset(self.planned.staying), self.state.splices
        return tuple([splice for splice in splices if splice not in staying] if staying else splices)

    @property
    def idle(self) -> bool:
        """Whether nothing remains to be changed."""
        planned = self.planned
        return not planned.plan.splices and len(planned.staying) == len(self.state.splices)


class Claiming:
    """What the plans of several edits claim one after the other, of which the modules are told by one store each.

    Each plan regards what those before it claim, and no copy is made for each. Where something interrupts the plans,
    the modules' claims are as they were.
    """

    def __init__(self) -> None:
        """Begin with no edit."""
        self._claims: dict[Module, Claims] = {}
        self._edits: list[Edit] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Tell the modules; where something was raised, give places of springboards back that were taken meanwhile."""
        if kind is None:
            for edit in self._edits:
                edit.before = edit.module.claims
            for module, claims in self._claims.items():
                module.claims = claims
            return
        for edit in self._edits:
            for splice in edit.plan.splices:
                self._claims[edit.module].release(splice)

    def claims_of(self, module: Module) -> Claims:
        """Return a module's claims with all that was added."""
        return self._claims.get(module, module.claims)

    def claims_to_add_to(self, module: Module) -> Claims:
        """Return a copy of a module's claims of which it is told in the end."""
        claims = self._claims.get(module)
        if claims is None:
            claims = self._claims[module] = module.claims.replaced((), ())
        return claims

    def add_taken(self, edit: Edit, planned: Planned) -> None:
        """Note the plan of a function without splices, for which ``claims_to_add_to`` have its bytes already."""
        edit.planned = planned
        self._edits.append(edit)

    def add(self, edit: Edit, planned: Planned) -> None:
        """Have a plan's splices claim their bytes in place of those that leave."""
        claims = self.claims_to_add_to(edit.module)
        edit.planned = planned
        self._edits.append(edit)
        if edit.state.splices:
            claims.exchange(planned_of(edit.leaving), planned.plan.splices)
        elif len(planned.plan.splices) == 1:
            claims.claim(planned.plan.splices[0])
        else:
            claims.exchange((), planned.plan.splices)


def made(edits: Iterable[Edit]) -> list[FunctionChange]:
    """Return what of edits is in place by now."""
    return [edit.change for edit in edits if edit.change is not None and not edit.given_up]


def beside_handlers(edit: Edit, dead: Clobbers) -> Clobbers:
    """Return what of all that is dead may be overwritten where handlers look.

    Nothing, if one of the function's handlers may look at anything; trivial ones tell what they read.
    """
    from anyprobe.splice.codegen.handlers.inline import registers_read, sources_of

    hooks = (hook_of(want) for want in (*edit.wants, *edit.state.wants))
    codes = [hook.handler.code for hook in hooks if hook is not None and hook.handler is not None]
    if not codes or any(sources_of(code) is None for code in codes):
        return Clobbers()
    read = frozenset[str]().union(*(registers_read(code) for code in codes))
    return Clobbers(tuple(name for name in dead.registers if name not in read), dead.flags)


def joined(edits: Sequence[Edit], others: Sequence[Edit]) -> list[Edit]:
    """Return edits with what others add: of each function there is one."""
    found = list(edits)
    of_functions = {id(edit.state.root): edit for edit in edits}
    for other in others:
        edit = of_functions.setdefault(id(other.state.root), other)
        if edit is other:
            found.append(other)
        else:
            edit.added += other.added
    return found
