"""From the sites of a probe to its places: the instructions to splice, and what each is spliced for."""

from collections.abc import Callable, Sequence

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import (
    Place,
    Probe,
    Timed,
    exit_want,
    exits_of,
    has_exits,
    instructions_of,
)
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.specs.dtrace import EACH
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Module
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook, TimingGroup

_SAID = {
    "insn": "instruction",
    "block": "basic block",
    "run": "run of instructions",
    "call": "call",
    "store": "store",
    "taken": "conditional jump",
    "undecided": "conditional jump",
}

_JUMPS = frozenset({"taken", "undecided"})
_RARE = _JUMPS | {"store"}


def survey(sites: Sequence[ResolvedSite], module_of: Callable[[LoadedObject], Module], *, timed: bool) -> None:
    """Look at all functions of an object at once where so many of them are wanted that this pays."""
    if len(sites) > 1:
        from anyprobe.probes.providers.function.wholesale import surveyed  # a count of one function has no use for it

        for loaded in surveyed(sites, timed=timed):
            module_of(loaded).code.survey()


def add_counted(probe: Probe, site: ResolvedSite, code: FunctionCode, module: Module) -> None:
    """Add the places at which a site is counted, or the refusal."""
    if site.kind == "return":
        _add_exits(probe, site, code, module)
    elif site.kind in EACH:
        first = len(probe.places)
        _add(probe, site, code, module, instructions_of(code, site.kind, site.pattern), WantKind.OFFSET)
        if site.kind == "run":
            from anyprobe.binary.flow.blocks import run_sizes

            places = probe.places[first:]
            for place, size in zip(places, run_sizes(code, [each.want.address for each in places]), strict=True):
                place.size = size
        for doubt in code.reachability.in_doubt():
            probe.refuse(site, doubt, module)
    elif site.kind == "entry":
        _add(probe, site, code, module, (code.entry,), WantKind.ENTRY)
    else:
        why = off_boundary(site, code, module)
        if why is None:
            _add(probe, site, code, module, (site.function.start + site.offset,), WantKind.OFFSET)
        else:
            probe.refused.append((site.canonical, why))


def off_boundary(site: ResolvedSite, code: FunctionCode, module: Module) -> Refusal | None:
    """Return a refusal that names the nearest instructions if a site is an offset at which none starts."""
    address = site.function.start + site.offset
    if site.kind not in {"offset", "usdt"} or code.is_boundary(address):
        return None
    in_module = ":-:" in site.canonical  # as the user counts
    places = [at if in_module else at - site.function.start for at in code.boundaries_near(address)]
    near = ", ".join(f"{'' if in_module else '+'}{at:#x}" for at in places)
    detail = f"no instruction starts here; nearest: {near}"
    return Refusal(Reason.NOT_A_BOUNDARY, address + module.bias, detail)


def check_places(probe: Probe, beside: Probe | None, sites: Sequence[ResolvedSite]) -> None:
    """Raise ``SpecError`` where the functions of a spec have nothing of what it asks for; ``beside``: see ``_make``."""
    for made in (probe, *([beside] if beside is not None else [])):
        if made.means_something or made.exitless:
            return
    kinds = {site.kind for site in sites} & EACH - _RARE  # there are functions without, and that is no mistake
    if kinds:
        of = sites[0].name if len(sites) == 1 else f"any of {len(sites)} functions"
        raise probe.wanted.name_error(f"there is no {_SAID[kinds.pop()]} in {of}")


def _add(
    probe: Probe, site: ResolvedSite, code: FunctionCode, module: Module, addresses: Sequence[int], kind: WantKind
) -> None:
    if not addresses:
        return
    state = module.state_of(code)
    guard = site.marker.semaphore if site.marker is not None else 0
    semaphore = site.object.runtime(guard) if guard else 0
    for address in addresses:
        hook = Hook(ActionKind.FLAG if probe.sets_flags else ActionKind.COUNT, semaphore=semaphore)
        want = Want(address, kind, conditional=site.kind in _JUMPS, tag=hook)
        probe.places.append(Place(site, module, state, want, hook))


def _add_exits(probe: Probe, site: ResolvedSite, code: FunctionCode, module: Module) -> None:
    if not has_exits(probe, site, code, module, timed=False):
        return
    group, state = object(), module.state_of(code, [each.address for each in code.exits.found])
    for each in code.exits.found:
        hook = Hook(ActionKind.COUNT, group)
        probe.places.append(Place(site, module, state, exit_want(each, hook), hook, each))


def add_timed(
    probe: Probe, site: ResolvedSite, code: FunctionCode, module: Module, *, in_callers: bool = False
) -> None:
    """Add the places at which a function's calls are timed, or the refusal; ``in_callers``: these end there only."""
    if in_callers and not site.object.image.is_go:  # goroutines move between threads
        _add_timed_in_callers(probe, site, code, module)
        return
    if not has_exits(probe, site, code, module, timed=True):
        return
    from anyprobe.probes.providers.function.timing.transfers import (
        hands_over,  # of control flow, which plain counts may not need
    )

    group = TimingGroup()
    timed = Timed(site, group)
    exits = exits_of(code, module)
    state = module.state_of(code, [each.address for each in exits.found] if len(exits.parts) > 1 else ())
    hook = Hook(ActionKind.ENTER, group)
    timed.places.append(Place(site, module, state, Want(code.entry, WantKind.ENTRY, tag=hook), hook))
    for each in exits.found:
        ends = each.kind == "ret" or (not site.object.image.is_go and hands_over(site.function.names, each))
        hook = Hook(ActionKind.LEAVE if ends else ActionKind.LEAVE_TAIL, group)
        timed.places.append(Place(site, module, state, exit_want(each, hook), hook, each))
    if site.object.image.is_go:
        from anyprobe.probes.providers.function.timing.go_tails import follow_jumps

        follow_jumps(timed, code, module, exits.found)
    probe.timed.append(timed)


def _add_timed_in_callers(probe: Probe, site: ResolvedSite, code: FunctionCode, module: Module) -> None:
    """Add the entry alone: each call begins there, and leaves by a jump at once."""
    group, state = TimingGroup(), module.state_of(code)
    timed = Timed(site, group)
    for kind in (ActionKind.ENTER, ActionKind.LEAVE_TAIL):
        hook = Hook(kind, group)
        timed.places.append(Place(site, module, state, Want(code.entry, WantKind.ENTRY, tag=hook), hook))
    probe.timed.append(timed)
