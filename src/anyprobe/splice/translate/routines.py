"""The recipes of the routines that patches share: out of them, to the call or after it."""

from bisect import bisect_right
from collections.abc import Sequence

from iced_x86 import Decoder, Instruction

from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.splice.translate.abstract_state import State, initial, meet, step, without_registers
from anyprobe.splice.translate.progress import Progress, Stretch
from anyprobe.splice.translate.steps import BACK, FORWARD, Op, Positions, Recipe, Step, frame_index, restoring
from anyprobe.splice.translate.view_check import with_frame

_INNER = {
    "acquire": frozenset({0, 1, 2}), "acquire_new": frozenset({0, 1, 2}), "adopt": frozenset({0, 1}),
    "process": frozenset({0, 1}), "now": frozenset({0}), "waited": frozenset({0}), "moment": frozenset({0, 2}),
    "purge": frozenset({0, 2, 6, 7, 8, 9, 10, 11}), "settle": frozenset({0, 8, 9}),
    "find": frozenset({1, 8, 9, 10, 11}), "block": frozenset({1, 10}),
}  # fmt: skip
"""What the routines that only routines call do not preserve; flags neither, but for ``now``."""
_FINISHED = ("leave_tail", "leave_caller", "leave_switch", "leave", "purge", "settle")
"""Routines of which there are copies that finish what was begun."""


_KEPT = 13
"""The register that has where ``check`` goes on."""
_VIEW_SHIFT = -104
"""The stack pointer while a recipe is followed, when no step has pushed anything."""


def routine_positions(
    code: bytes, address: int, stretches: Sequence[Stretch], bank: int = 0, finish: int = 0
) -> Positions:
    """Return the recipes of some routines, by offset.

    ``bank`` is where their bank is described, ``finish`` how far after them the copies are that finish them.
    """
    insns = {one.ip: one for one in Decoder(64, code, ip=address)}
    inner = {stretch.start: _INNER[stretch.name] for stretch in stretches if stretch.name in _INNER}
    starts = [stretch.start for stretch in stretches]
    halves = [stretch for stretch in stretches if stretch.progress is Progress.HALF]
    finishing = {stretch: _finishing(stretches, stretch, finish) for stretch in halves}
    found: dict[int, Recipe] = {}
    for routine in stretches:
        if not routine.begins:
            continue
        dead = inner.get(routine.start, frozenset())
        begin = with_frame(initial()) if routine.name == "check" else initial()
        for at, state in _states(insns, code, address, routine.start, inner, begin).items():
            one, stretch = insns[at], stretches[bisect_right(starts, at) - 1]
            calls = FLOWS[one.code] is Flow.CALL  # who has just been taken out of there has lost registers by it
            known = _called(state, inner.get(one.near_branch_target, frozenset())) if calls else state
            if routine.name == "check":
                recipe = _out_of_check(state)
            elif stretch.progress is not Progress.HALF:
                recipe = _recipe(stretch.progress, known, dead, bank)
            elif stretches[0].name != "view" or known.shift == _VIEW_SHIFT:
                recipe = finishing[stretch]
            else:
                recipe = None
            if recipe is not None:
                found[at - address] = recipe
    return found


def _out_of_check(state: State) -> Recipe | None:
    """Return the recipe that goes on where the check was jumped to from, which does the rest."""
    restore = restoring(state, frozenset({_KEPT}), flags_dead=True)
    return None if restore is None else (*restore, Step(Op.HELD, frame_index(_KEPT)), Step(Op.AGAIN))


def _recipe(progress: Progress, state: State, dead: frozenset[int], bank: int) -> Recipe | None:
    restore = restoring(state, dead, flags_dead=bool(dead))
    if restore is None:
        return None
    if progress is Progress.RESERVED:
        return (*restore, Step(Op.UNRESERVE, b=bank), *BACK)
    return (*restore, *(BACK if progress is Progress.BACK else FORWARD))


def _finishing(stretches: Sequence[Stretch], stretch: Stretch, finish: int) -> Recipe | None:
    """Return the recipe that brings to its end what a routine has begun, or what a view was doing."""
    if stretches[0].name == "view":
        last, op = "done", Op.FINISH_VIEW
    else:
        last, op = next((each + "_done" for each in _FINISHED if stretch.name.startswith(each)), ""), Op.FINISH
    if not last:
        return None
    done = next(s.start for s in stretches if s.name == last)
    return (Step(op, b=finish), Step(Op.SITE, b=done - stretches[0].start), Step(Op.AGAIN))


def _states(
    insns: dict[int, Instruction],
    code: bytes,
    address: int,
    start: int,
    inner: dict[int, frozenset[int]],
    begin: State,
) -> dict[int, State]:
    """Follow every way through one routine."""
    states: dict[int, State] = {}
    todo = [(start, begin)]
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
                continue  # what comes after is on a stack of its own making, and stays as it is
            state = following if flow is Flow.NEXT else _called(following, frozenset({0}))
        if flow in (Flow.NEXT, Flow.JCC, Flow.CALL, Flow.SYSCALL):
            todo.append((at + one.len, state))
    return states


def _called(state: State, lost: frozenset[int]) -> State:
    """Return the state after a call of an anyprobe routine."""
    state, flags = without_registers(state, lost), lost <= _INNER["now"]
    return state._replace(overflow=state.overflow and flags, others=state.others and flags)
