"""Where indirect jumps of compiled code go, as far as it can be proved.

Three forms are recognised, all by a short backward slice: offsets of 8, 16 or 32 bits relative to the table or to a
place in the code (``movsxd; add; jmp``, what GCC, Clang and Rust make of ``switch`` in position independent code),
64-bit addresses (``jmp [table + index*8]``), and copies of one piece of code at equal distances (``and; shl; add;
jmp``, as assembly has it). An index may itself come from a table of bytes.

Where a table ends is known in one of two ways. A bound check on the index: beyond it, reading goes on as long as the
entries make sense and nothing refers to one of them, so that a bound that belongs to another path can only add targets,
never lose one. Or, where the compiler knows that the index cannot be larger (a match on an enumeration, or on a few
bits of which not all values occur), the table itself: all its entries lead to code of this function, and the first one
that does not leads to no code at all, or lies in something else that the code refers to.

A jump through a pointer that comes whole from memory, an argument or a result is no table: it can only reach
addresses that are stored somewhere, and those are among the module's known entries.
"""

from struct import calcsize
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Mnemonic, OpKind, Register

from anyprobe.binary.analysis.jump_outcomes import JumpTables, Outcome, Pointer, Table, Unresolved
from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.flow.evidence import Evidence
from anyprobe.binary.flow.flow_graph import CALLER, FlowGraph
from anyprobe.binary.flow.indices import Indices
from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions
from anyprobe.binary.flow.pieces import Pieces
from anyprobe.binary.flow.table_forms import (
    CONDITIONAL_MOVES,
    COPIES,
    LEAS,
    LOADS,
    MOST_ENTRIES,
    MOST_SHIFT,
    NEAR,
    SHIFTS,
    entry_loads,
    is_fixed_load,
    register_number,
    small_immediate,
    uses_registers,
)
from anyprobe.core.checkpoints import checkpoint
from anyprobe.isa.decode import Flow, flow_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyprobe.binary.flow.flow_graph import Place

_CHUNK = 64
_COMPUTED = "the jump's target is computed in a way that is not known"
_RAX = 0
_UNBOUNDED = "no bound check of the jump table's index was found"
_NO_CODE = "holds what is no code of this function"


class _Known(NamedTuple):
    """Where a jump goes, and what that depends on."""

    outcome: Outcome
    asked: set[int]
    """The addresses of which it mattered which tables lead there."""
    is_lost: bool
    """Whether it mattered that not all tables were known."""


def resolved_jumps(code_map: ModuleView, function: FunctionView, jumps: "Sequence[int]") -> JumpTables:
    """Return where the indirect jumps of a function go, which are given by their numbers."""
    found = JumpTables({}, {})
    if not code_map.text.has_jump_tables:
        return found
    for number, outcome in resolve_jumps(code_map, function, jumps).items():
        if isinstance(outcome, Table):
            found.tables[function.addresses[number]] = outcome
        elif isinstance(outcome, Unresolved):
            found.unresolved[function.addresses[number]] = outcome
    return found


def resolve_jumps(code_map: ModuleView, function: FunctionView, jumps: "Sequence[int]") -> dict[int, Outcome]:
    """Say where the indirect jumps of a function go, by their numbers."""
    outcomes = _resolve(FlowGraph(code_map, function), jumps)
    if any(isinstance(outcome, Unresolved) for outcome in outcomes.values()):  # which callees return takes a while
        return _resolve(FlowGraph(code_map, function, code_map.analyses.get(NoReturnFunctions)), jumps)
    return outcomes


def _resolve(graph: FlowGraph, jumps: "Sequence[int]") -> dict[int, Outcome]:
    function = graph.function
    slice_ = _Slice(graph)
    grows = any(uses_registers(function.iced[number]) for number in jumps)
    while grows:  # what was a target stays one, so this ends
        grows = False
        for number in jumps:
            outcome = slice_.resolve(number)
            fresh = slice_.lead(number, outcome.targets) if isinstance(outcome, Table) else False
            grows = grows or fresh
    return slice_.resolve_finally(jumps)


class _Slice:
    def __init__(self, graph: FlowGraph) -> None:
        self.graph, self.map, self.function = graph, graph.map, graph.function
        self._index = Indices(graph)
        self._pieces, self._evidence = self.map.analyses.get(Pieces), self.map.analyses.get(Evidence)
        self._known: dict[int, _Known] = {}
        """By the numbers of the jumps: most tables change nothing for any of them."""

    def lead(self, number: int, targets: "Sequence[int]") -> bool:
        """Take note that a jump leads to some addresses; return whether that is news."""
        jumps = self.graph.table_jumps
        fresh = {target for target in targets if number not in jumps.get(target, ())}
        for target in fresh:
            jumps.setdefault(target, set()).add(number)
        if fresh:
            self._known = {each: known for each, known in self._known.items() if fresh.isdisjoint(known.asked)}
        return bool(fresh)

    def resolve_finally(self, jumps: "Sequence[int]") -> dict[int, Outcome]:
        """Resolve the jumps with all tables known; if one of them is not, no label can be trusted for another."""
        self.graph.is_final = True
        self._known = {number: known for number, known in self._known.items() if not known.is_lost}
        outcomes = {number: self.resolve(number) for number in jumps}
        if len(jumps) > 1 and any(isinstance(outcome, Unresolved) for outcome in outcomes.values()):
            self.graph.crosses_labels = False
            self._known = {}
            outcomes = {number: self.resolve(number) for number in jumps}
        return outcomes

    def resolve(self, number: int) -> Outcome:
        """Say where one jump goes, as far as the tables are known."""
        known = self._known.get(number)
        if known is None:
            graph = self.graph
            graph.asked, graph.is_lost = set(), False
            outcome = self._resolve(number)
            known = self._known[number] = _Known(outcome, graph.asked, graph.is_lost)
        return known.outcome

    def _resolve(self, number: int) -> Outcome:
        jump = self.function.iced[number]
        place = self.function, number
        if jump.op0_kind == OpKind.REGISTER:
            return self.register_jump(place, register_number(jump.op0_register))
        if jump.memory_index_scale == 8 and jump.segment_prefix == Register.NONE:
            tables = {int(jump.memory_displacement)}
            if jump.memory_base != Register.NONE:  # Go: lea base, [rip+table]; jmp [base+index*8]
                tables = (
                    self._index.addresses(place, register_number(jump.memory_base))
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
        part = self._pieces.sibling_at(target, self.function)
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
            if found is None or len(done) > COPIES:
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
        if insn.code in (Code.MOV_R32_IMM32, Code.MOV_RM64_IMM32) and not self.map.text.is_pie:
            return Pointer()  # the scan of the code finds it
        if insn.code == Code.LEA_R64_M:
            if insn.memory_base == Register.RIP:
                return Pointer()  # and this
            if insn.memory_index_scale == 1 and insn.memory_displacement == 0 and insn.memory_index != Register.NONE:
                return self._relative(place, register_number(insn.memory_base), register_number(insn.memory_index))
        return Unresolved(_COMPUTED)

    def _relative(self, place: "Place", first: int, second: int) -> Table | Unresolved:
        """Resolve ``movsxd a, [base+index*4]; add a, base; jmp a`` with the operands of ``add`` either way round."""
        for offset, start in ((first, second), (second, first)):
            loads = entry_loads(self.graph, place, offset) if offset >= 0 else None
            if not loads:
                continue
            starts = self._index.addresses(place, start)
            if all(is_fixed_load(load) for load in loads):
                return self._fixed(loads, starts)
            targets: dict[int, None] = {}
            for load in loads:
                entry = LOADS.get(load[0].iced[load[1]].code, NEAR)
                tables, index = self._index.tables(load)
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

    def _fixed(self, loads: "frozenset[Place]", starts: set[int]) -> Table | Unresolved:
        """Resolve a jump by one entry of a table, where the compiler knew the index but left the look-up."""
        tables = [int(body.iced[number].memory_displacement) for body, number in loads]
        base = starts.pop() if len(starts) == 1 else None
        targets = [base + value for at in tables if base is not None for value in self._index.entries(at, NEAR, 1)]
        if len(targets) != len(tables) or not all(map(self.accepts, targets)):
            return Unresolved(_COMPUTED)
        return Table(tables[0], tuple(dict.fromkeys(targets)))

    def _labels(self, place: "Place", distance: int, start: int) -> Table | None:
        """Resolve ``and i, 15; shl i, 6; add i, base; jmp i``: pieces of code of one size, one after the other."""
        bases = self._index.addresses(place, start)
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
        for _ in range(COPIES):
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

    def table(self, place: "Place", index_register: int, table: int, entry: str, base: int = 0) -> Table | Unresolved:
        """Read a table; its entries are addresses, or distances from ``base``."""
        checkpoint()  # a function may have thousands
        bound = self._index.bound(place, register_number(index_register))
        if bound is None and entry != NEAR:
            return Unresolved(_UNBOUNDED)
        count = bound.number if bound is not None else 0
        targets = self._read(table, entry, base, count)
        if count and len(targets) >= count:
            del targets[self._where_another_begins(table, entry, count, len(targets)) :]
        elif (
            (bound is not None and not bound.is_mask) or entry != NEAR or not self._is_whole(table, len(targets), base)
        ):
            return Unresolved(_UNBOUNDED if bound is None else f"the jump table at {table:#x} {_NO_CODE}")
        return Table(table, tuple(dict.fromkeys(targets)))

    def _where_another_begins(self, table: int, entry: str, least: int, most: int) -> int:
        """Return how many entries a table has at most: one that code takes the address of is another table's first."""
        size = calcsize(entry)
        if most == least:
            return most
        after = next(self._evidence.data_taken(table + least * size, table + most * size), None)
        return most if after is None else (after[0] - table) // size

    def _is_whole(self, table: int, count: int, base: int) -> bool:
        """Return whether a table has no more than ``count`` entries, by what lies around them.

        Every entry of a table leads to code, those that are never used too. An entry before the table would be one
        for a negative index, as hand-written code may have.
        """
        end = table + count * 4
        if count in (0, MOST_ENTRIES):
            return False
        in_front = any(self.accepts(base + each) for each in self._index.entries(table - 4, NEAR, 1))
        if in_front and not self._ends_another(table):
            return False
        after = self._index.entries(end, NEAR, 1)
        return (bool(after) and not any(base + after[0] in area for area in self.map.text.ranges)) or any(
            self._evidence.data_taken(table + 4, end + 1)
        )

    def _ends_another(self, table: int) -> bool:
        """Return whether right before a table is another one, of this function or of another that refers to it."""
        found = next(self._evidence.data_taken(table - 4 * MOST_ENTRIES, table, backwards=True), None)
        if found is None or (table - found[0]) % 4:
            return False
        other, size = found[0], (table - found[0]) // 4
        home = self.map.containing(found[1])
        entries = self._index.entries(other, NEAR, size)
        return len(entries) == size and (
            all(self.accepts(other + each) for each in entries)
            or (home is not None and all(home.is_boundary(other + each) for each in entries))
        )

    def _read(self, table: int, entry: str, base: int, count: int) -> list[int]:
        """Return the targets that the entries name, up to the first that is none; other functions only if in bounds."""
        targets: list[int] = []
        size = calcsize(entry)
        for n in range(0, MOST_ENTRIES, _CHUNK):
            for value in self._index.entries(table + n * size, entry, _CHUNK):
                target = base + value
                if not self.accepts(target) and not (
                    len(targets) < count and self.map.layout.start_of(target) == target
                ):
                    return targets
                targets.append(target)
            if len(targets) < n + _CHUNK:
                break
        return targets
