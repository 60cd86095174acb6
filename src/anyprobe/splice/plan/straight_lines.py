"""Many instructions of a function at once: straight lines that move into their patches as a whole.

A line begins where something may enter and ends where something else may, or where control does not simply go on. One
jump in it leads all that comes by into a patch, which runs the line to its end with the actions in it. So a line takes
one splice however many of its instructions are wanted, and one look at who enters where serves the whole function.
Of lines without room for a jump the first instruction may be retargeted, or moved with the call after it; all else is
left to the ladder of strategies.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.flow.straight_lines import FAR_ENOUGH
from anyprobe.core.refusal import Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow
from anyprobe.isa.relocate import must_stay
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.plan.strategies.jump import jump
from anyprobe.splice.plan.strategies.retarget import retarget

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.isa.decode import Insn
    from anyprobe.splice.plan.context import PlanContext

LEAST_WANTS = 4
"""Fewer wants of one function are not worth the look at all of it."""
LONGEST = 100
"""Instructions that move together at most: what is looked at again when the program stands still has an end."""
_NEXT = Flow.NEXT
_WITHIN = frozenset({Flow.NEXT, Flow.JCC})
_MOVES = frozenset({Flow.NEXT, Flow.JCC, Flow.JUMP, Flow.RET, Flow.INDIRECT_JUMP})


class Lines:
    """Places whole lines of one function."""

    def __init__(self, context: "PlanContext", function: "FunctionCode") -> None:
        """Add splices to the plan that is being made."""
        self._context, self._function = context, function
        self._leaders = function.leaders

    def place(self, todo: Sequence[Want], *, whole: bool = False) -> list[Want]:
        """Place the lines that wants lie in, or what they begin with; return the wants, ascending, that are left.

        ``whole``: only lines, whose ends may be needed for what is left.
        """
        left: list[Want] = []
        number = 0
        while number < len(todo):
            want = todo[number]
            index = self._index_of(want)
            end = number + 1
            if index is not None:
                line = self._line_from(index)
                after = line[-1].end if line else want.address + 1
                while end < len(todo) and todo[end].address < after:
                    end += 1
            wants = todo[number:end]
            if index is None:
                left += wants
            elif not line or not self._place_line(index, line, wants):
                apart = not whole and (not left or wants[0].address - left[-1].address >= FAR_ENOUGH)
                left += wants[1:] if apart and self._place_one(index, wants[0]) else wants
            number = end
        return left

    def _index_of(self, want: Want) -> int | None:
        plain = want.kind is WantKind.OFFSET and not (want.conditional or want.block or want.in_place)
        if not plain or self._function.insn_at(want.address) is None:
            return None
        return self._function.index_of(want.address)

    def _line_from(self, index: int) -> "list[Insn]":
        """Return the instructions from one on to the end of its line that can be displaced."""
        function, leaders, last = self._function, self._leaders, index + LONGEST
        found: list[Insn] = []
        end = -1
        for number, address in enumerate(function.addresses[index:last], index):
            if found and (address in leaders or address != end):
                break
            insn = function.insn(number)
            flow = insn.flow
            if found and self._context.faults_part(found[-1], insn):
                break
            plain = flow is _NEXT and not insn.iced.is_ip_rel_memory_operand
            if not plain and (flow not in _MOVES or must_stay(insn) is not None):
                break
            found.append(insn)
            if flow is not _NEXT and flow is not Flow.JCC:
                break
            end = address + insn.length
        return found

    def _place_line(self, index: int, line: "list[Insn]", wants: Sequence[Want]) -> bool:
        """Jump at the first wanted instruction, or at one above it in the same line if there is no room."""
        context, function, last = self._context, self._function, line[-1]
        if len(wants) == 1 and line[0].is_near_jump:
            return False  # it is retargeted
        if wants[-1].address > last.address:
            return False
        if len(wants) > 1 and any(function.insn_at(want.address) is None for want in wants[1:]):
            return False
        while True:
            head = line[0]
            if last.end - head.address >= JUMP_BYTES:
                splice = SpliceDraft(Strategy.JUMP, head.address, tuple(line), [], JUMP_BYTES, head.address)
                if not isinstance(context.checked_line(splice), Refusal):
                    self._adopt(splice, wants)
                    return True
            index -= 1
            if index < 0 or head.address in self._leaders:
                return False
            above = function.insn(index)
            if context.faults_part(above, head):
                return False
            if above.flow not in _WITHIN or above.end != head.address or must_stay(above) is not None:
                return False
            line.insert(0, above)

    def _place_one(self, index: int, want: Want) -> bool:
        """Place what has no line with room, if that is as simple as for most: the ladder would come to the same.

        What the ladder has to place right above it may need the same bytes, and comes first.
        """
        context, function = self._context, self._function
        found: SpliceDraft | Refusal | None = None
        if Strategy.RETARGET in context.allowed:
            found = retarget(context, function.insn(index), want)
        if not isinstance(found, SpliceDraft):
            insns = self._few_from(index)
            if insns[-1].end - want.address < JUMP_BYTES:
                return False
            found = jump(context, function, insns, 0, 0)
        if isinstance(found, Refusal):
            return False
        self._adopt(found, (want,))
        return True

    def _few_from(self, index: int) -> "tuple[Insn, ...]":
        """Return the instructions from one on that a jump needs, calls included, but none that may be entered."""
        function = self._function
        found = [function.insn(index)]
        for number in range(index + 1, len(function.addresses)):
            last, address = found[-1], function.addresses[number]
            over = last.end - found[0].address >= JUMP_BYTES or not last.falls_through
            if over or address != last.end or address in self._leaders:
                break
            found.append(function.insn(number))
        return tuple(found)

    def _adopt(self, splice: SpliceDraft, wants: Sequence[Want]) -> None:
        splice.wants += wants
        self._context.plan.splices.append(splice)
        self._context.claims.claim(splice)
        self._context.plan.verdicts += [(want.address, splice.strategy, None) for want in wants]
