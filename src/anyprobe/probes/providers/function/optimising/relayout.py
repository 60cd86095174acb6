"""Relayout: functions run elsewhere, side by side, and what calls them leads there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.liveness.module import ModuleLiveness
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.probes.target_errors import typed
from anyprobe.splice.codegen.moved.bodies import Body
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, Module
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost

_NEAR_JUMP = 5
"""Bytes of a call or jump of which the displacement can be changed, at least."""


@dataclass(eq=False, slots=True)
class Moved:
    """A function that is to run elsewhere."""

    module: Module
    code: FunctionCode
    cold: frozenset[int] = frozenset()
    """Where blocks begin that have not run."""
    values: Mapping[int, int] = field(default_factory=dict)
    """What it is specialised for: values of registers at its entry, by their numbers."""
    body: Body = field(init=False)
    want: Want = field(init=False)
    calls: list[tuple[FunctionCode, Want]] = field(default_factory=list)
    """What leads to it and can lead to its copy, with the functions that this is in."""

    def __post_init__(self) -> None:
        """Want it at its entry."""
        self.body = Body(self.code, self.cold, self.values, self._are_flags_dead)
        self.want = Want(self.code.entry, WantKind.ENTRY, tag=Hook(ActionKind.MOVE, body=self.body))

    def _are_flags_dead(self, address: int) -> bool:
        return self.module.code.analyses.get(ModuleLiveness).scratch(self.code, address).flags_dead

    @property
    def hook(self) -> Hook:
        """What became of it."""
        hook = self.want.tag
        assert isinstance(hook, Hook)
        return hook

    @property
    def refusal(self) -> Refusal | None:
        """Why it cannot be moved, whatever its entry is like."""
        if self.module.code.text.is_go:
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, self.code.start, "Go's runtime has to know every pc")
        return self.body.refusal

    def find_calls(self) -> None:
        """Find the direct calls of the function, and the jumps from other functions to it."""
        code, code_map = self.code, self.module.code
        for target in {code.start, code.entry}:
            for source in code_map.entries.sources_of(target):
                caller = code_map.containing(source)
                insn = None if caller is None else caller.covering(source)
                if caller is None or insn is None or insn.target != target or not _can_lead_elsewhere(insn):
                    continue
                if insn.flow is Flow.JUMP and caller is code:
                    continue  # a loop: it is in the copy
                hook = Hook(ActionKind.REBIND, body=self.body)
                self.calls.append((caller, Want(insn.address, WantKind.OFFSET, tag=hook, in_place=True)))


def _can_lead_elsewhere(insn: Insn) -> bool:
    return insn.flow in (Flow.CALL, Flow.JUMP) and insn.length >= _NEAR_JUMP


class Relayout:
    """Some functions of one process that can run elsewhere, or where they are."""

    def __init__(self, host: "ProbeHost", functions: Sequence[Moved]) -> None:
        """Take the functions in the order in which they are to lie; nothing is changed yet."""
        self._host, self.functions = host, functions
        self.refused: dict[Moved, Refusal] = {}
        """Functions that have to stay, and why."""

    @property
    def moved(self) -> Sequence[Moved]:
        """The functions that run elsewhere now."""
        return [each for each in self.functions if each.hook.armed]

    @property
    def bytes(self) -> int:
        """How many bytes of code run elsewhere."""
        return sum(len(each.body.patch.code) for each in self.functions if each.body.patch is not None)

    def rebound(self) -> int:
        """Return how many calls and jumps lead to copies now."""
        return sum(hook.armed for each in self.functions for hook in map(_hook, each.calls))

    def apply(self) -> None:
        """Have the functions run elsewhere: first all copies, then what leads to them."""
        for each in self.functions:
            if (why := each.refusal) is not None:
                self.refused[each] = why
        wanted = [each for each in self.functions if each not in self.refused]
        for each in wanted:
            for hook in map(_hook, [(each.code, each.want), *each.calls]):
                hook.refusal = None
        self._change([(each, each.code, each.want) for each in wanted])
        self.refused |= {each: each.hook.refusal for each in wanted if each.hook.refusal is not None}
        self._change([(each, *call) for each in self.moved for call in each.calls])

    def revert(self) -> None:
        """Have all functions run where they are, as before, threads that are in them included."""
        places = [(each, *call) for each in self.functions for call in each.calls]
        places += [(each, each.code, each.want) for each in self.functions]
        self._change([place for place in places if _hook(place[1:]).armed], remove=True)

    def _change(self, places: Iterable[tuple[Moved, FunctionCode, Want]], *, remove: bool = False) -> None:
        change(self._host, ((each.module, code, want) for each, code, want in places), remove=remove)


def change(host: "ProbeHost", places: Iterable[tuple[Module, FunctionCode, Want]], *, remove: bool = False) -> None:
    """Have places of functions spliced, or no more, in one change."""
    edits: dict[int, Edit] = {}
    for module, code, want in places:
        state = module.state_of(code)
        edit = edits.setdefault(id(state), Edit(module, state))
        (edit.removed if remove else edit.added).append(want)
    with host.lock, typed(host.process, "moving functions of"):
        host.engine.change(list(edits.values()))


def _hook(call: tuple[FunctionCode, Want]) -> Hook:
    hook = call[1].tag
    assert isinstance(hook, Hook)
    return hook
