"""What turns a probe's places, which count, into places that call a handler."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from anyprobe.binary.flow.exits import ExitKind
from anyprobe.core.code import Input, InputKind
from anyprobe.core.errors import HandlerError, UsageError
from anyprobe.isa.decode import Flow
from anyprobe.probes.providers.function.probe import HandledCalls, Place, Probe, function_of
from anyprobe.splice.codegen.handlers.facts import CallEnd, HandlerFacts
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import MOST_PLACES, CallGroup, Hook

_COMPUTED = frozenset({Flow.INDIRECT_JUMP, Flow.INDIRECT_CALL, Flow.RET})
"""What goes to an address that is known when it is executed."""

_CALLER = Input(InputKind.CONTEXT, "caller")


@dataclass(frozen=True, slots=True)
class Following:
    """How a handler of returns sees calls where their callers go on."""

    leaving: HandlerFacts
    """What is called where they leave by a jump."""
    ending: HandlerFacts
    """What is called where they end."""
    always: bool
    """Whether all calls are, from where the function is entered."""

    @classmethod
    def of(cls, facts: HandlerFacts, at_tails: HandlerFacts | None, *, always: bool = False) -> "Following | None":
        """Return it for a handler, unless that changes where the thread goes on; ``at_tails``: what runs at jumps."""
        if facts.redirects or facts.moves_stack or facts.skips:
            return None
        leaving, told = CallEnd.AT_ENTRY if always or at_tails is None else CallEnd.AT_JUMP, facts.asks_ip
        return cls(
            replace(at_tails or facts, ends=leaving, tells_ip=told),
            replace(facts, ends=CallEnd.IN_CALLER, tells_ip=told),
            always,
        )


def equip_with(
    probe: Probe,
    facts: HandlerFacts,
    at_tails: Callable[[], HandlerFacts] | None = None,
    following: Callable[[], Following | None] = lambda: None,
) -> None:
    """Have a probe's places call a handler; at tail jumps that is ``at_tails()``, or else they are only counted.

    ``following()``: how calls that leave by jumps are followed to their callers, if they are.
    """
    follow = following()
    if follow is not None and follow.always:
        _follow_from_entries(probe, follow)
        return
    tails: dict[object, list[Place]] = {}
    for place in probe.places:
        if place.exit is None or place.exit.kind is ExitKind.RET:
            call_at(place, facts)
        elif at_tails is not None or follow is not None:
            call_at(place, at_tails() if at_tails is not None else facts)
            tails.setdefault(place.hook.group, []).append(place)
    if follow is not None:
        for places in tails.values():
            _follow(probe, places, follow)


def _follow_from_entries(probe: Probe, follow: Following) -> None:
    """Have the handler run where callers go on, whatever the exits of the functions are like."""
    found = {(each.site.address, each.code.start): each for each in probe.exitless}
    found |= {(each.site.address, each.code.start): each for each in map(function_of, probe.places)}
    probe.exitless, probe.places = [], []
    for each in found.values():
        hook = Hook(ActionKind.HANDLER)
        want = Want(each.code.entry, WantKind.ENTRY, tag=hook)
        place = Place(each.site, each.module, each.module.state_of(each.code), want, hook)
        call_at(place, follow.leaving)
        probe.places.append(place)
        _follow(probe, [place], follow)


def _follow(probe: Probe, places: list[Place], follow: Following) -> None:
    """Have the handler run where the callers of one function go on that is left by jumps at some places."""
    for first in range(0, len(places), MOST_PLACES):
        own = places[first : first + MOST_PLACES]
        group = CallGroup(len(own))
        for number, place in enumerate(own):
            hook = place.hook
            hook.handler, hook.calls, hook.number = follow.leaving, group, number
        probe.handled.append(HandledCalls(own[0].site, group, follow.ending, own, whole=len(places) <= MOST_PLACES))


def equipping_after(facts: HandlerFacts) -> Callable[[Probe], None]:
    """Return what has a probe's places call a handler after their instructions."""
    if facts.moves_stack:
        raise HandlerError("the stack pointer is changed in front of an instruction, not after it")
    asking = replace(facts, takes_target=True) if facts.asks_ip else facts

    def equip(probe: Probe) -> None:
        for place in probe.places:
            if place.exit is not None:
                raise UsageError(f"{probe.spec}: name the instruction, as libc:malloc+0x1c")
            place.want = Want(place.want.address, WantKind.OFFSET, tag=place.hook, after=True)
            call_at(place, asking if _flow_at(place) in _COMPUTED else facts)

    return equip


def asks_caller(facts: HandlerFacts) -> bool:
    """Return whether a handler asks for the return address."""
    return _CALLER in facts.code.inputs


def knowing_stubs(facts: HandlerFacts, directory: int) -> HandlerFacts:
    """Return a handler that is told the true return address where one of anyprobe is in its place."""
    inputs = (Input(InputKind.CONTEXT, "true_caller") if each == _CALLER else each for each in facts.code.inputs)
    return replace(facts, code=facts.code._replace(inputs=tuple(inputs)), stubs=directory)


def equipping_for_faults(facts: HandlerFacts) -> Callable[[Probe], None]:
    """Return what has a probe's places call a handler where their instructions have faulted.

    What such a handler is told as ``ctx.caller`` is the number of the trap.
    """
    inputs = (Input(InputKind.CONTEXT, "trap") if each == _CALLER else each for each in facts.code.inputs)
    told = replace(facts, code=facts.code._replace(inputs=tuple(inputs)), takes_trap=True)

    def equip(probe: Probe) -> None:
        for place in probe.places:
            place.want = Want(place.want.address, WantKind.OFFSET, tag=place.hook)
            call_at(place, told)
            place.hook.kind = ActionKind.FAULT

    return equip


def hook_up(place: Place, facts: HandlerFacts) -> None:
    """Have one place call a handler that looks at no registers which are dead there, and sends no thread elsewhere."""
    hook = place.hook
    hook.kind, hook.handler = ActionKind.HANDLER, facts
    hook.ip, hook.function = place.address, place.site.function.start + place.module.bias


def call_at(place: Place, facts: HandlerFacts) -> None:
    """Have one place call a handler, whatever that looks at."""
    hook_up(place, facts)
    place.module.show(place.want.address)
    place.module.show(place.site.function.start)
    for each in facts.code.destinations if not place.want.after else ():
        if each.relative:
            place.module.keep_clear((place.want.address + each.value) & ((1 << 64) - 1))


def _flow_at(place: Place) -> Flow:
    insn = place.insn
    return Flow.INVALID if insn is None else insn.flow
