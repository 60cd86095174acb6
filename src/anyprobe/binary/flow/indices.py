"""The tables that a jump or a look-up reads, and how many values its index can have.

A bound is looked for on one way to the jump, the one above: it may be that of another way. Who reads a table by it goes
on after it, see ``jump_tables``.
"""

from struct import calcsize, iter_unpack
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Mnemonic, OpKind, Register

from anyprobe.binary.flow.flow_graph import CALLER, FlowGraph
from anyprobe.binary.flow.table_forms import (
    COPIES,
    LIMITS,
    NARROW,
    Compared,
    Distance,
    checked_count,
    follow_index,
    operand,
    pass_call,
    register_number,
)
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import Flow, flow_of
from anyprobe.isa.effects import effects_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyprobe.binary.flow.flow_graph import Place

_STEPS = 80
"""How far back the search for a bound check looks."""


class Bound(NamedTuple):
    """How many values an index can have."""

    number: int
    is_mask: bool = False
    """Whether some bits were kept: of what they can be, not everything needs to occur."""


class Indices:
    """What tables and indices the instructions of one function use."""

    def __init__(self, graph: FlowGraph) -> None:
        """Follow control as ``graph`` knows it."""
        self.graph, self._memory = graph, graph.map.text.memory

    def tables(self, load: "Place") -> tuple[set[int], int]:
        """Return the tables that a load may read, and its index register; with a scale of one either may be which."""
        insn = load[0].iced[load[1]]
        tables, index = self.addresses(load, register_number(insn.memory_base)), insn.memory_index
        if not tables and insn.memory_index_scale == 1:
            tables, index = self.addresses(load, register_number(insn.memory_index)), insn.memory_base
        return tables, int(index)

    def addresses(self, place: "Place", register: int) -> set[int]:
        """Return what a register can hold, if all of it comes from ``lea register, [rip+x]``; nothing otherwise."""
        values: set[int] = set()
        pending = {(place, register)}
        done: set[tuple[Place, int]] = set()
        while pending:
            step = pending.pop()
            done.add(step)
            found = self.graph.definitions(*step) if step[1] >= 0 else None
            if found is None or len(done) > COPIES:
                return set()
            for body, number in found:
                if number == CALLER:
                    return set()
                insn = body.iced[number]
                if insn.code == Code.LEA_R64_M and insn.memory_base == Register.RIP:
                    values.add(int(insn.memory_displacement))
                elif insn.code in (Code.MOV_R64_RM64, Code.MOV_RM64_R64) and insn.op1_kind == OpKind.REGISTER:
                    pending |= {((body, number), register_number(insn.op1_register))} - done
                else:
                    return set()
        return values

    def entries(self, address: int, entry: str, count: int) -> list[int]:
        """Return up to ``count`` entries, fewer where the memory ends."""
        while count:
            try:
                content = self._memory.read(address, count * calcsize(entry))
            except MemoryFault:
                count //= 2
                continue
            return [value for (value,) in iter_unpack(entry, content)]
        return []

    def bound(self, place: "Place", register: int) -> Bound | None:
        """Return the number of values that an index register can have, from the check above a place."""
        found = self._plain_bound(place, register)
        return found if found is not None else self._distance_bound(place, register)

    def _above(self, place: "Place") -> "Iterator[Place]":
        """Yield the instructions on the way to a place, the nearest first."""
        current = self.graph.before(place)
        for _ in range(_STEPS):
            if current is None:
                return
            yield current
            current = self.graph.before(current)

    def _distance_bound(self, place: "Place", register: int) -> Bound | None:
        """Return the bound of an index of which it is checked how far it is from something."""
        distance, limit = Distance(register), None
        for current in self._above(place):
            insn = current[0].iced[current[1]]
            flow = flow_of(insn)
            if flow is Flow.JCC:
                limit = LIMITS.get(insn.mnemonic, limit)
            elif flow is Flow.NEXT:
                effects = effects_of(insn, current[0].raw_at(current[1]))
                bound = distance.above(insn, effects.may_write, limit)
                if bound is not None:
                    return Bound(bound) if bound >= 0 else None
                limit = None if effects.flags_written else limit
            elif flow is not Flow.JUMP:
                return None
        return None

    def _plain_bound(self, place: "Place", register: int) -> Bound | None:
        aliases: set[object] = {register}
        twins = Compared()
        limit: int | None = None  # what a ja or jae below says of the compare above it: imm + limit values
        for current in self._above(place):
            insn = current[0].iced[current[1]]
            flow = flow_of(insn)
            if flow is Flow.JCC:
                limit = LIMITS.get(insn.mnemonic, limit)
                continue
            if insn.mnemonic == Mnemonic.CMP and limit is not None and operand(insn, 0) in aliases:
                count = checked_count(insn, limit)
                return Bound(count) if count is not None else None
            if flow in (Flow.CALL, Flow.INDIRECT_CALL):
                pass_call(aliases)
                limit = None
                continue
            if flow is Flow.JUMP:
                continue
            if flow is not Flow.NEXT:
                return None
            effects = effects_of(insn, current[0].raw_at(current[1]))
            of_twin = twins.above(insn, aliases, effects.may_write, limit)
            if of_twin is not None:
                return Bound(of_twin)
            if insn.code in NARROW and operand(insn, 0) in aliases and insn.op1_kind == OpKind.MEMORY:
                looked_up = self._bound_of_table(current)
                if looked_up is not None:
                    return Bound(looked_up)
            limit = None if effects.flags_written else limit
            masked = follow_index(insn, aliases, effects.may_write)
            if masked is not None:
                return Bound(masked, is_mask=True)
            if not aliases:
                return None
        return None

    def _bound_of_table(self, load: "Place") -> int | None:
        """Return the number of values that an index loaded from a table of small numbers can have."""
        insn = load[0].iced[load[1]]
        entry = NARROW[insn.code]
        if insn.memory_displacement or insn.memory_index_scale != calcsize(entry):
            return None
        tables, index = self.tables(load)
        bound = self.bound(load, register_number(index)) if len(tables) == 1 else None
        values = self.entries(tables.pop(), entry, bound.number) if bound is not None else []
        return max(values) + 1 if bound is not None and values and len(values) == bound.number else None
