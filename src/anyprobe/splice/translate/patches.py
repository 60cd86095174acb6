"""The recipes of one patch, worked out from its bytes: every way through it is followed, instruction by instruction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from iced_x86 import Code, Decoder, Instruction, Mnemonic, OpKind, Register

from anyprobe.isa.decode import FLOWS, Flow, Insn
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.splice.plan.splices import PlannedSplice, Strategy
from anyprobe.splice.translate.abstract_state import BLOCK, State, initial, meet, number_of, step
from anyprobe.splice.translate.idempotence import Replay, is_repeated, replay_after
from anyprobe.splice.translate.steps import (
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
from anyprobe.splice.translate.view_check import with_frame

_DONE = Step(Op.DONE)
_UNKNOWN = (Effect(EffectKind.UNKNOWN, 0, 0, 0),)
"""Something that cannot be taken back: what one way has done and another has not, for instance."""
_READERS = frozenset({Mnemonic.CMP, Mnemonic.TEST, Mnemonic.NOP})
_CALL_PUSHED = -8


@dataclass(frozen=True, slots=True)
class Bearings:
    """What addresses and slots in the code of one code region mean."""

    routines: Mapping[int, tuple[EffectKind | None, int]]
    """By a routine's address: what calling it does, and where the bank is described."""
    slots: Mapping[int, int]
    """By a thread slot's offset: where the bank is described."""
    code: range
    """Where anyprobe's code is that is no place to show."""


class Where(NamedTuple):
    """How far a pass has come at one instruction boundary."""

    state: State
    """Where registers and flags are that the program has at the original instruction whose turn it is."""
    replay: Replay | None
    """What goes back to the site, if all that has run since may run again."""
    original: int
    in_copy: bool
    """Whether the instruction is the program's, not an action's."""
    effects: tuple[Effect, ...] = ()
    entered: bool = False
    """Whether a branch back to the entry may have led here, past what is done there."""


@dataclass
class Walk:
    """One walk through a patch, or through what lies from the offset ``start`` on."""

    planned: PlannedSplice
    bias: int
    patch: EmittedPatch
    bearings: Bearings
    start: int = 0
    found: dict[int, Where] = field(default_factory=dict, init=False)
    insns: dict[int, Instruction] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Decode the patch and the instructions that it displaces."""
        patch, planned, start = self.patch, self.planned, self.start
        self.insns = {one.ip: one for one in Decoder(64, patch.code[start:], ip=patch.address + start)}
        displaced: list[Insn] = [*planned.insns, *(insn for want in planned.wants for insn in want.block)]
        self._originals = {insn.address + self.bias: insn for insn in displaced}
        self._retargeted = planned.strategy is Strategy.RETARGET
        self.site = planned.insns[0].address + self.bias
        self._taken_back: tuple[tuple[Effect, ...], list[Step] | None] = (), []
        self._copies = {copy: original for original, copy in patch.copies if original in self._originals}

    def taking_back(self, effects: tuple[Effect, ...]) -> list[Step] | None:
        """Return the steps that undo what has been done on the way to some place; the next one often has the same."""
        if effects is not self._taken_back[0]:
            self._taken_back = effects, taking_back(effects)
        return self._taken_back[1]

    def is_in_place(self, original: int) -> bool:
        """Return whether an instruction of which there is a copy is where it was: that of an exit block."""
        return all(insn.address + self.bias != original for insn in self.planned.insns)

    def is_displaced(self, offset: int) -> bool:
        """Return whether what has been found at an offset is a displaced copy, or comes after the first of them."""
        where = self.found[self.patch.address + offset]
        return where.in_copy or where.original != self.site

    def run(self, todo: list[tuple[int, Where]] | None = None) -> bool:
        """Follow every way, from the start of the patch if not from ``todo``; return whether all was understood."""
        if todo is None:
            start = initial()
            if self._retargeted and self.planned.insns[0].flow is Flow.CALL:
                start = initial(_CALL_PUSHED)
            todo = [(self.patch.address, Where(start, Replay(start), self.site, in_copy=False))]
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

    def _arrive(self, at: int, where: Where) -> Where:
        """Take note of a displaced copy that begins here."""
        if at == self.patch.after:
            where = where._replace(entered=True)
        original = self._copies.get(at)
        if original is None or where.in_copy:
            return where
        half_done = original != self.site and is_repeated(self._originals[original])
        return where._replace(original=original, in_copy=True, replay=None if half_done else where.replay)

    def _follow(self, at: int, where: Where) -> list[tuple[int, Where]] | None:
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
        effect = self._counted(one, where.state)
        if effect is not None:
            where = where._replace(effects=(*where.effects, effect))
        following = self._stepped(one, where)
        return None if following is None else [(at + one.len, following)]

    def _stepped(self, one: Instruction, where: Where) -> Where | None:
        """Return where a pass is after an anyprobe instruction."""
        raw, replay = self._raw(one), where.replay
        if one.code == Code.LEA_R64_M and one.op0_register == Register.R13 and one.is_ip_rel_memory_operand:
            where = _called_by_kernel(where)
            replay = where.replay
        state = step(where.state, one, raw)
        if state is None:
            return None
        if replay is not None:
            since = state if replay.state is where.state else step(replay.state, one, raw)
            replay = None if since is None else Replay(since, *replay[1:])
        return Where(state, replay, *where[2:])

    def _raw(self, one: Instruction) -> bytes:
        offset = one.ip - self.patch.address
        return self.patch.code[offset : offset + one.len]

    def _branch(self, at: int, one: Instruction, flow: Flow, where: Where) -> list[tuple[int, Where]] | None:
        target = one.near_branch_target
        inside = self.patch.address <= target < self.patch.end
        if flow is Flow.JUMP and not where.in_copy and target in self.bearings.routines:
            return [(at + one.len, where)]  # the check of a signal handler comes back
        if not where.in_copy:
            ways = [(target, where)] if inside else []
            return ways if flow is Flow.JUMP else [*ways, (at + one.len, where)]
        if flow is Flow.JUMP:
            return []  # on to the program, or past the jump that `loop` may take: see `_hop`
        original = self._originals[where.original]
        if one.is_loop or one.is_loopcc or one.is_jcx_short:
            return self._hop(at, one, original)
        ways = [(at + one.len, self._next(original, where))]
        if inside:
            ways.append((target, where._replace(in_copy=False)))
        return ways

    def _hop(self, at: int, one: Instruction, original: Insn) -> list[tuple[int, Where]]:
        """``loop`` and ``jrcxz``: ``loop +2; jmp past; jmp target; past:``; nothing is known in between."""
        past = at + one.len + 2 + 5
        return [(past, Where(initial(), None, original.end + self.bias, in_copy=False))]

    def _next(self, original: Insn, where: Where) -> Where:
        """Return the state after a displaced copy: that of the program before the next instruction."""
        replay = None if where.replay is None else replay_after(where.replay, original)
        effects = () if replay is None else where.effects
        return Where(initial(), replay, original.end + self.bias, in_copy=False, effects=effects, entered=where.entered)

    def _displaced(self, one: Instruction, flow: Flow, where: Where) -> list[tuple[int, Where]] | None:
        """Follow the copy of a displaced instruction."""
        original = self._originals[where.original]
        if original.is_call:
            pushed = self._stepped(one, where) if flow is Flow.NEXT else where
            if pushed is None:
                return None
            return [(one.ip + one.len, pushed)] if flow is Flow.NEXT else []
        if flow is not original.flow and original.flow is not Flow.SYSCALL:
            return None
        return [(one.ip + one.len, self._next(original, where))] if original.falls_through else []

    def _call(self, one: Instruction, where: Where) -> list[tuple[int, Where]] | None:
        """Follow a call of a routine, which preserves everything; its argument has just been pushed."""
        target, effects = one.near_branch_target, where.effects
        if target not in self.bearings.code:
            return None
        kind, bank = self.bearings.routines.get(target, (EffectKind.UNKNOWN, 0))
        if kind is not None:
            place = one.ip - 4 - self.patch.address
            effects = (*effects, Effect(kind, bank, self._word(place), place))
        return [(one.ip + one.len, where._replace(effects=effects))]

    def _word(self, place: int) -> int:
        return int.from_bytes(self.patch.code[place : place + 4], "little")

    def _counted(self, one: Instruction, state: State) -> Effect | None:
        """Return the effect of an anyprobe instruction that writes memory other than the stack, as counters do."""
        if one.op0_kind != OpKind.MEMORY or one.memory_base == Register.RSP or one.mnemonic in _READERS:
            return None
        if one.code == Code.MOV_RM8_IMM8 and one.memory_base == Register.RIP:
            return None  # a flag: it is set again when the thread comes by again
        if one.mnemonic != Mnemonic.INC:
            return _UNKNOWN[0]
        place = one.ip + one.len - 4 - self.patch.address
        if one.memory_base == Register.RIP:
            return Effect(EffectKind.COUNTED_NEAR, 0, one.ip_rel_memory_address, place)
        base = number_of(one.memory_base)
        held = state.registers[base] if base >= 0 else None
        bank = self.bearings.slots.get(held[1]) if held is not None and held[0] == BLOCK else None
        return _UNKNOWN[0] if bank is None else Effect(EffectKind.COUNTED, bank, self._word(place), place)


def _called_by_kernel(where: Where) -> Where:
    """Return the same where it has been seen that the kernel calls a signal handler."""
    state, replay = with_frame(where.state), where.replay
    return where._replace(state=state, replay=replay and replay._replace(state=with_frame(replay.state)))


def _meet(one: Where, other: Where) -> Where | None:
    """Return what holds where two ways come together."""
    state = meet(one.state, other.state)
    if state is None or one.original != other.original or one.in_copy != other.in_copy:
        return None
    replay = None
    if one.replay is not None and other.replay is not None and one.replay[1:] == other.replay[1:]:
        since = meet(one.replay.state, other.replay.state)
        replay = None if since is None else one.replay._replace(state=since)
    done = [(effect.kind, effect.bank, effect.argument) for effect in one.effects]
    same = done == [(effect.kind, effect.bank, effect.argument) for effect in other.effects]
    effects, entered = one.effects if same else _UNKNOWN, one.entered or other.entered
    return one._replace(state=state, replay=replay, effects=effects, entered=entered)


def recipes(walk: Walk, dead: Mapping[int, "Dead"], *, looped: bool = False) -> Positions:
    """Return the recipes of what a walk has come by, by offset; none of what is not understood.

    ``looped``: branches back to the entry go to the displaced copy, so that a thread that is there may not have been
    counted.
    """
    patch = walk.patch
    found: dict[int, Recipe] = {}
    for at, where in walk.found.items():
        recipe = _recipe(walk, at, where, dead)
        over = any(effect.kind is EffectKind.LEFT for effect in where.effects)
        if recipe is not None and looped and where.entered and not over and recipe[0].op is not Op.FOLLOW:
            recipe = (Step(Op.IF_INTERRUPTED), *recipe)
        if recipe is not None:
            found[at - patch.address] = recipe
    return found


class Dead(NamedTuple):
    """What a patch does not give back at an instruction: the planner has found that it is not read."""

    registers: frozenset[int] = frozenset()
    flags: bool = False


def overwritten(walk: Walk) -> dict[int, Dead]:
    """Return what the patch does not give back, by original instruction."""
    dead: dict[int, Dead] = {}
    for at, where in walk.found.items():
        jumps = walk.insns[at].code == Code.JMP_REL32_64
        leaves = jumps and not walk.patch.address <= _target(walk, at) < walk.patch.end
        leaves = leaves and _target(walk, at) not in walk.bearings.routines  # what a check gives back
        if where.in_copy or leaves:
            known = dead.get(where.original, Dead())
            registers = known.registers.union(where.state.lost())
            dead[where.original] = Dead(registers, known.flags or not where.state.flags)
    return dead


def _target(walk: Walk, at: int) -> int:
    return walk.insns[at].near_branch_target


def _recipe(walk: Walk, at: int, where: Where, dead: Mapping[int, Dead]) -> Recipe | None:
    """Return the recipe for one boundary, if there is one."""
    one, state = walk.insns[at], where.state
    here = dead.get(where.original, Dead())
    complete = here.registers.issuperset(state.lost()) and (state.flags or here.flags)
    leaves = one.code == Code.JMP_REL32_64 and _target(walk, at) not in walk.bearings.code
    if leaves and complete and state.shift == _shift_when_over(walk, where):
        return (Step(Op.FOLLOW), _DONE)
    if any(effect.kind is EffectKind.LEFT for effect in where.effects):
        return _over(walk, at, where, restoring(state, here.registers, flags_dead=here.flags))
    rolled = _rolled_back(walk, where, dead.get(walk.site, Dead()))
    if not where.in_copy:
        return rolled
    if where.original == walk.site:
        now = restoring(state, here.registers, flags_dead=here.flags) or ()
        faulted: Recipe = (*now, Step(Op.SITE), _DONE)
    elif walk.is_in_place(where.original) and where.replay is not None and where.replay.state == state:
        faulted = (Step(Op.SITE, b=where.original - walk.site), _DONE)
    else:
        faulted = (_DONE,)
    if faulted == (rolled or (_DONE,)):
        return rolled
    rolled = rolled or (_DONE,)  # a handler that has run is not taken back; a fault here is the program's all the same
    return (Step(Op.IF_SYNCHRONOUS, b=STEP_BYTES * len(rolled)), *rolled, *faulted)


def _rolled_back(walk: Walk, where: Where, dead: Dead) -> Recipe | None:
    """Return the recipe that goes back to the site and takes back what has been counted since."""
    replay = where.replay
    if replay is None:
        return None
    flags_dead = dead.flags or replay.flags_dead
    restore = restoring(replay.state, dead.registers | replay.dead(), flags_dead=flags_dead)
    undo = walk.taking_back(where.effects)
    # once more: if the site is where a signal handler begins, there is another frame to put right
    return None if restore is None or undo is None else (*restore, *undo, Step(Op.SITE), Step(Op.AGAIN))


def _over(walk: Walk, at: int, where: Where, restore: Recipe | None) -> Recipe | None:
    """Return the recipe where an exit is recorded, and nothing is left to do before the way out."""
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
    if one.code == Code.JMP_REL32_64 and _target(walk, out) not in walk.bearings.code:
        return (*restore, Step(Op.FOLLOW, b=out - at), _DONE)
    return None


def _shift_when_over(walk: Walk, where: Where) -> int:
    """Return where the stack pointer is once the displaced instruction has run: a call has pushed."""
    insns = walk.planned.insns
    original = next((insn for insn in insns if insn.address + walk.bias == where.original), None)
    return _CALL_PUSHED if original is not None and original.is_call else 0
