"""Changing how probes are reached, or in which order they run, while they stay armed: one stop, and no hit is lost."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anyprobe.probes import trapping
from anyprobe.probes.session import typed
from anyprobe.splice.edits import Edit, FunctionState
from anyprobe.splice.planned import AUTO, Strategy

if TYPE_CHECKING:
    from anyprobe.probes.probe import Place, Probe
    from anyprobe.probes.session import Session

TRAPS = frozenset([Strategy.TRAP])


def keep_order(session: "Session", probes: Sequence["Probe"]) -> None:
    """Have armed probes run in the order given, where several are at one instruction."""
    places = [place for probe in probes for place in probe.places if place.hook.armed]
    ranks = {id(place.want): rank for rank, place in enumerate(places)}
    wrong = []
    for state, module in {place.state.root: place.module for place in places}.items():
        ours = [want for want in state.wants if id(want) in ranks]
        ordered = sorted(ours, key=lambda want: ranks[id(want)])
        if _at_same_address(ours) != _at_same_address(ordered):
            following = iter(ordered)
            state.wants = [next(following) if id(want) in ranks else want for want in state.wants]
            wrong.append(Edit(module, state))
    with typed(session.engine.process, "arming probes in"):
        session.engine.change(wrong)


def _at_same_address(wants: Iterable[object]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for want in wants:
        found.setdefault(want.address, []).append(id(want))  # type: ignore[attr-defined]
    return found


def switch_optimization(session: "Session", probes: Sequence["Probe"], *, on: bool) -> list[str]:
    """Have probes reached by jumps, or by traps; return what stays as it is, and why.

    Traps are left out where they could kill. What is registered later follows suit.
    """
    engine = session.engine
    engine.allowed = AUTO if on else TRAPS
    edits: dict[FunctionState, Edit] = {}
    staying = []
    for place in (place for probe in probes for place in probe.places if place.hook.armed):
        why = None if on else _trap_refusal(session, place)
        if why is not None:
            staying.append(f"{place.site.canonical} stays optimized: {why}")
        else:
            edits.setdefault(place.state.root, Edit(place.module, place.state.root))
    with typed(engine.process, "arming probes in"):
        engine.change(list(edits.values()))
    return staying + [f"{hex(edit.state.code.start)}: {edit.refusal}" for edit in edits.values() if edit.refusal]


def _trap_refusal(session: "Session", place: "Place") -> object:
    return trapping.trap_refusal(session.objects, place.site)
