"""Which registers and flags code inserted before any instruction of a function may destroy.

The blocks of a function are looked at together, backwards until nothing changes; what other functions overwrite before
they read it is taken from ``liveness.entry``, and as there no convention is relied upon: a return, a call or jump
through a pointer or a linkage stub, a system call, a trap end every path, and what is undecided there is live.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.instruction_masks import CANDIDATES, masks_of
from anyprobe.binary.liveness.entry import NOTHING, EntryLiveness, Scratch, scratch_of
from anyprobe.isa.decode import Flow

if TYPE_CHECKING:
    from anyprobe.binary.liveness.module import ModuleLiveness


class Line(NamedTuple):
    """A straight line: what is live before it whatever follows, what is undecided after it, and what follows."""

    live: int
    pending: int
    successors: tuple[int, ...]
    """Numbers of instructions."""


class SiteLiveness:
    """What is dead before the instructions of one function; a part elsewhere is a function of its own."""

    candidates = CANDIDATES
    """What it looks for."""
    ends = frozenset(Flow) - {Flow.NEXT, Flow.CALL, Flow.INDIRECT_CALL, Flow.SYSCALL}
    """After which instructions another line begins."""

    def __init__(self, code_map: ModuleView, function: FunctionView) -> None:
        """Solve the function's blocks."""
        self._map, self._function = code_map, function
        self._masks = self._steps()
        self._heads = self._find_heads()
        self._live = self._solve()

    def scratch(self, address: int) -> Scratch:
        """Return what code before the instruction at an address may destroy."""
        return scratch_of(self.dead_at(address))

    def dead_at(self, address: int) -> int:
        """Return the same as a mask, 0 where nothing is known."""
        number = self._function.index_of(address)
        if number is None or self._function.broken is not None:
            return 0
        known = self._live.get(number)
        live = self._pass_backwards(number) if known is None else known
        return self.candidates & ~live

    def _pass_backwards(self, number: int) -> int:
        """Note what is live before each instruction of the straight line around one; return it for that one.

        One pass serves all sites of the line: each would otherwise walk to its end anew.
        """
        heads, masks = self._heads, self._masks
        last = number
        while masks[last][0] is Flow.NEXT and last + 1 < len(masks) and last + 1 not in heads:
            last += 1
        below = self._before(self._line(last))
        self._live[last] = below
        while last not in heads and masks[last - 1][0] is Flow.NEXT:
            last -= 1
            _, reads, writes = masks[last]
            below = self.candidates & (reads | below & ~writes)
            self._live[last] = below
        return self._live[number]

    def _steps(self) -> Sequence[tuple[Flow, int, int]]:
        """Return of each instruction the flow, what it reads, and what it overwrites in full."""
        return [each[:3] for each in masks_of(self._function)]

    def _find_heads(self) -> frozenset[int]:
        """Return the numbers of the instructions that lines begin with: what is jumped to, and what is after jumps."""
        function = self._function
        targets = {function.index_of(target) for target in function.jump_targets | function.table_targets}
        after = {number + 1 for number, flow in function.turns if flow in self.ends}
        return frozenset({0} | after | {number for number in targets if number is not None})

    def _solve(self) -> dict[int, int]:
        """Return what is live before each line."""
        if self._function.broken is not None:
            return {}
        size = len(self._function.iced)
        lines = {head: self._line(head) for head in sorted(self._heads, reverse=True) if head < size}
        live = {head: line.live for head, line in lines.items()}
        open_lines = [(head, line) for head, line in lines.items() if line.pending]
        changed = True
        while changed:
            changed = False
            for head, line in open_lines:
                now = line.live
                for successor in line.successors:
                    now |= line.pending & live[successor]
                if now != live[head]:
                    live[head], changed = now, True
        return live

    def _before(self, line: Line) -> int:
        live = line.live
        for successor in line.successors:
            live |= line.pending & self._live[successor]
        return live

    def _line(self, here: int) -> Line:
        """Go on from an instruction until a line begins or all is decided."""
        heads, masks = self._heads, self._masks
        size, begin, live, pending = len(masks), here, 0, self.candidates
        while pending:
            if here >= size:
                return Line(live | pending, 0, ())  # off the end
            if here in heads and here != begin:
                return Line(live, pending, (here,))
            flow, reads, writes = masks[here]
            live |= pending & reads
            pending &= ~live
            if flow is not Flow.NEXT:
                return self._transfer(here, flow, live, pending)
            pending &= ~writes
            here += 1
        return Line(live, 0, ())

    def _transfer(self, here: int, flow: Flow, live: int, pending: int) -> Line:
        """Return the line up to an instruction that does not go on to the next one, or not at once."""
        one = self._function.iced[here]
        if flow is Flow.JCC:
            return self._outcomes(live, pending, (one.near_branch_target,), here + 1)
        if flow is Flow.JUMP:
            return self._outcomes(live, pending, (one.near_branch_target,))
        if flow is Flow.CALL:
            return Line(live | pending & ~self._dead_in_callee(one.near_branch_target), 0, ())
        if flow is Flow.INDIRECT_JUMP:
            return self._indirect_jump(one.ip, live, pending)
        return Line(live | pending, 0, ())

    def _dead_in_callee(self, target: int) -> int:
        return self._map.analyses.get(DeadInCallees).at(target)

    def _outcomes(self, live: int, pending: int, targets: "tuple[int, ...]", below: int = -1) -> Line:
        """Return the line whose end leads to some addresses, and perhaps to the instruction below."""
        successors = [below] if below >= 0 else []
        if below >= len(self._function.iced):
            return Line(live | pending, 0, ())
        for target in targets:
            number = self._function.index_of(target)
            if number is None:
                live |= pending & ~self._dead_in_callee(target)
            else:
                successors.append(number)
        return Line(live, pending & ~live, tuple(successors))

    def _indirect_jump(self, address: int, live: int, pending: int) -> Line:
        table = self._function.table_of(address)
        if table is not None:
            return self._outcomes(live, pending, tuple(table.targets))
        return Line(live | pending, 0, ())


class DeadInCallees:
    """What the functions of a module that are called overwrite before they read it, and so is dead before the call."""

    def __init__(self, code_map: ModuleView) -> None:
        """Look at no function yet."""
        self._entries = code_map.analyses.get(EntryLiveness)
        self._known: dict[int, int] = {}

    def at(self, target: int) -> int:
        """Return it for the function at an address, as a mask."""
        known = self._known.get(target)
        if known is None:
            known = self._known[target] = self._entries.overwritten_at(target)
        return known

    def keep_all(self, target: int) -> None:
        """Let nothing be dead before calls of an address from now on: what runs there may look at all registers."""
        self._known[target] = 0


class LivenessBySite:
    """What is dead in one module, function by function, or for all together where all functions are asked about."""

    def __init__(self, code_map: ModuleView) -> None:
        """Look at no function yet."""
        self._map = code_map
        self._known: dict[int, SiteLiveness] = {}
        self._whole: ModuleLiveness | None = None

    def scratch(self, part: FunctionView, address: int) -> Scratch:
        """Return what code before an instruction may destroy."""
        if self._whole is None and self._map.entries.is_surveyed and not self._map.text.is_go:
            from anyprobe.binary.liveness.module import ModuleLiveness

            self._whole = self._map.analyses.get(ModuleLiveness)
        if self._whole is not None:
            return self._whole.scratch(part, address)
        known = self._known.get(part.start)
        if known is None:
            known = self._known[part.start] = SiteLiveness(self._map, part)
        return known.scratch(address)


def site_scratch(code_map: ModuleView, function: FunctionView, address: int) -> Scratch:
    """Return what code before an instruction of a function, or of a part of it elsewhere, may destroy."""
    part = function if function.start <= address < function.end else code_map.containing(address)
    return NOTHING if part is None else code_map.analyses.get(LivenessBySite).scratch(part, address)
