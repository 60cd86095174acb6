"""Changing how probes are reached, or in which order they run, while they stay armed: one stop, and no hit is lost."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.function.wanted import trapping
from anyprobe.probes.target_errors import typed
from anyprobe.splice.edits import Edit, FunctionState, Module
from anyprobe.splice.plan.splices import AUTO, Strategy

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Place, Probe

TRAPS = frozenset([Strategy.TRAP])
PATIENCE, PAUSE = 2.0, 0.001


def keep_order(session: "ProbeHost", probes: Sequence["Probe"]) -> None:
    """Have armed probes run in the order given, where several are at one instruction."""
    places = [place for probe in probes for place in probe.places if place.hook.armed]
    ranks = {id(place.want): rank for rank, place in enumerate(places)}
    wrong = []
    for state, module in {place.state.root: place.module for place in places}.items():
        own = [want for want in state.wants if id(want) in ranks]
        ordered = sorted(own, key=lambda want: ranks[id(want)])
        if _at_same_address(own) != _at_same_address(ordered):
            following = iter(ordered)
            state.reorder([next(following) if id(want) in ranks else want for want in state.wants])
            wrong.append(Edit(module, state, anew=True))
    with typed(session.process, "arming probes in"):
        session.engine.change(wrong)


def keep_order_of_handlers(session: "ProbeHost", probes: Sequence["Probe"]) -> None:
    """Have the handlers of probes that were armed again run where they did before, not after those that stayed."""
    if any(place.hook.handler is not None for probe in probes for place in probe.places):
        keep_order(session, [each for each in session.probes if any(place.hook.handler for place in each.places)])


def _at_same_address(wants: Iterable[object]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for want in wants:
        found.setdefault(want.address, []).append(id(want))  # type: ignore[attr-defined]
    return found


def switch_optimization(session: "ProbeHost", probes: Sequence["Probe"], *, on: bool) -> list[str]:
    """Have probes reached by jumps, or by traps; return what stays as it is, and why.

    Traps are left out where they could kill. What is registered later follows suit.
    """
    planning = session.splicing.planning
    if not on and trapping.WARNING not in session.warnings:
        session.warn(trapping.WARNING)
    planning.allow(AUTO | TRAPS if on else TRAPS)  # what cannot be a jump stays a trap
    states: dict[FunctionState, Module] = {}
    staying = []
    for place in (place for probe in probes for place in probe.places if place.hook.armed):
        why = None if on else _trap_refusal(session, place)
        if why is not None:
            staying.append(f"{place.site.canonical} stays optimized: {why}")
        else:
            states[place.state.root] = place.module
    try:
        staying += [f"{refusal}" for refusal in _replanned(session, states)]
    finally:
        planning.allow(AUTO if on else TRAPS)
    return staying


def _replanned(session: "ProbeHost", states: "dict[FunctionState, Module]") -> list[Refusal]:
    """Plan functions anew. Where a thread stands at a trap just now, that is tried again for a while."""
    deadline = time.monotonic() + PATIENCE
    while True:
        edits = [Edit(module, state, anew=True) for state, module in states.items()]
        with typed(session.process, "arming probes in"):
            session.engine.change(edits)
        failed = {edit.state: edit for edit in edits if edit.refusal is not None}
        if not failed or time.monotonic() > deadline:
            return [edit.refusal for edit in failed.values() if edit.refusal is not None]
        states = {state: edit.module for state, edit in failed.items()}
        time.sleep(PAUSE)


def _trap_refusal(session: "ProbeHost", place: "Place") -> object:
    return trapping.trap_refusal(session.objects, place.site)
