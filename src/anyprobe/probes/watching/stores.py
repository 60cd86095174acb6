"""What an instruction has stored, from the registers that there are after it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from iced_x86 import Instruction, InstructionInfoFactory, MemorySizeExt, Mnemonic, OpAccess, OpKind, Register

_SIZES = (1, 2, 4, 8)
_WRITING = frozenset({OpAccess.WRITE, OpAccess.READ_WRITE, OpAccess.COND_WRITE, OpAccess.READ_COND_WRITE})
_READING = frozenset({OpAccess.READ, OpAccess.COND_READ})
_ZERO_FLAG = 1 << 6
_MASK = (1 << 64) - 1
_NAMES = (
    ("RAX", "EAX", "AX", "AL"), ("RCX", "ECX", "CX", "CL"), ("RDX", "EDX", "DX", "DL"), ("RBX", "EBX", "BX", "BL"),
    ("RSP", "ESP", "SP", "SPL"), ("RBP", "EBP", "BP", "BPL"), ("RSI", "ESI", "SI", "SIL"), ("RDI", "EDI", "DI", "DIL"),
    *((f"R{n}", f"R{n}D", f"R{n}W", f"R{n}L") for n in range(8, 16)),
)  # fmt: skip
_PARTS = {
    getattr(Register, name): (names[0].lower(), size, 0)
    for names in _NAMES
    for name, size in zip(names, (8, 4, 2, 1), strict=True)
} | {getattr(Register, f"{letter}H"): (f"r{letter.lower()}x", 1, 8) for letter in "ABCD"}
"""The general registers and their parts: of which register, how many bytes, from which bit on."""
_CHANGING: dict[int, Callable[[int, int], int]] = {
    Mnemonic.ADD: lambda old, value: old + value,
    Mnemonic.SUB: lambda old, value: old - value,
    Mnemonic.AND: lambda old, value: old & value,
    Mnemonic.OR: lambda old, value: old | value,
    Mnemonic.XOR: lambda old, value: old ^ value,
    Mnemonic.INC: lambda old, _: old + 1,
    Mnemonic.DEC: lambda old, _: old - 1,
    Mnemonic.NEG: lambda old, _: -old,
    Mnemonic.NOT: lambda old, _: ~old,
}
_PUSHES = frozenset({Mnemonic.PUSH, Mnemonic.CALL})
_STRINGS = {Mnemonic.STOSB: 1, Mnemonic.STOSW: 2, Mnemonic.STOSD: 4, Mnemonic.STOSQ: 8}
_infos = InstructionInfoFactory()


class Stored(NamedTuple):
    """Where an instruction has stored what; ``value`` is None where the registers do not tell."""

    address: int
    size: int
    value: int | None


def writes_memory(instruction: Instruction) -> bool:
    """Return whether an instruction may write to memory."""
    return any(each.access in _WRITING for each in _infos.info(instruction).used_memory())


def reads_memory(instruction: Instruction) -> bool:
    """Return whether an instruction reads memory, and writes none."""
    accesses = {each.access for each in _infos.info(instruction).used_memory()}
    return bool(accesses & _READING) and not accesses & _WRITING


def stored(instruction: Instruction, registers: Mapping[str, int], old: Mapping[tuple[int, int], int]) -> Stored | None:
    """Return what an instruction has stored; None if it is not known where.

    Args:
        instruction: decoded at its own address.
        registers: those after it.
        old: what was in memory before, by address and size, as far as that is known.
    """
    mnemonic = instruction.mnemonic
    if mnemonic in _STRINGS:
        size = _STRINGS[mnemonic]
        return Stored(registers["rdi"] - size & _MASK, size, registers["rax"] & (1 << 8 * size) - 1)
    if mnemonic in _PUSHES:
        value = instruction.next_ip if mnemonic == Mnemonic.CALL else _operand(instruction, 0, registers, 8)
        return Stored(registers["rsp"], 8, value)
    if instruction.op_count == 0 or instruction.op0_kind != OpKind.MEMORY:
        return None
    written = [each.memory_size for each in _infos.info(instruction).used_memory() if each.access in _WRITING]
    size = MemorySizeExt.size(written[0]) if written else 0
    address = _address(instruction, registers)
    if address is None or not size:
        return None
    return Stored(address, size, _value(instruction, registers, old.get((address, size)), size))


def about_to_be_stored(
    instruction: Instruction, registers: Mapping[str, int], size: int, old: int | None
) -> int | None:
    """Return what memory holds after a store that is about to be made; None where the registers do not tell.

    Args:
        instruction: decoded at its own address.
        registers: those before it.
        size: how many bytes it stores.
        old: what these hold.
    """
    mnemonic, mask = instruction.mnemonic, (1 << 8 * size) - 1
    if mnemonic in _STRINGS:
        return None if instruction.has_rep_prefix else registers["rax"] & mask
    given = _operand(instruction, 1, registers, size) if instruction.op_count > 1 else 0
    if mnemonic == Mnemonic.XCHG:
        return given
    if mnemonic == Mnemonic.XADD:
        return None if old is None or given is None else old + given & mask
    if mnemonic == Mnemonic.CMPXCHG:
        return None if old is None else given if old == registers["rax"] & mask else old
    return _value(instruction, registers, old, size)


def _value(instruction: Instruction, registers: Mapping[str, int], old: int | None, size: int) -> int | None:
    if size not in _SIZES:
        return None
    mnemonic, mask = instruction.mnemonic, (1 << 8 * size) - 1
    given = _operand(instruction, 1, registers, size) if instruction.op_count > 1 else 0
    if mnemonic in {Mnemonic.MOV, Mnemonic.MOVNTI}:
        return given
    if mnemonic == Mnemonic.CMPXCHG:
        return given if registers["rflags"] & _ZERO_FLAG else old
    if old is None or given is None or mnemonic not in _CHANGING:
        return None
    return _CHANGING[mnemonic](old, given) & mask


def _operand(instruction: Instruction, number: int, registers: Mapping[str, int], size: int) -> int | None:
    kind = instruction.op_kind(number)
    if kind == OpKind.REGISTER:
        return _register(instruction.op_register(number), registers)
    if kind in {OpKind.MEMORY, OpKind.NEAR_BRANCH64}:
        return None
    return int(instruction.immediate(number)) & (1 << 8 * size) - 1


def _register(register: int, registers: Mapping[str, int]) -> int | None:
    part = _PARTS.get(register)
    if part is None:
        return None
    name, size, shift = part
    return registers[name] >> shift & (1 << 8 * size) - 1


def _address(instruction: Instruction, registers: Mapping[str, int]) -> int | None:
    """Return where the memory operand is; None where a segment begins elsewhere."""
    if instruction.memory_segment in {Register.FS, Register.GS}:
        return None
    if instruction.memory_base == Register.RIP:
        return int(instruction.memory_displacement)
    total = int(instruction.memory_displacement)
    for register, scale in ((instruction.memory_base, 1), (instruction.memory_index, instruction.memory_index_scale)):
        if register != Register.NONE:
            value = _register(register, registers)
            if value is None:
                return None
            total += value * scale
    return total & _MASK
