"""Instructions that have no room for a jump, counted where control comes from instead.

A straight line that is entered only by known direct branches and from above is arrived at once for each taken branch
and each time that control runs into it. So each branch's patch counts on its taken edge and goes on to the line, which
stays as it is, and the patch of what stands above counts and carries on into a copy of the line.

After an instruction that may fault an arrival at the line's beginning is no arrival: such wants stay refused.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from iced_x86 import Mnemonic, OpKind

from anyprobe.binary.flow.exits import ways_to
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.predecessor_edits import PredecessorEdits
from anyprobe.splice.plan.splices import Strategy, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode

_HARMLESS = frozenset(
    {
        Mnemonic.MOV, Mnemonic.MOVZX, Mnemonic.MOVSX, Mnemonic.MOVSXD, Mnemonic.LEA, Mnemonic.NOP, Mnemonic.CDQE,
        Mnemonic.ADD, Mnemonic.SUB, Mnemonic.INC, Mnemonic.DEC, Mnemonic.NEG, Mnemonic.NOT, Mnemonic.CDQ, Mnemonic.CQO,
        Mnemonic.AND, Mnemonic.OR, Mnemonic.XOR, Mnemonic.CMP, Mnemonic.TEST, Mnemonic.SHL, Mnemonic.SHR, Mnemonic.SAR,
    }
)  # fmt: skip


def cannot_fault(insn: Insn) -> bool:
    """Return whether an instruction that begins always ends, and goes on to the next."""
    one = insn.iced
    if insn.flow is not Flow.NEXT or one.mnemonic not in _HARMLESS:
        return False
    if one.mnemonic in (Mnemonic.LEA, Mnemonic.NOP):
        return True
    kinds = [one.op_kind(number) for number in range(one.op_count)]
    registers = [one.op_register(number) for number, kind in enumerate(kinds) if kind == OpKind.REGISTER]
    return OpKind.MEMORY not in kinds and all(_is_general(register) for register in registers)


def _is_general(register: int) -> bool:
    from iced_x86 import RegisterExt

    return RegisterExt.is_gpr(register)  # type: ignore[arg-type]


class Predecessors(PredecessorEdits):
    """Serves refused wants of one function by what leads to them, after everything else of it has been placed."""

    def splice(self, refused: Iterable[Want]) -> frozenset[Want]:
        """Serve what can be served of the refused wants; return which."""
        served: set[Want] = set()
        for part, line, wants in self._lines(refused):
            for last in range(len(wants), 0, -1):  # all of a line, or else as many of its first wants as can be
                self._undo = []
                end = next(i for i, insn in enumerate(line) if insn.address == wants[last - 1].address)
                if self._splice_line(part, line[: end + 1], wants[:last]):
                    served.update(wants[:last])
                    break
                self.undo()
        return frozenset(served)

    def _lines(self, refused: Iterable[Want]) -> "list[tuple[FunctionCode, tuple[Insn, ...], list[Want]]]":
        """Return straight lines that no splice displaces, each with its wants that an arrival is an arrival at."""
        found: dict[int, tuple[FunctionCode, tuple[Insn, ...], list[Want]]] = {}
        for want in sorted(refused, key=lambda want: want.address):
            part = next((part for part in self._parts if part.start <= want.address < part.end), None)
            if part is None or want.kind is not WantKind.OFFSET or want.conditional or part.complete is not None:
                continue
            if want.after:
                continue
            line = self._line(part, want.address)
            if not line or not all(cannot_fault(insn) for insn in line[:-1]):
                continue
            _, longest, wants = found.setdefault(line[0].address, (part, line, []))
            wants.append(want)
            found[line[0].address] = (part, max(longest, line, key=len), wants)
        return list(found.values())

    def _line(self, part: "FunctionCode", address: int) -> tuple[Insn, ...]:
        """Return the instructions up to one of which it is the last, from the first that no splice displaces."""
        line: list[Insn] = []
        for insn in reversed([insn for insn in part.lines.around(address, address - 32) if insn.address <= address]):
            if self.over(insn.address) is not None:
                break
            line.insert(0, insn)
        return tuple(line)

    def _splice_line(self, part: "FunctionCode", line: tuple[Insn, ...], wants: list[Want]) -> bool:
        context, number = self._context, part.index_of(line[0].address)
        copied = line[:1] + line  # none of it comes first in its patch
        if context.plain_jumps_only or context.forbidden(copied) is not None or not number:
            return False
        ways = ways_to(context.code, self._parts, line[0].address)
        if ways is None or any(line[0].address <= way.address <= line[-1].address for way in ways):
            return False
        above = part.insn(number - 1)
        if not ways and not above.falls_through:
            return False  # nothing is known to lead there: it could not be told from what is counted
        if self.is_resumed(above, ways) or not all(self._splice_branch(way, wants) for way in ways):
            return False
        if not above.falls_through:
            return True
        return above.address not in self._plan.shared and self.from_above(part, above, line, wants)

    def _splice_branch(self, branch: Insn, wants: list[Want]) -> bool:
        jcc = branch.flow is Flow.JCC
        if branch.address in self._plan.shared or (jcc and branch.condition is None):
            return False
        through = [replace(want, address=branch.address, conditional=jcc, origin=want) for want in wants]
        over = self.over(branch.address)
        if over is None:
            over = self.redirect(branch, through[0])
            if over is None:
                return False
            self.add(over, through.pop(0))
        elif over.strategy is Strategy.TRAP or any(each.block for each in over.wants):
            return False
        for want in through:
            self.serve(over, want)
        return True
