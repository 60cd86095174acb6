"""Pieces of a function that are called: hand-written code has subroutines among its other instructions.

``aesni_set_encrypt_key`` of OpenSSL calls what it has after its own end thirty-one times. A piece's return is not the
function's.
"""

from collections.abc import Iterable, Sequence

from iced_x86 import Mnemonic

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.body import ENDS
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.handwritten_calls import changes_return
from anyprobe.binary.flow.last_calls import last_calls
from anyprobe.isa.decode import Flow, Insn


class CalledPieces:
    """Where a function and its parts are called after the function's entry, and what is reached from there."""

    def __init__(self, code_map: ModuleView, parts: "Sequence[FunctionView]") -> None:
        """Look for calls into the first of ``parts``, from wherever they are."""
        self._map, self._parts = code_map, parts
        function = parts[0]
        self.by_itself = {
            target
            for part in parts
            for number, target in part.calls
            if function.entry < target < function.end and not self._is_jump(part, number)
        }
        """Where the function calls itself."""
        self.by_others: set[int] = set()
        for target, source, kind in code_map.entries.references.into(function.entry + 1, function.end):
            if kind is Kind.NEAR and not function.start <= source < function.end and self._calls(source, target):
                self.by_others.add(target)

    def own(self) -> set[int]:
        """Return the addresses that control comes to from the function's entry, or by what is stored elsewhere."""
        function = self._parts[0]
        entries = {function.start, function.entry}
        for part in self._parts:
            inner = set(self._map.entries.static_entries(part.start, part.end)) - self._map.text.named
            entries |= {part.start} | inner | part.table_targets
        return self.reached(entries)

    def undecided_jump(self) -> Insn | None:
        """Return an indirect jump that may lead from one to the other, if there is one."""
        for part in self._parts:
            for number, flow in part.turns:
                jump = part.insn(number) if flow is Flow.INDIRECT_JUMP else None
                if jump is not None and jump.address not in part.tables and not part.leaves_at(jump):
                    return jump
        return None

    def _calls(self, source: int, target: int) -> bool:
        home = self._map.containing(source)
        insn = home.covering(source) if home is not None and home not in self._parts else None
        return insn is not None and insn.flow is Flow.CALL and insn.target == target

    def _is_jump(self, part: FunctionView, number: int) -> bool:
        """Return whether a call inside the function only pushes an address: that of data, or one that is dropped."""
        if number in part.analyses.get(last_calls).certain:
            return True
        target = part.iced[number].near_branch_target
        home, aim = self._place_of(target)
        return home is not None and (home.iced[aim].mnemonic == Mnemonic.POP or changes_return(home.iced[aim]))

    def _place_of(self, address: int) -> "tuple[FunctionView | None, int]":
        """Return the part that an instruction lies in, and its number there."""
        for part in self._parts:
            number = part.index_of(address)
            if number is not None:
                return part, number
        return None, 0

    def reached(self, entries: Iterable[int]) -> set[int]:
        """Return the addresses that control comes to from some others, calls aside."""
        found: set[int] = set()
        todo = list(entries)
        while todo:
            part, number = self._place_of(todo.pop())
            while part is not None and number < len(part.iced):
                address = part.addresses[number]
                if address in found:
                    break
                found.add(address)
                insn = part.insn(number)
                jumps = insn.flow is not Flow.CALL or self._is_jump(part, number)
                if insn.target is not None and jumps:
                    todo.append(insn.target)
                table = part.table_of(address)
                todo += table.targets if table is not None else ()
                if insn.flow in ENDS or number in part.analyses.get(last_calls).certain:
                    break
                number += 1
        return found
