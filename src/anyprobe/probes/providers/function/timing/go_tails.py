"""Calls of Go functions that end in a jump to another one, as methods' wrappers do: they end where that one returns.

The other function's returns are spliced for them, too. What is jumped to by a jump through a pointer, or is no compiled
Go function whose returns are all known, is not followed: such calls are counted as ``tail_exits``.
"""

from collections.abc import Iterable
from dataclasses import replace

from anyprobe.binary.flow.exits import Exit, ExitKind
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.liveness.goroutine_register import fetches_goroutine
from anyprobe.probes.providers.function.probe import Place, Probe, Timed, edits_for, exit_want, exits_of
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, Module
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.regions.code_region import GoroutineBank

_MOST_JUMPS = 8


def follow_jumps(timed: Timed, code: FunctionCode, module: Module, exits: Iterable[Exit]) -> None:
    """Add the places where calls of a function arrive, go on and end that leave it by jumps, if these are all known."""
    jumps = [each for each in exits if each.kind is ExitKind.TAIL]
    reached: dict[int, tuple[FunctionCode, int]] = {}
    if not jumps or not all(_reach(reached, code, module, each, 1) for each in jumps):
        return
    for place in timed.places:
        if place.hook.kind is ActionKind.LEAVE_TAIL:
            place.hook.jumps = 1
    for other, number in reached.values():
        _add(timed, module, other, Want(other.entry, WantKind.ENTRY), Hook(ActionKind.ARRIVE, timed.group), None)
        for each in exits_of(other, module).found:
            kind, jumped = (ActionKind.LEAVE_TAIL, 1) if each.kind is ExitKind.TAIL else (ActionKind.LEAVE_CALLER, 0)
            _add(timed, module, other, exit_want(each), Hook(kind, timed.group, jumps=number + jumped), each)


def _add(timed: Timed, module: Module, code: FunctionCode, want: Want, hook: Hook, leaving: Exit | None) -> None:
    state = module.state_of(code)
    place = Place(timed.site, module, state, replace(want, tag=hook), hook, leaving)
    timed.points[place.address] = place


def _reach(
    reached: dict[int, tuple[FunctionCode, int]], code: FunctionCode, module: Module, jump: Exit, jumps: int
) -> bool:
    """Add the functions that a jump leads to, with how many jumps come before; return whether these are all."""
    known = module.code.text.go_functions
    other = module.code.function_at(jump.target) if jump.target is not None and not jump.indirect else None
    if known is None or not isinstance(other, FunctionCode) or other.entry != jump.target or jumps > _MOST_JUMPS:
        return False
    if other.start == code.start or not known.is_compiled(other.start) or fetches_goroutine(other):
        return False
    exits = exits_of(other, module)
    if len(exits.parts) != 1 or exits.complete is not None or exits.unmatched is not None:
        return False
    if other.start in reached and reached[other.start][1] >= jumps:
        return True
    reached[other.start] = other, jumps
    tails = [each for each in exits.found if each.kind is ExitKind.TAIL]
    return all(_reach(reached, code, module, each, jumps + 1) for each in tails)


def given_up(probes: Iterable[Probe]) -> list[Edit]:
    """Return the edits of functions whose jumps cannot be followed after all: a return could not be spliced."""
    edits: list[Edit] = []
    leaving: list[Place] = []
    for timed in (timed for probe in probes for timed in probe.timed):
        points = list(timed.points.values())
        if not isinstance(timed.group.bank, GoroutineBank) or not points:
            continue
        if timed.armed and all(place.hook.armed for place in points):
            continue
        leaving += [place for place in points if place.hook.armed]
        timed.unseen |= {place.address: place.hook.refusal for place in points if place.hook.refusal is not None}
        timed.points.clear()
        for place in timed.places:
            place.hook.jumps = 0
        if timed.armed:
            edits.append(Edit(timed.places[0].module, timed.places[0].state.root, anew=True))
    return [*edits, *edits_for(leaving, remove=True)]
