"""Recipes: how to show the program a state of its own where a thread is in anyprobe's code.

For each instruction boundary in a patch or routine at which that can be said, a recipe turns the registers of a thread
there into those that it has at the site, as if the pass had not begun (what it has counted is taken back), or after
the displaced instructions, as if it were over. Each result is a state in which the thread can go on, so recipes may be
applied one after another: out of a routine into the patch that called it, out of the patch.

A pc that is shown can always be returned to. So no pc between displaced instructions is ever shown: there the true one
stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from anyprobe.splice.translate.abstract_state import FLAGS, FLAGS_OF, IMAGE, ORIGINAL, RAX, State, raised_by


class Op(IntEnum):
    """What one step of a recipe does to the registers in a signal frame."""

    DONE = 0
    AGAIN = 1
    """The pc is another one of anyprobe's: look it up."""
    MOVE = 2
    """Register ``a`` is the one numbered ``b``."""
    LOAD = 3
    """Register ``a`` is the word at the stack pointer plus ``b``."""
    FLAGS_IN = 4
    """The status flags are in register ``a``, as ``lahf; seto al`` leave them."""
    FLAGS_AT = 5
    """The flags are the word at the stack pointer plus ``b``."""
    HIGH_FLAGS_IN = 6
    """All status flags but overflow, which is in place, are in bits 8 to 15 of register ``a``."""
    FLAGS_IMAGE = 7
    """All flags are what ``pushfq`` has pushed at the stack pointer plus ``b``."""
    STACK = 8
    """The stack pointer rises by ``b``."""
    SITE = 9
    """The pc is the patch's site plus ``b``."""
    FOLLOW = 10
    """The pc is where the jump at the pc leads."""
    CALLER = 11
    """The pc is the word on top of the stack, which is popped, plus ``b``."""
    RETURN = 12
    """The same, and ``b`` more bytes are popped."""
    UNCOUNT = 13
    """Take back a hit; ``c`` is where in the patch the counter's offset stands, ``b`` where the bank is described."""
    UNCOUNT_NEAR = 14
    """Take back a hit of a counter that the displacement at ``c`` in the patch leads to."""
    UNENTER = 15
    """Take back the timing of a call, or its miss; ``c`` and ``b`` as for ``UNCOUNT``."""
    UNRESERVE = 16
    """Give back the instance reserved last, which is not filled; ``b`` is where the bank is described."""
    IF_SYNCHRONOUS = 17
    """Where the instruction at the pc has faulted, skip ``b`` bytes of the recipe."""
    IF_INTERRUPTED = 18
    """Where the thread was interrupted, nothing is to be done."""
    FINISH = 19
    """Run what is left of an exit's recording, by the copy that is ``b`` bytes after the pc."""
    FINISH_VIEW = 20
    """Follow what is left of a recipe that another handler's view was following, by such a copy."""
    LAND = 21
    """Where the instruction at the pc has faulted, the handler is over: the thread goes on at the patch's landing,
    which is ``b`` bytes after the patch's start, by the number of the trap."""
    HELD = 22
    """The pc is register ``a``."""
    RAISE = 23
    """Register ``a`` rises by ``b``."""


class Step(NamedTuple):
    """One step of a recipe."""

    op: Op
    a: int = 0
    b: int = 0
    c: int = 0


STEP_BYTES = 8
Recipe = tuple[Step, ...]
Positions = Mapping[int, Recipe]
"""Recipes by offset from the start of the code."""

BACK: Recipe = (Step(Op.CALLER, b=-5), Step(Op.AGAIN))
"""Out of a routine: to the call, as if it had not been made."""
FORWARD: Recipe = (Step(Op.CALLER), Step(Op.AGAIN))
"""After the call, as if the routine were over."""
_STATES = 1 << 12
_FRAME_ORDER = (13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7)


def frame_index(register: int) -> int:
    """Return which word of a signal frame's registers (from r8 on) holds a register."""
    return _FRAME_ORDER[register]


@lru_cache(_STATES)
def restoring(state: State, dead: frozenset[int] = frozenset(), *, flags_dead: bool = False) -> Recipe | None:
    """Return the steps that bring back registers, flags and stack pointer; ``None`` where something is lost.

    Few states differ in code that is all made alike, so what was said of one is kept.
    """
    steps: list[Step] = []
    if not state.flags and not flags_dead:
        flags = _restored_flags(state)
        if flags is None:
            return None
        steps.append(flags)
    loads: list[Step] = []
    moves: dict[int, int] = {}
    for number in state.lost():
        if number in dead:
            continue
        value = (ORIGINAL, number)
        register, word = state.register_with(value), state.word_with(value)
        if register is not None:
            moves[number] = register
        elif word is not None:
            loads.append(Step(Op.LOAD, frame_index(number), word - state.shift))
        elif by := raised_by(state.registers[number], number):
            steps.append(Step(Op.RAISE, frame_index(number), -by))
        else:
            return None
    while moves:  # nothing is overwritten that another one still has to come from
        ready = next((number for number in moves if number not in moves.values()), None)
        if ready is None:
            return None
        steps.append(Step(Op.MOVE, frame_index(ready), frame_index(moves.pop(ready))))
    steps += loads
    if state.shift:
        steps.append(Step(Op.STACK, b=-state.shift))
    return tuple(steps)


def _restored_flags(state: State) -> Step | None:
    both, image = state.word_with((FLAGS_OF, 0)), state.word_with((IMAGE, 0))
    register = state.register_with((FLAGS_OF, 0))
    if register is not None:
        return Step(Op.FLAGS_IN, frame_index(register))
    if both is not None:
        return Step(Op.FLAGS_AT, b=both - state.shift)
    if image is not None:
        return Step(Op.FLAGS_IMAGE, b=image - state.shift)
    if state.overflow and state.registers[RAX] == (FLAGS, 0):
        return Step(Op.HIGH_FLAGS_IN, frame_index(RAX))
    return None


class EffectKind(IntEnum):
    """What a pass has done that the program, or the counts, would miss or see twice."""

    COUNTED = 0
    COUNTED_NEAR = 1
    ENTERED = 2
    LEFT = 3
    UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing done; ``place`` is where in the patch the counter's or record's offset stands."""

    kind: EffectKind
    bank: int
    """Where the bank is described."""
    argument: int
    place: int


def taking_back(effects: Sequence[Effect]) -> list[Step] | None:
    """Return the steps that undo what a pass has done, latest first; ``None`` where that cannot be.

    They come after the stack pointer is back.
    """
    kinds = {
        EffectKind.COUNTED: Op.UNCOUNT,
        EffectKind.COUNTED_NEAR: Op.UNCOUNT_NEAR,
        EffectKind.ENTERED: Op.UNENTER,
    }
    steps = []
    for effect in reversed(effects):
        op = kinds.get(effect.kind)
        if op is None:
            return None
        steps.append(Step(op, b=effect.bank, c=effect.place))
    return steps
