"""From which instructions control comes to an instruction, and which of them may have set a register.

The jumps of a function are looked at together: the targets of one jump table are where the search for another one's
index goes on. ``jump_tables`` begins with no table, adds the targets that it finds, and begins again until nothing is
new. What holds then holds for all of them together.
"""

from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.instruction_masks import MASKS
from anyprobe.binary.flow.pieces import Pieces
from anyprobe.binary.objects.padding import is_padding
from anyprobe.isa.decode import CALLS, FLOWS, Flow, flow_of
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import SYSV_CLOBBERED

if TYPE_CHECKING:
    from collections.abc import Container

    from iced_x86 import Instruction

    Place = tuple[FunctionView, int]
    """An instruction by its number in a function; -1 is the function's caller."""

CALLER = -1
_STEPS = 3000
"""How many instructions one search looks at."""
_NO_FALLTHROUGH = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.TRAP, Flow.INVALID})
_GOES_ON = np.array([flow is Flow.NEXT for flow in FLOWS])


class FlowGraph:
    """The ways to the instructions of one function, and backwards out of it where others jump into its middle."""

    def __init__(self, code_map: ModuleView, function: FunctionView, no_return: "Container[int]" = frozenset()) -> None:
        """Begin without any jump table; calls of ``no_return`` functions do not come back."""
        self._no_return = no_return
        self.map, self.function = code_map, function
        self._pieces = code_map.analyses.get(Pieces)
        self.table_jumps: dict[int, set[int]] = {}
        """The numbers of the jumps whose tables lead to an address."""
        self.is_final = False
        """Whether all tables are known: from then on code that nothing leads to is code of which nothing is known."""
        self.crosses_labels = True
        """Whether a search goes on above a label although another indirect jump may lead there."""
        self.asked: set[int] = set()
        """Where in the function it was asked which tables lead there, since this was emptied."""
        self.is_lost = False
        """Whether something was come to, since then, to which nothing is known to lead."""
        self._elsewhere: dict[int, dict[int, list[tuple[int, Kind]]]] = {}
        self._straight: dict[int, bytearray] = {}

    def before(self, place: "Place") -> "Place | None":
        """Return an instruction from which control comes to this one: the one above, else a jump here."""
        body, number = place
        sources = [source for source in body.branches_to(body.addresses[number]) if source != number]
        if self._falls_to(body, number) and not (sources and self._is_padding(body, number - 1)):
            return body, number - 1
        return (body, sources[0]) if sources else None

    def _is_padding(self, body: FunctionView, number: int) -> bool:
        """Return whether an instruction is padding that nothing of the function leads to."""
        while is_padding(body.raw_at(number)) and not body.branches_to(body.addresses[number]):
            if not self._falls_to(body, number):
                return True
            number -= 1
        return False

    def predecessors(self, place: "Place") -> "list[Place] | None":
        """Return all instructions from which control comes to one; ``None`` if that is not known.

        After a function's first instruction nothing is returned for its callers.
        """
        body, number = place
        address = body.addresses[number]
        found = [(body, source) for source in body.branches_to(address)]
        falls = self._falls_to(body, number)
        if number and not self.crosses_labels and (found or not falls):
            return None
        if body is self.function:
            self.asked.add(address)
            found += [(body, source) for source in self.table_jumps.get(address, ())]
        elif (found or not falls) and body.indirect_jumps:
            return None  # a target of a table that is looked for elsewhere
        if falls:
            found.append((body, number - 1))
        if number == 0 and not self.is_part(body):
            return found
        if number and self.map.entries.static_entries(address, address + 1):
            return None
        others = self._from_elsewhere(body, address)
        if others is None:
            return None
        found += others
        above = self._pieces.running_into(address) if number == 0 else None
        if above is not None:
            found.append((above, len(above.iced) - 1))
        if not found and not self._never_runs(body, number):
            self.is_lost = True
            return None if self.is_final else found
        return found

    def is_part(self, body: FunctionView) -> bool:
        """Return whether some code is a part of the function elsewhere, which only the function's jumps enter."""
        if body is self.function:
            return self._pieces.is_crossed(body)
        return self._pieces.part_at(body.start, self.function) is body or self._is_other_piece(body)

    def _is_other_piece(self, body: FunctionView) -> bool:
        pieces = self._pieces
        return pieces.sibling_at(body.start, self.function) is body and pieces.is_crossed(body)

    def _falls_to(self, body: FunctionView, number: int) -> bool:
        """Return whether control comes to an instruction from the one above it."""
        if number == 0:
            return False
        if FLOWS[body.codes[number - 1]] is Flow.NEXT:
            return True
        above = body.iced[number - 1]
        return flow_of(above) not in _NO_FALLTHROUGH and not self._is_no_return(above)

    def _is_no_return(self, insn: "Instruction") -> bool:
        return flow_of(insn) is Flow.CALL and insn.near_branch_target in self._no_return

    def _never_runs(self, body: FunctionView, number: int) -> bool:
        """Return whether an instruction without a known way to it has none: padding, or after an endless call."""
        return is_padding(body.raw_at(number)) or (number > 0 and self._is_no_return(body.iced[number - 1]))

    def _from_elsewhere(self, body: FunctionView, address: int) -> "list[Place] | None":
        """Return the jumps of other functions to an address after the start; ``None`` if it is entered otherwise."""
        found: list[Place] = []
        for source, kind in self._entered_from_elsewhere(body).get(address, ()):
            if not self.map.entries.may_lead(address, source, kind):
                continue
            home = self.map.containing(source)
            insn = home.covering(source) if home is not None else None
            if home is None or insn is None or insn.flow not in (Flow.JUMP, Flow.JCC) or insn.target != address:
                return None
            number = home.index_of(insn.address)
            if number is None:
                return None
            found.append((home, number))
        return found

    def _entered_from_elsewhere(self, body: FunctionView) -> dict[int, list[tuple[int, Kind]]]:
        known = self._elsewhere.get(body.start)
        if known is None:
            known = self._elsewhere[body.start] = {}
            for target, source, kind in self.map.entries.references.into(body.start, body.end):
                if kind in (Kind.LEA, Kind.ABSOLUTE) or not body.start <= source < body.end:
                    known.setdefault(target, []).append((source, kind))
        return known

    def _straight_in(self, body: FunctionView) -> bytearray:
        """Return which instructions of some code are come to from the one above only, jump tables aside."""
        known = self._straight.get(body.start)
        if known is None:
            codes = np.frombuffer(body.codes, np.uint16)
            known = self._straight[body.start] = bytearray(b"\0" + _GOES_ON[codes[:-1]].tobytes())
            entries = self.map.entries.static_entries(body.start, body.end)
            for address in (*body.jump_targets, *self._entered_from_elsewhere(body), *entries):
                number = body.index_of(address)
                if number is not None:
                    known[number] = 0
        return known

    def definitions(self, place: "Place", register: int) -> "frozenset[Place] | None":
        """Return every instruction whose value of a register can reach a place; ``None`` if some way is not known."""
        bit = 1 << register
        found: set[Place] = set()
        seen: set[Place] = set()
        todo = [place]
        while todo:
            here = self._above_straight(todo.pop(), bit, seen, found)
            if here is None:
                continue
            above = self.predecessors(here)
            if above is None or len(seen) > _STEPS:
                return None
            if here[1] == 0 and not self.is_part(here[0]):
                found.add((here[0], CALLER))
            for one in above:
                if one in seen:
                    continue
                seen.add(one)
                if changes(one, bit):
                    found.add(one)
                else:
                    todo.append(one)
        return frozenset(found)

    def _above_straight(self, place: "Place", bit: int, seen: "set[Place]", found: "set[Place]") -> "Place | None":
        """Go up from a place as long as there is one way only, but no more than ``_STEPS``.

        ``None``: an instruction that changes the register was found, or one that had been seen before.
        """
        body, number = place
        straight, addresses, is_own = self._straight_in(body), body.addresses, body is self.function
        tables = self.table_jumps if is_own else {}
        while straight[number] and addresses[number] not in tables and len(seen) <= _STEPS:
            if is_own:
                self.asked.add(addresses[number])
            number -= 1
            one = body, number
            if one in seen:
                return None
            seen.add(one)
            if changes(one, bit):
                found.add(one)
                return None
        return body, number


def changes(place: "Place", bit: int) -> bool:
    """Return whether an instruction may change a register, given by its bit."""
    body, number = place
    if body.mask_numbers is not None:
        masks = MASKS[body.mask_numbers[number]]
        return bool((SYSV_CLOBBERED if masks.flow in CALLS else masks.may_write) & bit)
    if FLOWS[body.codes[number]] in CALLS:
        return bool(SYSV_CLOBBERED & bit)
    return bool(effects_of(body.iced[number], body.raw_at(number)).may_write & bit)
