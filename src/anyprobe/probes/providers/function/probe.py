"""A probe as the user holds it: a spec, the places it means, and their state."""

import fnmatch
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layouts.layout import CERTAIN, JUMPED
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.specs.dtrace import EACH
from anyprobe.probes.specs.parts import Spec
from anyprobe.splice.codegen.patch import REPLACING, ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import CallGroup, Hook, TimingGroup

if TYPE_CHECKING:
    from anyprobe.binary.flow.exits import Exit, Exits
    from anyprobe.isa.decode import Insn
    from anyprobe.probes.providers.function.wanted.entering import Unentered
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts
    from anyprobe.splice.regions.code_region import SlotBank

NEVER_RETURNS = "the function never returns"


@dataclass(eq=False, slots=True)
class Place:
    """One instruction that a probe counts at."""

    site: ResolvedSite
    module: Module
    state: FunctionState
    want: Want
    hook: Hook
    exit: "Exit | None" = None
    note: str = ""
    """Why it is not armed any more, where that was not asked for."""
    earlier: list[Hook] = field(default_factory=list)
    """What counted at the same place while the same file was loaded here before."""
    size: int = 0
    """How many bytes run as a whole from here on, where that is known."""
    since: float = 0.0
    """How many seconds after the session's beginning it was placed."""

    @property
    def armed(self) -> bool:
        """Whether the instruction is spliced."""
        return self.hook.armed

    @property
    def identity(self) -> Hashable:
        """What is the same where the same file is loaded at the same address again."""
        return self.site.canonical, self.address, self.exit is not None

    def take_over(self, before: "Place") -> None:
        """Count by the same counters that the same place had before its file was unloaded, if it counts alike."""
        hook, known = self.hook, before.hook
        if hook.kind is not known.kind or hook.bank is not None:
            return
        if hook.calls is None and known.calls is None:
            hook.bank, hook.offset = known.bank, known.offset
        elif hook.calls is not None and known.calls is not None and hook.calls.size == known.calls.size:
            hook.calls.bank, hook.calls.offset = known.calls.bank, known.calls.offset

    def go_on_from(self, before: "Place") -> None:
        """Count on where the same place ended when its file was unloaded."""
        self.since = before.since
        self.earlier = before.earlier  # taken over, not copied: libraries may come and go ten thousand times
        if (before.hook.bank, before.hook.offset) != (self.hook.bank, self.hook.offset):
            self.earlier.append(before.hook)

    @property
    def at_replaced_return(self) -> bool:
        """Whether what is counted here is the return, seen at a replaced return address."""
        return self.hook.kind in REPLACING

    @property
    def address(self) -> int:
        """Run-time address of the instruction."""
        return self.want.address + self.module.bias

    @property
    def insn(self) -> "Insn | None":
        """The instruction, as the program has it."""
        part = self.module.code.containing(self.want.address)
        return part.insn_at(self.want.address) if part is not None else None

    @property
    def refusal(self) -> Refusal | None:
        """Why it cannot count, or does so no more."""
        return self.hook.refusal

    @property
    def has_handler(self) -> bool:
        """Whether it calls a handler."""
        return self.hook.handler is not None

    @property
    def offset(self) -> int:
        """Offset from the function's start."""
        return self.want.address - self.site.function.start


@dataclass(eq=False)
class HandledCalls:
    """One function whose calls a probe's handler sees where its callers go on: where it leaves by jumps."""

    site: ResolvedSite
    group: CallGroup
    handler: "HandlerFacts"
    """What runs at return points."""
    places: list[Place] = field(default_factory=list)
    points: dict[int, Place] = field(default_factory=dict)
    unseen: dict[int, Refusal] = field(default_factory=dict)
    whole: bool = True
    """Whether these are all places at which calls go on to their callers."""

    @property
    def leaves_by_jumps(self) -> bool:
        """Whether calls may end in the caller."""
        return True

    @property
    def armed(self) -> bool:
        """Whether at least one of its places is armed."""
        return any(place.hook.armed for place in self.places)

    @property
    def bank(self) -> "SlotBank | None":
        """Where its open calls are noted, if that can be."""
        return self.group.bank if self.group.bank is not None and self.group.bank.layout.notes_calls else None

    @property
    def offset(self) -> int:
        """By what it is known there."""
        return self.group.offset

    @property
    def identity(self) -> Hashable:
        """As of a place, if its calls are known by the same."""
        return self.places[0].identity, self.group.bank, self.group.offset

    def go_on_from(self, before: "HandledCalls") -> None:
        """Have calls end where those of the same function did before its file was unloaded."""
        self.points = _kept(before.points) | self.points

    def ending(self, flags: int, *, alone: bool) -> Hook:
        """Return what runs the handler at a return point."""
        place, flags = self.places[0], flags | CERTAIN * (alone and self.whole)
        own, offset = place.hook, self.offset | flags
        return Hook(ActionKind.HANDLER, None, self.bank, offset, handler=self.handler, ip=own.ip, function=own.function)


@dataclass(eq=False)
class Timed:
    """One function that a probe times: its entry and all its exits share a record."""

    site: ResolvedSite
    group: TimingGroup
    places: list[Place] = field(default_factory=list)
    earlier: list[TimingGroup] = field(default_factory=list)
    """What measured the same function while the same file was loaded here before."""
    points: dict[int, Place] = field(default_factory=dict)
    """Where callers go on after calls that left by a jump, by run-time address: spliced there, or refused."""
    unseen: dict[int, Refusal] = field(default_factory=dict)
    """Where callers go on and nothing can be spliced, and why, by run-time address."""

    @property
    def leaves_by_jumps(self) -> bool:
        """Whether calls may end in a jump to another function, and so in the caller."""
        return any(place.hook.kind is ActionKind.LEAVE_TAIL for place in self.places)

    @property
    def bank(self) -> "SlotBank | None":
        """Where its open calls are, once it is armed."""
        return self.group.bank

    @property
    def offset(self) -> int:
        """Where its record is there."""
        return self.group.offset

    def ending(self, flags: int, *, alone: bool) -> Hook:
        """Return what ends its calls at a return point."""
        offset = self.offset | JUMPED | flags | CERTAIN * alone
        return Hook(ActionKind.LEAVE_CALLER, None, self.bank, offset, ends=None if self.armed else self.group)

    @property
    def identity(self) -> Hashable:
        """As of a place."""
        return self.site.canonical, self.site.address

    def named(self, site: ResolvedSite) -> "Timed":
        """Return what is measured here under the name that the function has at a site."""
        return self if site.canonical == self.site.canonical else replace(self, site=site)

    def take_over(self, before: "Timed") -> None:
        """Measure by the same record that the same function had before its file was unloaded."""
        if self.group.bank is None:
            self.group.bank, self.group.offset = before.group.bank, before.group.offset

    def go_on_from(self, before: "Timed") -> None:
        """Measure on where the same function ended when its file was unloaded."""
        groups = [*before.earlier, before.group] if before.was_armed else before.earlier
        self.earlier = [each for each in groups if not (self.was_armed and each.is_at(self.group))]
        if before.group.is_at(self.group):
            self.points = _kept(before.points) | self.points

    @property
    def was_armed(self) -> bool:
        """Whether it has been timed, whatever came later."""
        return any(place.hook.strategy for place in self.places)

    @property
    def armed(self) -> bool:
        """Whether at least one of its places is armed."""
        return any(place.hook.armed for place in self.places)

    @property
    def refusal(self) -> Refusal | None:
        """Why the function is not timed."""
        return next((place.hook.refusal for place in self.places if place.hook.refusal is not None), None)


FollowedCalls = HandledCalls | Timed
"""One function whose calls may end where its callers go on."""


def _kept(points: dict[int, Place]) -> dict[int, Place]:
    """Return the places where callers go on that were not unloaded together with what they call."""
    return {at: place for at, place in points.items() if place.armed}


def shared(probes: "Sequence[Probe]", earlier: "Sequence[Probe] | None") -> None:
    """Have functions that several probes time measured once: each call has one caller, and one time in that.

    That is so under each of a function's names, too. ``earlier``: the session's probes, None where it is not asked
    which calls made which.
    """
    if earlier is None:
        return
    known = {timed.site.address: timed for probe in earlier for timed in probe.timed if timed.armed}
    for probe in probes:
        probe.timed = [known.setdefault(timed.site.address, timed).named(timed.site) for timed in probe.timed]


@dataclass(frozen=True, slots=True)
class Exitless:
    """A function that is to be seen at its exits, and whose exits are not all known or cannot all be spliced."""

    site: ResolvedSite
    module: Module
    code: FunctionCode
    refusal: Refusal
    timed: bool


def function_of(place: Place) -> Exitless:
    """Return the function that a place is of."""
    found = place.module.code.function_at(place.site.function.start)
    code = found if isinstance(found, FunctionCode) else place.state.code
    unasked = Refusal(Reason.STRATEGY_NOT_ASKED, code.entry, "its exits are not used")
    return Exitless(place.site, place.module, code, unasked, timed=False)


@dataclass(eq=False, repr=False)
class Probe:
    """What one spec asked for. ``places`` count (``Session.count``), ``timed`` measure (``Session.time``)."""

    wanted: Spec
    places: list[Place] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    handled: list[HandledCalls] = field(default_factory=list)
    """Functions whose calls its handler sees where their callers go on."""
    refused: list[tuple[str, Refusal]] = field(default_factory=list)
    """Functions refused before planning, by canonical spec."""
    exitless: list[Exitless] = field(default_factory=list)
    """Functions of which it is still to be decided."""
    equip: "Callable[[Probe], None] | None" = None
    """Turns places that count into places with a handler."""
    is_timing: bool = False
    """Whether both ends of calls are wanted."""
    part_of: object = None
    """What it is listed as a part of, if not by itself."""
    sets_flags: bool = False
    """Whether its places tell whether they were hit, not how often."""
    waits: bool = False
    """Whether blocks get their places as functions are entered."""
    unentered: "list[Unentered]" = field(default_factory=list)
    """The functions that wait for this."""

    @property
    def spec(self) -> str:
        """The spec as it was written."""
        return self.wanted.text

    def __repr__(self) -> str:
        """Return the spec and how much of it is armed."""
        places = self.all_places
        armed = sum(place.hook.armed for place in places)
        return f"<Probe {self.spec}: {armed} of {len(places)} places armed, {len(self.refused)} refused>"

    def unplaced(self) -> "Probe":
        """Return a probe that asks for the same and has no places yet."""
        return Probe(self.wanted, is_timing=self.is_timing, sets_flags=self.sets_flags, waits=self.waits)

    def refuse(self, site: ResolvedSite, why: Refusal, module: Module) -> None:
        """Note why a site is not placed, with its run-time address; of many sites, with that of the one in question."""
        one = site.kind not in EACH
        told = Refusal(why.reason, site.address, why.detail) if one else at_run_time(why, module)
        self.refused.append((site.canonical, told))

    @property
    def followed(self) -> "list[FollowedCalls]":
        """The functions whose calls may end where their callers go on."""
        return [*(timed for timed in self.timed if timed.leaves_by_jumps), *self.handled]

    @property
    def all_places(self) -> list[Place]:
        """Every instruction that the probe needs."""
        found = self.places + [
            place for timed in self.timed for each in (timed.places, timed.points.values()) for place in each
        ]
        return [*found, *(place for each in self.handled for place in each.points.values())]

    @property
    def armed(self) -> bool:
        """Whether at least one place is armed, or will be where a function is entered."""
        return bool(self.unentered) or any(place.hook.armed for place in self.all_places)

    @property
    def means_something(self) -> bool:
        """Whether anything was found that it asks for."""
        return bool(self.all_places or self.unentered or self.refused)


def places_of(probes: Sequence[Probe], *, fresh: bool = False) -> list[Place]:
    """Return the places of some probes, each once; ``fresh``: those that are not armed yet."""
    places = (place for probe in probes for place in probe.all_places)
    return list(dict.fromkeys(place for place in places if not (fresh and place.armed)))


def edits_for(places: list[Place], *, remove: bool = False) -> list[Edit]:
    """Group places by function into edits."""
    edits: dict[FunctionState, Edit] = {}
    for place in places:
        state = place.state.root
        edit = edits.get(state)
        if edit is None:
            edit = edits[state] = Edit(place.module, state)
        (edit.removed if remove else edit.added).append(place.want)
    return list(edits.values())


def exit_want(leaving: "Exit", hook: Hook | None = None) -> Want:
    """Return the want for one exit of a function."""
    return Want(leaving.address, WantKind.EXIT, leaving.conditional, tag=hook, inside=leaving.inside)


def instructions_of(code: FunctionCode, kind: str, pattern: str = "") -> Sequence[int]:
    """Return the link-time addresses of the instructions that a spec's name means; ``pattern``: of their offsets."""
    from anyprobe.binary.flow.blocks import calls_of, conditional_jumps, run_starts

    if pattern:
        found = code.sites_among(code.addresses)
        return [each for each in found if fnmatch.fnmatchcase(f"{each - code.start:x}", pattern)]

    if kind == "store":
        from anyprobe.isa.stores import is_store

        return code.sites_among([one.ip for one in code.iced if is_store(one)])
    if kind == "taken":
        return conditional_jumps(code)
    if kind == "undecided":
        from anyprobe.binary.edges.edge_counts import undecided_jumps

        return code.analyses.get(undecided_jumps)
    if kind in {"block", "run"}:
        return code.blocks if kind == "block" else run_starts(code, frozenset(code.blocks))
    return calls_of(code) if kind == "call" else code.sites_among(code.addresses)


def at_run_time(why: Refusal, module: Module) -> Refusal:
    """Return a refusal with a run-time address: what analysis and planning say, they say of the file."""
    if why.address in range(module.low, module.high):
        return why
    return Refusal(why.reason, why.address + module.bias, why.detail)


def exits_of(code: FunctionCode, module: Module) -> "Exits":
    """Return where a function ends, which an earlier session may have found out."""
    return code.exits if module.plans is None else module.plans.timed.exits_of(module.code, code)


def has_exits(probe: Probe, site: ResolvedSite, code: FunctionCode, module: Module, *, timed: bool) -> bool:
    """Return whether all exits of a function are known; where not, that is noted in the probe."""
    exits = exits_of(code, module)
    if exits.complete is not None and exits.complete.reason is Reason.PART_OF_FUNCTION:
        probe.refuse(site, exits.complete, module)
    elif exits.complete is not None:
        probe.exitless.append(Exitless(site, module, code, exits.complete, timed))
    elif exits.unmatched is not None and timed:
        probe.refuse(site, exits.unmatched, module)
        return False
    elif not exits.found:
        probe.refuse(site, Refusal(Reason.NO_EXIT, code.start, NEVER_RETURNS), module)
    return exits.complete is None and bool(exits.found)


def equipped(probe: Probe, equip: Callable[[Probe], None]) -> None:
    """Turn a probe's places into places with a handler, but for returns of which the entry cannot be told."""
    refused: dict[int, FunctionCode] = {}
    kept: list[Place] = []
    for place in probe.places:
        code = place.module.code.function_at(place.site.function.start) if place.exit is not None else None
        if isinstance(code, FunctionCode) and code.exits.unmatched is not None:
            if code.start not in refused:
                refused[code.start] = code
                probe.refuse(place.site, code.exits.unmatched, place.module)
        else:
            kept.append(place)
    probe.places = kept
    equip(probe)
