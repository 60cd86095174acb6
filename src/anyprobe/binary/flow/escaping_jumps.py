"""Jumps of one function that may lead to any place in it, though they look like ends of it.

A jump through a pointer is a tail call where control comes to all of the function without it, and to its labels where
data or instructions name these. What only a distance names (LuaJIT adds it to a base at run time), nothing does: there
is code, then, to which nothing leads. Retpolines and ``push rdx; ret`` are such jumps in disguise.
"""

from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING

from iced_x86 import Mnemonic, OpKind, Register

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.flow.evidence import Evidence
from anyprobe.binary.flow.reachability import Reachability
from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import FLOWS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction


_BELOW = 16
"""How far down it is looked for what becomes of an address."""
_SETTING = frozenset({Mnemonic.MOV, Mnemonic.LEA, Mnemonic.POP})
_THUNK_BYTES = 4
"""Bytes of a thunk before its return."""


class EscapingJumps:
    """By the numbers of the instructions."""

    def __init__(self, code_map: ModuleView, function: FunctionView) -> None:
        """Look at nothing before it is asked for."""
        self._map, self._function = code_map, function
        self._evidence = code_map.analyses.get(Evidence)

    @cached_property
    def through_pointers(self) -> list[int]:
        """The indirect jumps that may lead to what nothing else leads to."""
        function = self._function
        jumps = function.pointer_jumps
        # of code that nothing tells of, not all is known to be code anyway
        return (
            jumps
            if jumps and not function.is_nameless and not function.analyses.get(Reachability).is_all_possible
            else []
        )

    @cached_property
    def disguised(self) -> list[int]:
        """What jumps where a pointer says and looks like a return, or like a jump out of the function."""
        function, thunks = self._function, self._evidence.thunks
        found: list[int] = []
        if self._inside(self._evidence.pushed_returns):
            found = [number for number, flow in function.turns if flow is Flow.RET and self._is_pushed(number)]
        if thunks:
            places = (function.index_of(thunk + _THUNK_BYTES) for thunk in self._inside(thunks))
            aims = {target for target in function.jumps_out_to if self._is_thunk(target)}
            through = (number for number, target in function.jumps if target in aims) if aims else ()
            found = [*found, *(number for number in places if number is not None), *through]
        return found

    def _inside(self, places: list[int]) -> list[int]:
        return places[bisect_left(places, self._function.start) : bisect_left(places, self._function.end)]

    @property
    def in_disguise(self) -> Refusal | None:
        """Why it is not known what is entered where: one of those may stay inside."""
        function = self._function
        if not self.disguised:
            return None
        low, high = function.entry + 1, function.end
        named = chain(
            self._map.entries.static_entries(low, high), self._map.entries.references.addresses_into(low, high)
        )
        if next(named, None) is None and function.analyses.get(Reachability).leads_everywhere:
            return None
        why = "jumps in disguise to where a pointer says, which may be in the function"
        return self._refusal(self.disguised[0], why)

    @property
    def doubt(self) -> Refusal | None:
        """Why the control flow is not known, by jumps and calls through pointers."""
        function = self._function
        if function.pointer_jumps and self.through_pointers:
            why = "jumps where a pointer says, and nothing else leads to some of the function"
            return self._refusal(self.through_pointers[0], why)
        if not self._map.text.calls_labels or not self.own_labels:
            return None
        call = next((number for number, flow in function.turns if flow is Flow.INDIRECT_CALL), None)
        why = "calls where a pointer says, and takes the address of a piece of the function"
        return None if call is None else self._refusal(call, why)

    def _refusal(self, number: int, why: str) -> Refusal:
        return Refusal(Reason.CONTROL_FLOW_UNKNOWN, self._function.addresses[number], why)

    def is_label(self, source: int, *, surely: bool) -> bool:
        """Return whether what an instruction takes the address of may be a label, ``surely`` if it jumps there at once.

        What is read by way of the register that has the address is a table.
        """
        register, line = self._taken(source)
        if any(register in (one.memory_base, one.memory_index) and one.mnemonic != Mnemonic.LEA for one in line):
            return False
        last = line[-1] if line else None
        jumps = last is not None and FLOWS[last.code] is Flow.INDIRECT_JUMP and not last.is_ip_rel_memory_operand
        return jumps or not surely

    def is_pushed(self, source: int) -> bool:
        """Return whether such an address goes on the stack, where a return may find it."""
        register, line = self._taken(source)
        return any(one.mnemonic == Mnemonic.PUSH and one.op0_register == register for one in line)

    def _taken(self, source: int) -> "tuple[int, list[Instruction]]":
        """Return the register that an instruction puts an address into, and the straight line below it."""
        insn = self._function.covering(source)
        number = self._function.index_of(insn.address) if insn is not None else None
        if insn is None or number is None or insn.iced.op0_kind != OpKind.REGISTER:
            line = [] if insn is None else [insn.iced]
            return (Register.NONE if insn is None else insn.iced.op0_register), line
        register, line = insn.iced.op0_register, []
        for one in self._function.iced[number + 1 : number + _BELOW]:
            line.append(one)
            if FLOWS[one.code] is not Flow.NEXT or (one.op0_register == register and one.mnemonic in _SETTING):
                break
        return register, line

    @cached_property
    def callable_labels(self) -> list[int]:
        """The ``own_labels`` that may be called: no jump of the function explains them, or they are pushed."""
        if not self._map.text.calls_labels:
            return []
        unexplained = not self._function.indirect_jumps
        return [
            label
            for label, sources in self.own_labels.items()
            if any(self.is_label(at, surely=False) and (unexplained or self.is_pushed(at)) for at in sources)
        ]

    @cached_property
    def own_labels(self) -> dict[int, list[int]]:
        """The pieces whose address the function takes, those of its jump tables aside, and where it does."""
        function = self._function
        if function.start not in self._evidence.self_takers:
            return {}
        taken = self._evidence.takers_within(function.entry + 1, function.end)
        labels = (at for at in taken.keys() - function.table_targets if function.is_boundary(at))
        return {at: taken[at] for at in sorted(labels)}

    def _is_pushed(self, number: int) -> bool:
        function = self._function
        above = function.iced[number - 1] if number else None
        return above is not None and above.mnemonic == Mnemonic.PUSH and not function.branches_to(above.next_ip)

    def _is_thunk(self, target: int) -> bool:
        """Return whether a function elsewhere does nothing but jump where a register says (a retpoline)."""
        start = self._map.layout.start_of(target)
        if start is None or start == self._function.start:
            return False
        thunks, end = self._evidence.thunks, self._map.layout.end_of(start)
        place = bisect_left(thunks, start)
        return place < len(thunks) and thunks[place] < end
