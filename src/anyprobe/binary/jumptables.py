"""Where indirect jumps of compiled code go, as far as it can be proved.

Two forms are recognised, both by a short backward slice: 32-bit offsets relative to the table (``movsxd; add; jmp``,
what GCC and Clang make of ``switch`` in position independent code) and 64-bit addresses (``jmp [table + index*8]``).
A bound check on the index must be seen; beyond it, reading goes on as long as the entries make sense, so that a bound
that belongs to another path can only add targets, never lose one.

A jump through a pointer that comes whole from memory, an argument or a result is no table: it can only reach
addresses that somebody stored, and those are among the module's known entries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import iter_unpack
from typing import Protocol

from iced_x86 import Code, Instruction, Mnemonic, OpKind, Register, RegisterExt

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.isa.decode import Flow, flow_of
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import SYSV_CLOBBERED

_STEPS = 80
"""How far back a slice looks."""
_MOST_ENTRIES = 4096
_CHUNK = 64
_COPIES = 8
"""How many copies between registers a slice follows."""
_RAX = 0
_NO_FALLTHROUGH = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.TRAP, Flow.INVALID})


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


class Body(Protocol):
    """What the slice needs to know of a function."""

    @property
    def iced(self) -> Sequence[Instruction]:
        """Return the instructions in address order."""
        ...

    @property
    def indirect_jumps(self) -> int:
        """Return the number of indirect jumps."""
        ...

    def raw_at(self, index: int) -> bytes:
        """Return the bytes of an instruction."""
        ...

    def branches_to(self, address: int) -> Sequence[int]:
        """Return the indexes of the direct jumps inside the function to an address."""
        ...


def resolve(body: Body, index: int, memory: Memory, accepts: Callable[[int], bool]) -> Table | Pointer | Unresolved:
    """Say where the indirect jump at ``index`` goes. ``accepts`` says which addresses can be targets of a table."""
    jump = body.iced[index]
    slice_ = _Slice(body, memory, accepts)
    if jump.op0_kind == OpKind.MEMORY:
        if jump.memory_index == Register.NONE or jump.memory_index_scale != 8:
            return Pointer()
        absolute = jump.memory_base == Register.NONE and jump.memory_displacement != 0
        if absolute and jump.segment_prefix == Register.NONE:
            table = slice_.table(index, jump.memory_index, jump.memory_displacement, 8)
            return table if isinstance(table, Table) else Pointer()
        return Pointer()
    return slice_.register_jump(index, _gpr(jump.op0_register))


def _gpr(register: int) -> int:
    """Return the encoding number of a register's 64-bit form, or -1."""
    if register == Register.NONE or not RegisterExt.is_gpr(register):  # type: ignore[arg-type]
        return -1
    return int(RegisterExt.full_register(register)) - int(Register.RAX)  # type: ignore[arg-type]


class _Slice:
    def __init__(self, body: Body, memory: Memory, accepts: Callable[[int], bool]) -> None:
        self.body, self.memory, self.accepts = body, memory, accepts

    def before(self, index: int) -> int | None:
        """Return an instruction from which control comes to this one: the one above, else a jump here."""
        iced = self.body.iced
        if index > 0:
            flow = flow_of(iced[index - 1])
            if flow not in _NO_FALLTHROUGH:
                return index - 1
        sources = [s for s in self.body.branches_to(iced[index].ip) if s != index]
        return sources[0] if sources else None

    def definitions(self, index: int, register: int) -> frozenset[int] | None:
        """Return every instruction whose value of a register can reach ``index`` (-1: the function's caller's).

        ``None`` if some path cannot be followed. A label may be a target of another indirect jump of the function;
        where there is one, the search does not cross labels.
        """
        bit = 1 << register
        found: set[int] = set()
        seen = {index}
        todo = [index]
        while todo:
            here = todo.pop()
            above = self._predecessors(here)
            if above is None or len(seen) > _STEPS:
                return None
            if here == 0:
                found.add(-1)
            for current in above:
                if current in seen and current != index:
                    continue
                seen.add(current)
                if self._changes(current, bit):
                    found.add(current)
                elif current != index:
                    todo.append(current)
        return frozenset(found)

    def _predecessors(self, index: int) -> list[int] | None:
        iced = self.body.iced
        sources = list(self.body.branches_to(iced[index].ip))
        falls = index > 0 and flow_of(iced[index - 1]) not in _NO_FALLTHROUGH
        if index > 0 and (sources or not falls) and self.body.indirect_jumps > 1:
            return None
        if falls:
            sources.append(index - 1)
        return sources if sources or index == 0 else None

    def _changes(self, index: int, bit: int) -> bool:
        insn = self.body.iced[index]
        if flow_of(insn) in (Flow.CALL, Flow.INDIRECT_CALL):
            return bool(SYSV_CLOBBERED & bit)
        return bool(effects_of(insn, self.body.raw_at(index)).may_write & bit)

    def register_jump(self, index: int, register: int) -> Table | Pointer | Unresolved:
        """Follow the jump's register back to tables or to whole pointers."""
        pending = {(index, register)}
        done: set[tuple[int, int]] = set()
        targets: dict[int, None] = {}
        table = 0
        while pending:
            step = pending.pop()
            done.add(step)
            at = self.definitions(*step) if step[1] >= 0 else None
            if at is None or len(done) > _COPIES:
                return Unresolved("the jump's register is set on paths that cannot be followed")
            for place in at:
                outcome = self._origin(place, step[1])
                if isinstance(outcome, Unresolved):
                    return outcome
                if isinstance(outcome, Table):
                    table = outcome.address
                    targets.update(dict.fromkeys(outcome.targets))
                elif isinstance(outcome, tuple) and outcome not in done:
                    pending.add(outcome)
        return Table(table, tuple(targets)) if targets else Pointer()

    def _origin(self, at: int, register: int) -> Table | Pointer | Unresolved | tuple[int, int]:
        """Say what a definition of the jump's register makes of it; a pair: a copy of another register there."""
        if at < 0:
            return Pointer()
        insn = self.body.iced[at]
        if flow_of(insn) in (Flow.CALL, Flow.INDIRECT_CALL):
            return Pointer() if register == _RAX else Unresolved("the jump's register is set by a callee")
        if insn.code in (Code.MOV_R64_RM64, Code.MOV_RM64_R64) and insn.op0_kind == OpKind.REGISTER:
            return Pointer() if insn.op1_kind == OpKind.MEMORY else (at, _gpr(insn.op1_register))
        if insn.mnemonic == Mnemonic.ADD and insn.op1_kind == OpKind.REGISTER:
            return self._relative(at, register, _gpr(insn.op1_register))
        if insn.mnemonic == Mnemonic.XOR and insn.segment_prefix == Register.FS and insn.memory_displacement == 0x30:
            return Pointer()  # a stored pointer that glibc has encrypted with the thread's pointer guard
        if insn.code == Code.LEA_R64_M and insn.memory_base == Register.RIP:
            return Pointer()  # the scan of the code finds it
        return Unresolved("the jump's target is computed in a way that is not known")

    def _relative(self, at: int, first: int, second: int) -> Table | Unresolved:
        """Resolve ``movsxd a, [base+index*4]; add a, base; jmp a`` with the operands of ``add`` either way round."""
        for offset in (first, second):
            loads = self.definitions(at, offset)
            if not loads or any(not self._is_load(load) for load in loads):
                continue
            targets: dict[int, None] = {}
            for load in loads:
                insn = self.body.iced[load]
                tables = self._table_addresses(load, _gpr(insn.memory_base))
                if not tables:
                    return Unresolved("the address of the jump table is not known")
                for table in tables:
                    outcome = self.table(load, insn.memory_index, table, 4)
                    if isinstance(outcome, Unresolved):
                        return outcome
                    targets.update(dict.fromkeys(outcome.targets))
            return Table(table, tuple(targets))
        return Unresolved("the jump's target is computed in a way that is not known")

    def _is_load(self, at: int) -> bool:
        if at < 0:
            return False
        insn = self.body.iced[at]
        is_load = insn.code == Code.MOVSXD_R64_RM32 and insn.op1_kind == OpKind.MEMORY
        return is_load and insn.memory_index_scale == 4 and insn.memory_displacement == 0

    def _table_addresses(self, at: int, base: int) -> set[int]:
        """Return what ``base`` can hold: of ``lea base, [rip+x]`` those that reach, or the only one there is."""
        if base < 0:
            return set()
        found = self.definitions(at, base)
        if found:
            addresses = {self._lea(place, base) for place in found}
            return {address for address in addresses if address is not None} if None not in addresses else set()
        everywhere = {self._lea(n, base) for n in range(len(self.body.iced))} - {None}
        return {address for address in everywhere if address is not None} if len(everywhere) == 1 else set()

    def _lea(self, at: int, register: int) -> int | None:
        if at < 0:
            return None
        insn = self.body.iced[at]
        if insn.code != Code.LEA_R64_M or insn.memory_base != Register.RIP or _gpr(insn.op0_register) != register:
            return None
        return int(insn.memory_displacement)

    def table(self, at: int, index_register: int, table: int, size: int) -> Table | Unresolved:
        """Read a table whose index is bounded somewhere before ``at``."""
        count = self.bound(at, _gpr(index_register))
        if count is None:
            return Unresolved("no bound check of the jump table's index was found")
        targets = self._read(table, size, count)
        if targets is None:
            return Unresolved(f"the jump table at {table:#x} holds what is no code of this function")
        return Table(table, targets)

    def _read(self, table: int, size: int, count: int) -> tuple[int, ...] | None:
        targets: list[int] = []
        for n in range(0, _MOST_ENTRIES, _CHUNK):
            entries = self._entries(table + n * size, size, _CHUNK)
            for entry in entries:
                target = entry if size == 8 else table + entry
                if not self.accepts(target):
                    break
                targets.append(target)
            if len(targets) < n + _CHUNK:
                break
        return tuple(dict.fromkeys(targets)) if len(targets) >= count else None

    def _entries(self, address: int, size: int, count: int) -> list[int]:
        """Return up to ``count`` entries, fewer where the memory ends."""
        while count:
            try:
                content = self.memory.read(address, count * size)
            except MemoryFault:
                count //= 2
                continue
            return [value for (value,) in iter_unpack("<i" if size == 4 else "<Q", content)]
        return []

    def bound(self, at: int, register: int) -> int | None:
        """Return the number of values that an index register can have, from the check above ``at``."""
        aliases: set[object] = {register}
        limit: int | None = None  # what a ja or jae below says of the compare above it: imm + limit values
        current: int | None = at
        for _ in range(_STEPS):
            current = self.before(current) if current is not None else None
            if current is None:
                return None
            insn = self.body.iced[current]
            if flow_of(insn) is Flow.JCC:
                limit = _LIMITS.get(insn.mnemonic, limit)
                continue
            if insn.mnemonic == Mnemonic.CMP and limit is not None and _operand(insn, 0) in aliases:
                value = _immediate(insn)
                return value + limit if value is not None and value + limit <= _MOST_ENTRIES else None
            if flow_of(insn) is not Flow.NEXT:
                continue
            masked = _follow(insn, aliases, effects_of(insn, self.body.raw_at(current)).may_write)
            if masked is not None:
                return masked
            if not aliases:
                return None
        return None


# Jump away when above: imm + 1 values stay. Jump away when not below: imm values. jbe and jb jump to the switch.
_LIMITS = {Mnemonic.JA: 1, Mnemonic.JAE: 0, Mnemonic.JBE: 1, Mnemonic.JB: 0}


def _operand(insn: Instruction, number: int) -> object:
    """Return a name for an operand: a register's number, or the parts of a memory operand."""
    if insn.op_kind(number) == OpKind.REGISTER:
        return _gpr(insn.op_register(number))
    if insn.op_kind(number) == OpKind.MEMORY:
        return insn.memory_base, insn.memory_index, insn.memory_index_scale, insn.memory_displacement
    return None


def _immediate(insn: Instruction) -> int | None:
    """Return the immediate second operand if it is small and not negative."""
    if insn.op_kind(1) in (OpKind.REGISTER, OpKind.MEMORY):
        return None
    value = insn.immediate(1)
    return value if 0 <= value < _MOST_ENTRIES else None


def _follow(insn: Instruction, aliases: set[object], written: int) -> int | None:
    """Step the aliases of the index above one instruction; return a bound if the instruction is a mask."""
    target = _operand(insn, 0) if insn.op_count else None
    if target in aliases and insn.op_count >= 2:
        if insn.mnemonic == Mnemonic.AND:
            value = _immediate(insn)
            if value is not None:
                return value + 1
        if insn.mnemonic in (Mnemonic.MOV, Mnemonic.MOVZX, Mnemonic.MOVSXD):
            aliases.discard(target)
            aliases.add(_operand(insn, 1))
            aliases.discard(None)
            return None
    for number in range(16):
        if written >> number & 1:
            aliases.discard(number)
    return None
