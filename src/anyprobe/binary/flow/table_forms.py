"""The instructions by which compiled code jumps through tables, as far as they are recognised."""

from struct import calcsize
from typing import TYPE_CHECKING

from iced_x86 import Code, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, RegisterExt

from anyprobe.binary.flow.flow_graph import CALLER
from anyprobe.isa.decode import constants
from anyprobe.isa.effects import WRITES
from anyprobe.isa.registers import SYSV_CLOBBERED

if TYPE_CHECKING:
    from anyprobe.binary.flow.flow_graph import FlowGraph, Place

MOST_ENTRIES = 4096
"""A table that is longer is taken for a mistake."""
MOST_SHIFT = 12
_factory = InstructionInfoFactory()
COPIES = 8
"""How many copies between registers a slice follows."""
NEAR = "<i"
LOADS = {
    Code.MOVSXD_R64_RM32: NEAR,
    Code.MOVSX_R64_RM16: "<h",
    Code.MOVSX_R64_RM8: "<b",
    Code.MOVZX_R32_RM16: "<H",
    Code.MOVZX_R64_RM16: "<H",
    Code.MOVZX_R32_RM8: "<B",
    Code.MOVZX_R64_RM8: "<B",
}
"""Loads of a table's entry, and the entry's form for ``struct``."""
SHIFTS = (Code.SHL_RM32_IMM8, Code.SHL_RM64_IMM8)
LEAS = (Code.LEA_R32_M, Code.LEA_R64_M)
NARROW = {code: entry for code, entry in LOADS.items() if entry in ("<H", "<B")}

CONDITIONAL_MOVES = frozenset(
    value for name, value in constants(Code).items() if name.startswith("CMOV") and name.endswith("_R64_RM64")
)


def is_load(place: "Place") -> bool:
    """Return whether an instruction loads an entry of a table by an index."""
    body, number = place
    if number == CALLER:
        return False
    insn = body.iced[number]
    entry = LOADS.get(insn.code)
    is_load = entry is not None and insn.op1_kind == OpKind.MEMORY and insn.memory_index != Register.NONE
    return is_load and insn.memory_index_scale == calcsize(entry or "") and insn.memory_displacement == 0


def is_fixed_load(place: "Place") -> bool:
    """Return whether an instruction loads 32 bits, sign extended, from an address that it names."""
    body, number = place
    insn = body.iced[number] if number != CALLER else None
    return insn is not None and insn.code == Code.MOVSXD_R64_RM32 and insn.memory_base == Register.RIP


def is_plain_load(place: "Place") -> bool:
    """Return whether an instruction loads 32 bits by the sum of two registers: an index that was multiplied before."""
    body, number = place
    insn = body.iced[number] if number != CALLER else None
    if insn is None or insn.code != Code.MOV_R32_RM32 or insn.op1_kind != OpKind.MEMORY:
        return False
    return Register.NONE not in (insn.memory_base, insn.memory_index) and insn.memory_index_scale == 1


def entry_loads(graph: "FlowGraph", place: "Place", register: int) -> "frozenset[Place] | None":
    """Return the loads of entries that a register's values at a place come from, if all of them do."""
    found = graph.definitions(place, register)
    only = next(iter(found)) if found is not None and len(found) == 1 else None
    if only is not None and only[1] != CALLER and only[0].iced[only[1]].code == Code.CDQE:  # without optimisation
        loads = graph.definitions(only, register)
        return loads if loads is not None and all(map(is_plain_load, loads)) else None
    alike = found is not None and (all(map(is_load, found)) or all(map(is_fixed_load, found)))
    return found if alike else None


def uses_registers(jump: Instruction) -> bool:
    """Return whether where an indirect jump goes depends on a register."""
    return jump.op0_kind == OpKind.REGISTER or register_number(jump.memory_base) >= 0


# Jump away when above: imm + 1 values stay. Jump away when not below: imm values. jbe and jb jump to the switch.
LIMITS = {Mnemonic.JA: 1, Mnemonic.JAE: 0, Mnemonic.JBE: 1, Mnemonic.JB: 0}


def operand(insn: Instruction, number: int) -> object:
    """Return a name for an operand: a register's number, or the parts of a memory operand."""
    if insn.op_kind(number) == OpKind.REGISTER:
        return register_number(insn.op_register(number))
    if insn.op_kind(number) == OpKind.MEMORY:
        return insn.memory_base, insn.memory_index, insn.memory_index_scale, insn.memory_displacement
    return None


def small_immediate(insn: Instruction) -> int | None:
    """Return the immediate second operand if it is small and not negative."""
    if insn.op_kind(1) in (OpKind.REGISTER, OpKind.MEMORY):
        return None
    value = insn.immediate(1)
    return value if 0 <= value < MOST_ENTRIES else None


def checked_count(insn: Instruction, limit: int) -> int | None:
    """Return how many values a comparison with a small number leaves."""
    value = small_immediate(insn)
    return value + limit if value is not None and value + limit <= MOST_ENTRIES else None


def follow_index(insn: Instruction, aliases: set[object], written: int) -> int | None:
    """Step the aliases of the index above one instruction; return a bound if the instruction is a mask."""
    target = operand(insn, 0) if insn.op_count else None
    if target in aliases and insn.op_count >= 2:
        if insn.mnemonic == Mnemonic.AND:
            value = small_immediate(insn)
            if value is not None:
                return value + 1
        if insn.mnemonic in (Mnemonic.MOV, Mnemonic.MOVZX, Mnemonic.MOVSXD):
            aliases.discard(target)
            aliases.add(operand(insn, 1))
            aliases.discard(None)
            return None
    if target in aliases and insn.code in LEAS and insn.memory_base == Register.NONE and not insn.memory_displacement:
        aliases.discard(target)
        aliases.add(register_number(insn.memory_index))
        return None
    for alias in list(aliases):
        if isinstance(alias, tuple) and (_may_store(insn) or written & _addressing(alias)):
            aliases.discard(alias)  # a place in memory may hold something else above, or be another place
        elif isinstance(alias, int) and written >> alias & 1:
            aliases.discard(alias)
    return None


def pass_call(aliases: set[object]) -> None:
    """Step the aliases of the index above a call: registers that callees keep stay what they are, memory may not."""
    kept = {alias for alias in aliases if isinstance(alias, int) and not SYSV_CLOBBERED >> alias & 1}
    aliases &= kept


def _may_store(insn: Instruction) -> bool:
    """Return whether an instruction may change memory."""
    return any(used.access in WRITES for used in _factory.info(insn).used_memory())


def _addressing(place: tuple[int, ...]) -> int:
    """Return the registers that the address of a memory operand depends on, as a mask."""
    numbers = [register_number(register) for register in place[:2]]
    return sum(1 << number for number in {*numbers} if number >= 0)


class Compared:
    """Registers that a bound check has looked at, on the way up from it: the index may be a copy of one of them.

    ``mov eax, edi; cmp edi, 25; ja out`` and then a jump by ``eax``: so Clang has it where a call needs ``edi``.
    """

    def __init__(self) -> None:
        """Know of none yet."""
        self._counts: dict[object, int] = {}

    def above(self, insn: Instruction, aliases: set[object], written: int, limit: int | None) -> int | None:
        """Step above one instruction; return the bound of the index if it makes index and compared register the same.

        ``limit`` is what a conditional jump below says of a comparison here.
        """
        copies = insn.mnemonic in (Mnemonic.MOV, Mnemonic.MOVZX)
        if self._counts and copies and insn.op0_kind == insn.op1_kind == OpKind.REGISTER:
            one, other = operand(insn, 0), operand(insn, 1)
            if one in aliases and other in self._counts:
                return self._counts[other]
            if other in aliases and one in self._counts:
                return self._counts[one]
        for number in range(16) if self._counts else ():
            if written >> number & 1:
                self._counts.pop(number, None)
        if limit is not None and insn.mnemonic in (Mnemonic.CMP, Mnemonic.SUB):  # what sub overwrites was checked
            count = checked_count(insn, limit)
            if count is not None and insn.op0_kind == OpKind.REGISTER:
                self._counts.setdefault(operand(insn, 0), count)
        return None


class Distance:
    """An index that is a register's value and something added, followed upwards until a check of the sum is found.

    ``lea edx, [rdi-32]; cmp dl, 90; ja out; movzx eax, dil; sub eax, 32; cdqe``: so has GCC it for small types, and
    ``cmp edi, -15; jb out; lea eax, [rdi+15]`` for what is below zero.
    """

    def __init__(self, register: int) -> None:
        """Begin with the index itself."""
        self._register, self._added, self._bytes = register, 0, 4
        self._checked: dict[int, tuple[int, int]] = {}

    def above(self, insn: Instruction, written: int, limit: int | None) -> int | None:
        """Step above one instruction; return the bound if this completes a check, -1 if the index is lost."""
        if insn.mnemonic == Mnemonic.CMP:
            return self._compared(insn, limit) if limit is not None and insn.op0_kind == OpKind.REGISTER else None
        target = register_number(insn.op0_register) if insn.op_count and insn.op0_kind == OpKind.REGISTER else -1
        checked = self._checked.get(target)
        if checked is not None and self._is_sum(insn) and self._fits(*checked):
            return checked[0]
        self._checked = {number: each for number, each in self._checked.items() if not written >> number & 1}
        if not written >> self._register & 1:
            return None
        return None if insn.code == Code.CDQE or (target == self._register and self._follow(insn)) else -1

    def _compared(self, insn: Instruction, limit: int | None) -> int | None:
        if insn.op1_kind in _NO_IMMEDIATE or limit is None:
            return None
        size = RegisterExt.size(insn.op0_register)
        number, value = register_number(insn.op0_register), int(insn.immediate(1))
        if number == self._register and limit == 0 and size == 4 and self._bytes == 4 and self._added > 0:
            return self._added if (value + self._added) % (1 << 32) == 0 and self._added <= MOST_ENTRIES else None
        if 0 <= value + limit <= MOST_ENTRIES:
            self._checked[number] = value + limit, size
        return None

    def _is_sum(self, insn: Instruction) -> bool:
        """Return whether an instruction makes of the register what the index is, or its low bytes."""
        return (
            insn.code in LEAS
            and insn.memory_index == Register.NONE
            and register_number(insn.memory_base) == self._register
            and _signed(insn.memory_displacement) == self._added
        )

    def _fits(self, count: int, size: int) -> bool:
        """Return whether the index is below ``count`` if so many of its bytes are."""
        if self._bytes == 4:
            return size >= 4
        return size >= self._bytes and self._added <= 0 and count - self._added <= 1 << 8 * self._bytes

    def _follow(self, insn: Instruction) -> bool:
        """Return whether it is known what an instruction makes the register, or its 32 bits, of."""
        if insn.mnemonic in (Mnemonic.ADD, Mnemonic.SUB) and insn.op1_kind in _SMALL and self._bytes == 4:
            value = _signed(int(insn.immediate(1)))
            self._added += value if insn.mnemonic == Mnemonic.ADD else -value
            return RegisterExt.size(insn.op0_register) == 4
        if insn.code == Code.LEA_R32_M and insn.memory_index == Register.NONE and self._bytes == 4:
            self._added += _signed(insn.memory_displacement)
            self._register = register_number(insn.memory_base)
            return self._register >= 0
        if insn.op_count == 2 and insn.op1_kind == OpKind.REGISTER and insn.code in _COPIES_OF and self._bytes == 4:
            self._bytes = _COPIES_OF[insn.code]
            self._register = register_number(insn.op1_register)
            return self._register >= 0
        return False


_SMALL = (OpKind.IMMEDIATE8TO32, OpKind.IMMEDIATE32)
_NO_IMMEDIATE = (OpKind.REGISTER, OpKind.MEMORY)
_COPIES_OF = {
    Code.MOVZX_R32_RM8: 1, Code.MOVZX_R32_RM16: 2, Code.MOV_R32_RM32: 4, Code.MOV_RM32_R32: 4,
}  # fmt: skip


def _signed(value: int) -> int:
    """Return what 32 or 64 bits are as a signed number."""
    value &= (1 << 64) - 1
    if value >> 63:
        return value - (1 << 64)
    return value - (1 << 32) if value >> 31 == 1 else value


def register_number(register: int) -> int:
    """Return the encoding number of a register's 64-bit form, or -1."""
    if register == Register.NONE or not RegisterExt.is_gpr(register):  # type: ignore[arg-type]
        return -1
    return int(RegisterExt.full_register(register)) - int(Register.RAX)  # type: ignore[arg-type]
