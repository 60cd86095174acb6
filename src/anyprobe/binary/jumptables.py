"""Where indirect jumps of compiled code go, as far as it can be proved.

Three forms are recognised, all by a short backward slice: offsets of 8, 16 or 32 bits relative to the table or to a
place in the code (``movsxd; add; jmp``, what GCC, Clang and Rust make of ``switch`` in position independent code),
64-bit addresses (``jmp [table + index*8]``), and copies of one piece of code at equal distances (``and; shl; add;
jmp``, as assembly has it). An index may itself come from a table of bytes.

Where a table ends is known in one of two ways. A bound check on the index: beyond it, reading goes on as long as the
entries make sense, so that a bound that belongs to another path can only add targets, never lose one. Or, where the
compiler knows that the index cannot be larger (a match on an enumeration), the table itself: all its entries lead to
code of this function, and the first one that does not leads to no code at all, or lies in something else that the code
refers to.

A jump through a pointer that comes whole from memory, an argument or a result is no table: it can only reach
addresses that somebody stored, and those are among the module's known entries.
"""

from dataclasses import dataclass
from struct import calcsize, iter_unpack
from typing import TYPE_CHECKING

from iced_x86 import Code, Mnemonic, OpKind, Register

from anyprobe.binary.flowgraph import CALLER, FlowGraph
from anyprobe.binary.tableforms import (
    CONDITIONAL_MOVES,
    LEAS,
    LIMITS,
    LOADS,
    MOST_ENTRIES,
    MOST_SHIFT,
    NARROW,
    NEAR,
    SHIFTS,
    Compared,
    checked_count,
    entry_loads,
    follow_index,
    operand,
    register_number,
    small_immediate,
    uses_registers,
)
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import Flow, flow_of
from anyprobe.isa.effects import effects_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyprobe.binary.cfg import CodeMap
    from anyprobe.binary.flowgraph import Place
    from anyprobe.binary.function import FunctionCode

_STEPS = 80
"""How far back the search for a bound check looks."""
_CHUNK = 64
_COMPUTED = "the jump's target is computed in a way that is not known"
_COPIES = 8
"""How many copies between registers a slice follows."""
_RAX = 0


@dataclass(frozen=True, slots=True)
class Table:
    """The proven targets of a jump through a table."""

    address: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """The jump goes to an address that was stored somewhere: one of the known entries, or out of the function."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Nothing is known, and why."""

    why: str


Outcome = Table | Pointer | Unresolved


def resolve_jumps(code_map: "CodeMap", function: "FunctionCode", jumps: "Sequence[int]") -> dict[int, Outcome]:
    """Say where the indirect jumps of a function go, by their numbers."""
    outcomes = _resolve(FlowGraph(code_map, function), jumps)
    if any(isinstance(outcome, Unresolved) for outcome in outcomes.values()):  # which callees return takes a while
        return _resolve(FlowGraph(code_map, function, code_map.endless), jumps)
    return outcomes


def _resolve(graph: FlowGraph, jumps: "Sequence[int]") -> dict[int, Outcome]:
    function = graph.function
    slice_ = _Slice(graph)
    grows = any(uses_registers(function.iced[number]) for number in jumps)
    while grows:  # what was a target stays one, so this ends
        grows = False
        for number in jumps:
            outcome = slice_.resolve(number)
            for target in outcome.targets if isinstance(outcome, Table) else ():
                known = graph.table_jumps.setdefault(target, set())
                grows = grows or number not in known
                known.add(number)
    graph.is_final = True
    return slice_.resolve_finally(jumps)


class _Slice:
    def __init__(self, graph: FlowGraph) -> None:
        self.graph, self.map, self.function = graph, graph.map, graph.function

    def resolve_finally(self, jumps: "Sequence[int]") -> dict[int, Outcome]:
        """Resolve the jumps with all tables known; if one of them is not, no label can be trusted for another."""
        outcomes = {number: self.resolve(number) for number in jumps}
        if len(jumps) > 1 and any(isinstance(outcome, Unresolved) for outcome in outcomes.values()):
            self.graph.crosses_labels = False
            outcomes = {number: self.resolve(number) for number in jumps}
        return outcomes

    def resolve(self, number: int) -> Outcome:
        """Say where one jump goes, as far as the tables are known."""
        jump = self.function.iced[number]
        place = self.function, number
        if jump.op0_kind == OpKind.REGISTER:
            return self.register_jump(place, register_number(jump.op0_register))
        if jump.memory_index_scale == 8 and jump.segment_prefix == Register.NONE:
            tables = {int(jump.memory_displacement)}
            if jump.memory_base != Register.NONE:  # Go: lea base, [rip+table]; jmp [base+index*8]
                tables = (
                    self._lea_values(place, register_number(jump.memory_base))
                    if jump.memory_displacement == 0
                    else set()
                )
            table = self.table(place, jump.memory_index, tables.pop(), "<Q") if len(tables) == 1 else None
            return table if isinstance(table, Table) else Pointer()
        return Pointer()

    def accepts(self, target: int) -> bool:
        """Return whether a jump table may lead here: in this function, or in a part of it."""
        if self.function.start <= target < self.function.end:
            return self.function.is_boundary(target)
        part = self.map.part_at(target, self.function)
        return part is not None and part.is_boundary(target)

    def register_jump(self, place: "Place", register: int) -> Outcome:
        """Follow the jump's register back to tables or to whole pointers."""
        pending = {(place, register)}
        done: set[tuple[Place, int]] = set()
        targets: dict[int, None] = {}
        table = 0
        while pending:
            step = pending.pop()
            done.add(step)
            found = self.graph.definitions(*step) if step[1] >= 0 else None
            if found is None or len(done) > _COPIES:
                return Unresolved("the jump's register is set on paths that cannot be followed")
            for one in found:
                outcome = self._origin(one, step[1])
                if isinstance(outcome, Unresolved):
                    return outcome
                if isinstance(outcome, Table):
                    table = outcome.address
                    targets.update(dict.fromkeys(outcome.targets))
                elif isinstance(outcome, list):
                    pending.update((one, register) for register in outcome if (one, register) not in done)
        return Table(table, tuple(targets)) if targets else Pointer()

    def _origin(self, place: "Place", register: int) -> Outcome | list[int]:
        """Say what a definition of the jump's register makes of it; a list: what some registers hold above it."""
        body, number = place
        if number == CALLER:
            return Pointer()
        insn = body.iced[number]
        if flow_of(insn) in (Flow.CALL, Flow.INDIRECT_CALL):
            return Pointer() if register == _RAX else Unresolved("the jump's register is set by a callee")
        if insn.code in (Code.MOV_R64_RM64, Code.MOV_RM64_R64) and insn.op0_kind == OpKind.REGISTER:
            return Pointer() if insn.op1_kind == OpKind.MEMORY else [register_number(insn.op1_register)]
        if insn.code in CONDITIONAL_MOVES:
            return [register] if insn.op1_kind == OpKind.MEMORY else [register, register_number(insn.op1_register)]
        if insn.code == Code.POP_R64:
            return Pointer()  # a return address, or what was pushed
        if insn.mnemonic == Mnemonic.ADD and insn.op1_kind == OpKind.REGISTER:
            return self._relative(place, register, register_number(insn.op1_register))
        if insn.mnemonic == Mnemonic.XOR and insn.segment_prefix == Register.FS and insn.memory_displacement == 0x30:
            return Pointer()  # a stored pointer that glibc has encrypted with the thread's pointer guard
        if insn.code == Code.LEA_R64_M:
            if insn.memory_base == Register.RIP:
                return Pointer()  # the scan of the code finds it
            if insn.memory_index_scale == 1 and insn.memory_displacement == 0 and insn.memory_index != Register.NONE:
                return self._relative(place, register_number(insn.memory_base), register_number(insn.memory_index))
        return Unresolved(_COMPUTED)

    def _relative(self, place: "Place", first: int, second: int) -> Table | Unresolved:
        """Resolve ``movsxd a, [base+index*4]; add a, base; jmp a`` with the operands of ``add`` either way round."""
        for offset, start in ((first, second), (second, first)):
            loads = entry_loads(self.graph, place, offset) if offset >= 0 else None
            if not loads:
                continue
            starts = self._lea_values(place, start)
            targets: dict[int, None] = {}
            for load in loads:
                entry = LOADS.get(load[0].iced[load[1]].code, NEAR)
                tables, index = self._tables(load)
                if not tables or not starts or (tables != starts and len(starts) > 1):
                    return Unresolved("the address of the jump table is not known")
                for table in tables:
                    base = next(iter(starts)) if len(starts) == 1 else table
                    outcome = self.table(load, index, table, entry, base)
                    if isinstance(outcome, Unresolved):
                        return outcome
                    targets.update(dict.fromkeys(outcome.targets))
            return Table(table, tuple(targets))
        return self._labels(place, first, second) or self._labels(place, second, first) or Unresolved(_COMPUTED)

    def _labels(self, place: "Place", distance: int, start: int) -> Table | None:
        """Resolve ``and i, 15; shl i, 6; add i, base; jmp i``: pieces of code of one size, one behind the other."""
        bases = self._lea_values(place, start)
        step, index, register = self._step(place, distance)
        count = self._masked(index, register) if len(bases) == 1 and step > 1 else 0
        if not count:
            return None
        base = bases.pop()
        targets = tuple(base + number * step for number in range(count))
        return Table(base, targets) if all(map(self.accepts, targets)) else None

    def _masked(self, place: "Place", register: int) -> int:
        """Return the number of values that a register can have, whichever way control comes; 0 if that is not known."""
        most = 0
        for body, number in self.graph.definitions(place, register) or ():
            insn = body.iced[number] if number != CALLER else None
            if insn is None or insn.mnemonic != Mnemonic.AND or insn.op0_kind != OpKind.REGISTER:
                return 0
            value = small_immediate(insn)
            if value is None:
                return 0
            most = max(most, value + 1)
        return most

    def _step(self, place: "Place", register: int) -> "tuple[int, Place, int]":
        """Return by what a register's value is a multiple of an index, and the index, named by where it is used."""
        step = 1
        for _ in range(_COPIES):
            found = self.graph.definitions(place, register) if register >= 0 else None
            above = next(iter(found)) if found is not None and len(found) == 1 else None
            if above is None or above[1] == CALLER:
                break
            insn = above[0].iced[above[1]]
            if insn.code in SHIFTS and insn.op0_kind == OpKind.REGISTER and insn.immediate8 < MOST_SHIFT:
                step <<= insn.immediate8
            elif insn.code in LEAS and insn.memory_base == insn.memory_index and insn.memory_displacement == 0:
                step *= 1 + insn.memory_index_scale
                register = register_number(insn.memory_base)
            else:
                break
            place = above
        return step, place, register

    def _tables(self, load: "Place") -> tuple[set[int], int]:
        """Return the tables that a load may read, and its index register; with a scale of one either may be which."""
        insn = load[0].iced[load[1]]
        tables, index = self._lea_values(load, register_number(insn.memory_base)), insn.memory_index
        if not tables and insn.memory_index_scale == 1:
            tables, index = self._lea_values(load, register_number(insn.memory_index)), insn.memory_base
        return tables, int(index)

    def _lea_values(self, place: "Place", register: int) -> set[int]:
        """Return what a register can hold, if all of it comes from ``lea register, [rip+x]``; nothing otherwise."""
        values: set[int] = set()
        pending = {(place, register)}
        done: set[tuple[Place, int]] = set()
        while pending:
            step = pending.pop()
            done.add(step)
            found = self.graph.definitions(*step) if step[1] >= 0 else None
            if found is None or len(done) > _COPIES:
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

    def table(self, place: "Place", index_register: int, table: int, entry: str, base: int = 0) -> Table | Unresolved:
        """Read a table; its entries are addresses, or distances from ``base``."""
        count = self.bound(place, register_number(index_register))
        if count is None and entry != NEAR:
            return Unresolved("no bound check of the jump table's index was found")
        targets = self._read(table, entry, base)
        if count is None and not self._is_whole(table, len(targets), base):
            return Unresolved("no bound check of the jump table's index was found")
        if len(targets) < (count or 1):
            return Unresolved(f"the jump table at {table:#x} holds what is no code of this function")
        return Table(table, tuple(dict.fromkeys(targets)))

    def _is_whole(self, table: int, count: int, base: int) -> bool:
        """Return whether a table has no more than ``count`` entries, by what lies around them.

        Every entry of a table leads to code, those that are never used too. An entry in front of the table would be one
        for a negative index, as hand-written code may have.
        """
        end = table + count * 4
        if count in (0, MOST_ENTRIES):
            return False
        in_front = any(self.accepts(base + each) for each in self._entries(table - 4, NEAR, 1))
        if in_front and not self._ends_another(table):
            return False
        behind = self._entries(end, NEAR, 1)
        return (bool(behind) and not self.map.is_code(base + behind[0])) or self.map.refers_to_data(table + 4, end + 1)

    def _ends_another(self, table: int) -> bool:
        """Return whether what lies right in front of a table is another one, that code refers to."""
        other = self.map.data_reference_before(table, table - 4 * MOST_ENTRIES)
        if other is None or (table - other) % 4:
            return False
        entries = self._entries(other, NEAR, (table - other) // 4)
        return len(entries) == (table - other) // 4 and all(self.accepts(other + each) for each in entries)

    def _read(self, table: int, entry: str, base: int) -> list[int]:
        """Return the targets that the entries name, up to the first that is none."""
        targets: list[int] = []
        size = calcsize(entry)
        for n in range(0, MOST_ENTRIES, _CHUNK):
            for value in self._entries(table + n * size, entry, _CHUNK):
                if not self.accepts(base + value):
                    return targets
                targets.append(base + value)
            if len(targets) < n + _CHUNK:
                break
        return targets

    def _entries(self, address: int, entry: str, count: int) -> list[int]:
        """Return up to ``count`` entries, fewer where the memory ends."""
        while count:
            try:
                content = self.map.text.memory.read(address, count * calcsize(entry))
            except MemoryFault:
                count //= 2
                continue
            return [value for (value,) in iter_unpack(entry, content)]
        return []

    def bound(self, place: "Place", register: int) -> int | None:
        """Return the number of values that an index register can have, from the check above a place."""
        aliases: set[object] = {register}
        twins = Compared()
        limit: int | None = None  # what a ja or jae below says of the compare above it: imm + limit values
        current: Place | None = place
        for _ in range(_STEPS):
            current = self.graph.before(current) if current is not None else None
            if current is None:
                return None
            insn = current[0].iced[current[1]]
            if flow_of(insn) is Flow.JCC:
                limit = LIMITS.get(insn.mnemonic, limit)
                continue
            if insn.mnemonic == Mnemonic.CMP and limit is not None and operand(insn, 0) in aliases:
                return checked_count(insn, limit)
            if flow_of(insn) is not Flow.NEXT:
                continue
            written = effects_of(insn, current[0].raw_at(current[1])).may_write
            of_twin = twins.above(insn, aliases, written, limit)
            if of_twin is not None:
                return of_twin
            if insn.code in NARROW and operand(insn, 0) in aliases and insn.op1_kind == OpKind.MEMORY:
                looked_up = self._bound_of_table(current)
                if looked_up is not None:
                    return looked_up
            masked = follow_index(insn, aliases, written)
            if masked is not None:
                return masked
            if not aliases:
                return None
        return None

    def _bound_of_table(self, load: "Place") -> int | None:
        """Return the number of values that an index loaded from a table of small numbers can have."""
        insn = load[0].iced[load[1]]
        entry = NARROW[insn.code]
        if insn.memory_displacement or insn.memory_index_scale != calcsize(entry):
            return None
        tables, index = self._tables(load)
        count = self.bound(load, register_number(index)) if len(tables) == 1 else None
        values = self._entries(tables.pop(), entry, count) if count is not None else []
        return max(values) + 1 if values and len(values) == count else None
