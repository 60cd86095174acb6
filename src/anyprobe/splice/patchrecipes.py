"""The recipes of one patch, worked out from its bytes: every way through it is followed, instruction by instruction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from iced_x86 import Code, Decoder, Instruction, Mnemonic, Register

from anyprobe.isa.decode import FLOWS, Flow, Insn
from anyprobe.splice.patchcode import EmittedPatch
from anyprobe.splice.planned import PlannedSplice, Strategy
from anyprobe.splice.recipes import (
    STEP_BYTES,
    Effect,
    EffectKind,
    Op,
    Positions,
    Recipe,
    Step,
    restoring,
    taking_back,
)
from anyprobe.splice.statetracking import BLOCK, State, initial, meet, number_of, step

_DONE = Step(Op.DONE)
_CALL_PUSHED = -8
_COUNTED = range(0xE0, 0xE4)
"""``loopne``, ``loope``, ``loop``, ``jrcxz``, which have short forms only."""


@dataclass(frozen=True, slots=True)
class Bearings:
    """What addresses and slots in the code of one neighbourhood mean."""

    routines: Mapping[int, tuple[EffectKind | None, int]]
    """By a routine's address: what calling it does, and where the bank is described."""
    slots: Mapping[int, int]
    """By a thread slot's offset: where the bank is described."""
    ours: range
    """Where code of ours is that is no place to show."""


class _Where(NamedTuple):
    """How far a pass has come at one instruction boundary."""

    state: State
    original: int
    """The original instruction whose turn it is."""
    at_site: bool
    """Whether nothing of the program has run since it was at the site."""
    in_copy: bool
    """Whether the instruction is the program's, not an action's."""
    effects: tuple[Effect, ...] = ()


@dataclass
class _Walk:
    """One walk through a patch."""

    planned: PlannedSplice
    bias: int
    patch: EmittedPatch
    bearings: Bearings
    found: dict[int, _Where] = field(default_factory=dict)
    insns: dict[int, Instruction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Decode the patch and the instructions that it displaces."""
        patch, planned = self.patch, self.planned
        self.insns = {one.ip: one for one in Decoder(64, patch.code, ip=patch.address)}
        displaced: list[Insn] = [*planned.insns, *(insn for want in planned.wants for insn in want.block)]
        self._originals = {insn.address + self.bias: insn for insn in displaced}
        self._retargeted = planned.strategy is Strategy.RETARGET
        self.site = planned.insns[0].address + self.bias
        self._copies = {copy: original for original, copy in patch.copies if original in self._originals}

    def run(self) -> bool:
        """Follow every way; return whether all of it was understood."""
        start = initial()
        if self._retargeted and self.planned.insns[0].flow is Flow.CALL:
            start = initial(_CALL_PUSHED)
        todo = [(self.patch.address, _Where(start, self.site, at_site=True, in_copy=False))]
        while todo:
            at, where = todo.pop()
            known, arrived = self.found.get(at), self._arrive(at, where)
            here = arrived if known is None else _meet(known, arrived)
            if here is None or at not in self.insns:
                return False
            if here == known:
                continue
            self.found[at] = here
            following = self._follow(at, here)
            if following is None:
                return False
            todo += following
        return True

    def _arrive(self, at: int, where: _Where) -> _Where:
        """Take note of a displaced copy that begins here."""
        original = self._copies.get(at)
        if original is None or where.in_copy:
            return where
        return where._replace(original=original, in_copy=True)

    def _follow(self, at: int, where: _Where) -> list[tuple[int, _Where]] | None:
        """Return where control goes from an instruction; ``None`` where that is not understood."""
        one = self.insns[at]
        flow = FLOWS[one.code]
        if flow in (Flow.JUMP, Flow.JCC):
            return self._branch(at, one, flow, where)
        if where.in_copy:
            return self._displaced(one, flow, where)
        if flow is Flow.CALL:
            return self._call(one, where)
        if flow is not Flow.NEXT:
            return None
        state = step(where.state, one, self._raw(one))
        if state is None:
            return None
        effect = self._counted(one, where.state)
        effects = where.effects if effect is None else (*where.effects, effect)
        return [(at + one.len, where._replace(state=state, effects=effects))]

    def _raw(self, one: Instruction) -> bytes:
        offset = one.ip - self.patch.address
        return self.patch.code[offset : offset + one.len]

    def _branch(self, at: int, one: Instruction, flow: Flow, where: _Where) -> list[tuple[int, _Where]] | None:
        target = one.near_branch_target
        inside = self.patch.address <= target < self.patch.end
        if not where.in_copy:
            ways = [(target, where)] if inside else []
            return ways if flow is Flow.JUMP else [*ways, (at + one.len, where)]
        if flow is Flow.JUMP:
            return []  # on to the program, or past the jump that `loop` may take: see `_hop`
        original = self._originals[where.original]
        if self._raw(one)[-2] in _COUNTED:
            return self._hop(at, one, original)
        ways = [(at + one.len, self._next(original))]
        if inside:
            ways.append((target, where._replace(in_copy=False)))
        return ways

    def _hop(self, at: int, one: Instruction, original: Insn) -> list[tuple[int, _Where]]:
        """``loop`` and ``jrcxz``: ``loop +2; jmp past; jmp target; past:``; nothing is known in between."""
        past = at + one.len + 2 + 5
        return [(past, self._next(original))]

    def _next(self, original: Insn) -> _Where:
        """Return the state behind a displaced copy: that of the program in front of the next instruction."""
        return _Where(initial(), original.end + self.bias, at_site=False, in_copy=False)

    def _displaced(self, one: Instruction, flow: Flow, where: _Where) -> list[tuple[int, _Where]] | None:
        """Follow the copy of a displaced instruction."""
        original = self._originals[where.original]
        if original.is_call:
            state = step(where.state, one, self._raw(one)) if flow is Flow.NEXT else where.state
            if state is None:
                return None
            return [(one.ip + one.len, where._replace(state=state))] if flow is Flow.NEXT else []
        if flow is not original.flow and original.flow is not Flow.SYSCALL:
            return None
        return [(one.ip + one.len, self._next(original))] if original.falls_through else []

    def _call(self, one: Instruction, where: _Where) -> list[tuple[int, _Where]] | None:
        """Follow a call of a routine, which preserves everything; its argument has just been pushed."""
        known = self.bearings.routines.get(one.near_branch_target)
        if known is None:
            return None
        kind, bank = known
        effects = where.effects
        if kind is not None:
            place = one.ip - 4 - self.patch.address
            effects = (*effects, Effect(kind, bank, self._word(place), place))
        return [(one.ip + one.len, where._replace(effects=effects))]

    def _word(self, place: int) -> int:
        return int.from_bytes(self.patch.code[place : place + 4], "little")

    def _counted(self, one: Instruction, state: State) -> Effect | None:
        """Return the effect of an increment of a counter."""
        if one.mnemonic != Mnemonic.INC:
            return None
        place = one.ip + one.len - 4 - self.patch.address
        if one.memory_base == Register.RIP:
            return Effect(EffectKind.COUNTED_NEAR, 0, one.ip_rel_memory_address, place)
        base = number_of(one.memory_base)
        held = state.registers[base] if base >= 0 else None
        bank = self.bearings.slots.get(held[1]) if held is not None and held[0] == BLOCK else None
        return None if bank is None else Effect(EffectKind.COUNTED, bank, self._word(place), place)


def _meet(one: _Where, other: _Where) -> _Where | None:
    """Return what holds where two ways come together."""
    state = meet(one.state, other.state)
    if state is None or one[1:4] != other[1:4]:
        return None
    done = [(effect.kind, effect.bank, effect.argument) for effect in one.effects]
    same = done == [(effect.kind, effect.bank, effect.argument) for effect in other.effects]
    return one._replace(state=state, effects=one.effects if same else _UNKNOWN)


_UNKNOWN = (Effect(EffectKind.UNKNOWN, 0, 0, 0),)
"""One way has done what another has not."""


def patch_positions(
    planned: PlannedSplice, bias: int, patch: EmittedPatch, bearings: Bearings, *, looped: bool = False
) -> Positions:
    """Return the recipes of a patch, by offset; none where its code is not understood.

    ``looped``: branches back to the entry go to the displaced copy, so that whoever is there may not have been counted.
    """
    walk = _Walk(planned, bias, patch, bearings)
    if not walk.run():
        return {}
    dead, flags_dead = overwritten(walk)
    found: dict[int, Recipe] = {}
    for at, where in walk.found.items():
        recipe = _recipe(walk, at, where, dead, flags_dead=flags_dead)
        if recipe is not None and looped and at == patch.behind and where.at_site:
            recipe = (Step(Op.IF_INTERRUPTED), *recipe)
        if recipe is not None:
            found[at - patch.address] = recipe
    return found


def overwritten(walk: _Walk) -> tuple[frozenset[int], bool]:
    """Return the registers that the patch itself does not give back, and whether that goes for the flags."""
    dead: set[int] = set()
    flags_dead = False
    for at, where in walk.found.items():
        leaves = (
            walk.insns[at].code == Code.JMP_REL32_64 and not walk.patch.address <= _target(walk, at) < walk.patch.end
        )
        if where.at_site and (where.in_copy or leaves):
            dead.update(where.state.lost())
            flags_dead |= not where.state.flags
    return frozenset(dead), flags_dead


def _target(walk: _Walk, at: int) -> int:
    return walk.insns[at].near_branch_target


def _recipe(walk: _Walk, at: int, where: _Where, dead: frozenset[int], *, flags_dead: bool) -> Recipe | None:
    """Return the recipe for one boundary, if there is one."""
    one, state = walk.insns[at], where.state
    complete = dead.issuperset(state.lost()) and (state.flags or flags_dead)
    leaves = one.code == Code.JMP_REL32_64 and _target(walk, at) not in walk.bearings.ours
    if leaves and complete and state.shift == _shift_when_over(walk, where):
        return (Step(Op.FOLLOW), _DONE)
    if any(effect.kind is EffectKind.LEFT for effect in where.effects):
        return _over(walk, at, where, restoring(state, dead, flags_dead=flags_dead))
    if not where.at_site:
        return None
    restore, undo = restoring(state, dead, flags_dead=flags_dead), taking_back(where.effects)
    if restore is None or undo is None:
        return None
    interrupted = (*undo, Step(Op.SITE), _DONE)
    if not where.in_copy:
        return (*restore, *interrupted)
    faulted = (Step(Op.SITE, b=where.original - walk.site), _DONE)
    if faulted == interrupted:
        return (*restore, *interrupted)
    return (*restore, Step(Op.IF_SYNCHRONOUS, b=STEP_BYTES * len(interrupted)), *interrupted, *faulted)


def _over(walk: _Walk, at: int, where: _Where, restore: list[Step] | None) -> Recipe | None:
    """Return the recipe where an exit is recorded, and nothing is left to do in front of the way out."""
    out = at
    while not walk.found[out].in_copy and walk.insns[out].code != Code.JMP_REL32_64:
        out += walk.insns[out].len
        if out not in walk.found or walk.found[out].effects != where.effects:
            return None
    if restore is None:
        return None
    one = walk.insns[out]
    if FLOWS[one.code] is Flow.RET:
        return (*restore, Step(Op.RETURN, b=one.immediate16 if one.op_count else 0), _DONE)
    if one.code == Code.JMP_REL32_64 and _target(walk, out) not in walk.bearings.ours:
        return (*restore, Step(Op.FOLLOW, b=out - at), _DONE)
    return None


def _shift_when_over(walk: _Walk, where: _Where) -> int:
    """Return where the stack pointer is once the displaced instruction has run: a call has pushed."""
    insns = walk.planned.insns
    original = next((insn for insn in insns if insn.address + walk.bias == where.original), None)
    return _CALL_PUSHED if original is not None and original.is_call else 0
