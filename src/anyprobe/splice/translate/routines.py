"""The recipes of the routines that patches share: out of them, to the call or behind it."""

from collections.abc import Sequence

from iced_x86 import Decoder, Instruction

from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.splice.translate.abstract_state import State, initial, meet, step
from anyprobe.splice.translate.progress import Progress, Stretch
from anyprobe.splice.translate.steps import BACK, FORWARD, Op, Positions, Recipe, Step, restoring

_INNER = {
    "acquire": frozenset({0, 1, 2}), "acquire_new": frozenset({0, 1, 2}), "adopt": frozenset({0, 1}),
    "process": frozenset({0, 1}), "now": frozenset({0}),
    "find": frozenset({1, 8, 9, 10, 11}), "block": frozenset({1, 10}),
}  # fmt: skip
"""What the routines that only routines call do not preserve; flags neither, but for ``now``."""
_EXITS = ("leave_tail", "leave_caller", "leave")


_VIEW_SHIFT = -104
"""The stack pointer while a recipe is followed, when no step has pushed anything."""


def routine_positions(
    code: bytes, address: int, stretches: Sequence[Stretch], bank: int = 0, finish: int = 0
) -> Positions:
    """Return the recipes of some routines, by offset.

    ``bank`` is where their bank is described, ``finish`` how far behind them the copies are that finish an exit.
    """
    insns = {one.ip: one for one in Decoder(64, code, ip=address)}
    inner = {stretch.start: _INNER[stretch.name] for stretch in stretches if stretch.name in _INNER}
    found: dict[int, Recipe] = {}
    for stretch in stretches:
        if not stretch.begins:
            continue
        dead = inner.get(stretch.start, frozenset())
        for at, state in _states(insns, code, address, stretch.start, inner).items():
            one = insns[at]
            calls = FLOWS[one.code] is Flow.CALL  # who has just been taken out of there has lost registers by it
            known = _called(state, inner.get(one.near_branch_target, frozenset())) if calls else state
            recipe = _recipe(stretches, at, known, dead, bank, finish)
            if recipe is not None:
                found[at - address] = recipe
    return found


def _recipe(
    stretches: Sequence[Stretch], at: int, state: State, dead: frozenset[int], bank: int, finish: int
) -> Recipe | None:
    stretch = next(s for s in stretches if s.start <= at < s.end)
    if stretch.progress is Progress.HALF:
        return _finishing(stretches, stretch, state, finish)
    restore = restoring(state, dead, flags_dead=bool(dead))
    if restore is None:
        return None
    if stretch.progress is Progress.RESERVED:
        return (*restore, Step(Op.UNRESERVE, b=bank), *BACK)
    return (*restore, *(BACK if stretch.progress is Progress.BACK else FORWARD))


def _finishing(stretches: Sequence[Stretch], stretch: Stretch, state: State, finish: int) -> Recipe | None:
    """Return the recipe that brings an exit's recording to its end, or what a view was doing."""
    if stretches[0].name == "view":
        done = next(s.start for s in stretches if s.name == "done")
        finished = (Step(Op.FINISH_VIEW, b=finish), Step(Op.SITE, b=done - stretches[0].start), Step(Op.AGAIN))
        return finished if state.shift == _VIEW_SHIFT else None
    name = next((each for each in _EXITS if stretch.name.startswith(each)), None)
    if name is None:
        return None
    done = next(s.start for s in stretches if s.name == name + "_done")
    return (Step(Op.FINISH, b=finish), Step(Op.SITE, b=done - stretches[0].start), Step(Op.AGAIN))


def _states(
    insns: dict[int, Instruction], code: bytes, address: int, start: int, inner: dict[int, frozenset[int]]
) -> dict[int, State]:
    """Follow every way through one routine."""
    states: dict[int, State] = {}
    todo = [(start, initial())]
    while todo:
        at, state = todo.pop()
        if at in states:
            both = meet(states[at], state)
            if both is None or both == states[at]:
                continue
            state = both
        states[at] = state
        one = insns[at]
        flow = FLOWS[one.code]
        if flow in (Flow.JUMP, Flow.JCC):
            todo.append((one.near_branch_target, state))
        if flow is Flow.CALL:
            state = _called(state, inner.get(one.near_branch_target, frozenset()))
        elif flow in (Flow.NEXT, Flow.SYSCALL):
            following = step(state, one, code[at - address : at - address + one.len])
            if following is None:
                continue  # what comes behind is on a stack of its own making, and stays as it is
            state = following if flow is Flow.NEXT else _called(following, frozenset({0}))
        if flow in (Flow.NEXT, Flow.JCC, Flow.CALL, Flow.SYSCALL):
            todo.append((at + one.len, state))
    return states


def _called(state: State, lost: frozenset[int]) -> State:
    """Return the state behind a call of a routine of ours."""
    registers = tuple(None if number in lost else value for number, value in enumerate(state.registers))
    flags = lost <= _INNER["now"]
    return state._replace(registers=registers, overflow=state.overflow and flags, others=state.others and flags)
