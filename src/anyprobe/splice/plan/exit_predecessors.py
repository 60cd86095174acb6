"""Exits that are too short to splice: all ways that lead to them are spliced instead.

``pop rbx; ret`` between two other blocks has no room for a jump. Where such an exit block is entered only by direct
branches and from above, each branch goes to a copy of the block with the exit's action in it, and the patch of what
stands above carries on into another copy. The block itself stays as it is; no thread but one that was in it already,
and so has left the function as good as before, runs it any more.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.binary.flow.exits import ways_to
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.predecessor_edits import PredecessorEdits
from anyprobe.splice.plan.splices import IN_PLACE, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.splice.plan.context import PlanContext

_LONGEST_BLOCK = 8


class ExitPredecessors(PredecessorEdits):
    """Splices the ways to the refused exits of one function, after everything else of it has been placed."""

    def __init__(self, context: "PlanContext", function: "FunctionCode", wants: Sequence[Want]) -> None:
        """Add splices to the plan that is being made; ``wants`` are all that are wanted."""
        super().__init__(context, function)
        self._wanted = frozenset(want.address for want in wants)
        self._served: dict[int, Want] = {}
        """Exits that were spliced here, with the first want of each."""

    def splice(self, want: Want) -> bool:
        """Splice all ways to a refused exit, or none: return which."""
        if want.kind is not WantKind.EXIT or want.conditional:
            return False
        if want.address in self._served:
            self._serve_too(want, self._served[want.address])
            return True
        if self._join(want):
            return True
        self._undo = []
        if self._splice_all(want):
            self._served[want.address] = want
            return True
        self.undo()
        return self._borrow(want)

    def _borrow(self, want: Want) -> bool:
        """Splice the exit itself by a pun at the cost of the next function: the last resort."""
        part = self._context.code.containing(want.address)
        insn = part.insn_at(want.address) if part is not None else None
        found = self.detour(insn, borrows=True) if insn is not None else None
        if found is not None:
            self.add(found, want)
        return found is not None

    def _serve_too(self, want: Want, first: Want) -> None:
        """Let all that serves another want of the same exit serve this one."""
        for splice in self._plan.splices:
            for each in list(splice.wants):
                if each is first:
                    splice.wants.append(want)
                elif each.origin is first:
                    splice.wants.append(replace(each, tag=want.tag, origin=want))

    def _join(self, want: Want) -> bool:
        """Let a splice that displaces the exit by now, and that all come through, serve it."""
        over = self.over(want.address)
        if over is None or over.strategy in IN_PLACE:
            return False
        over.wants.append(want)
        return True

    def _splice_all(self, want: Want) -> bool:
        if self._context.plain_jumps_only and self._context.parking is None:
            return False
        part = next((part for part in self._parts if part.start <= want.address < part.end), None)
        block = self._block(part, want) if part is not None else ()
        if part is None or not block:
            return False
        ways = ways_to(self._context.code, self._parts, block[0].address)
        number = part.index_of(block[0].address)
        if ways is None or not number or self.is_resumed(part.insn(number - 1), ways):
            return False
        for insn in ways:
            through = replace(want, address=insn.address, conditional=insn.flow is Flow.JCC, block=block, origin=want)
            if not self._splice_branch(insn, through):
                return False
        above = part.insn(number - 1)
        return not above.falls_through or self.from_above(part, above, block, [want])

    def _block(self, part: "FunctionCode", want: Want) -> tuple[Insn, ...]:
        """Return the straight line that ends in the exit; empty where it cannot be copied."""
        run = part.lines.around(want.address)
        block = tuple(insn for insn in run if insn.address <= want.address)
        plain = all(insn.flow is Flow.NEXT and insn.address not in self._wanted for insn in block[:-1])
        if not block or block[-1].falls_through:
            return ()
        if not plain or len(block) > _LONGEST_BLOCK or self._context.forbidden(block) is not None:
            return ()
        return block

    # -- one way

    def _splice_branch(self, branch: Insn, through: Want) -> bool:
        if branch.flow is Flow.JCC and branch.condition is None:
            return False
        over = self.over(branch.address)
        if over is not None:
            if over.strategy in IN_PLACE:
                same = over.wants[0].block and over.wants[0].block[-1].address == through.block[-1].address
                if not same:
                    return False
            self.serve(over, through)
            return True
        found = self.redirect(branch, through)
        if found is None:
            return False
        self.add(found, through)
        return True
