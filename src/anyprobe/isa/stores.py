"""Which instructions store to memory whose address a few instructions can work out before."""

from iced_x86 import Instruction, InstructionInfoFactory, MemorySizeExt, Mnemonic, OpAccess, OpKind, Register

WRITES = frozenset({OpAccess.WRITE, OpAccess.READ_WRITE, OpAccess.COND_WRITE, OpAccess.READ_COND_WRITE})
_STRINGS = {
    Mnemonic.MOVSB: 1, Mnemonic.MOVSW: 2, Mnemonic.MOVSQ: 8, Mnemonic.STOSB: 1, Mnemonic.STOSW: 2, Mnemonic.STOSD: 4,
    Mnemonic.STOSQ: 8,
}  # fmt: skip
_BITS = frozenset({Mnemonic.BTS, Mnemonic.BTR, Mnemonic.BTC})
_OWN_STACK = frozenset({Register.RSP, Register.ESP})
_infos = InstructionInfoFactory()


def string_bytes(instruction: Instruction) -> int:
    """Return how many bytes a string instruction stores at each turn; 0: it is none."""
    if instruction.op_count and instruction.op0_kind == OpKind.MEMORY_ESRDI:
        return _STRINGS.get(instruction.mnemonic, 4 if instruction.mnemonic == Mnemonic.MOVSD else 0)
    return 0


def stored_bytes(instruction: Instruction) -> int:
    """Return how many bytes an instruction stores; 0: none, or where they go cannot be said beforehand.

    That are scattered ones, those of another segment, what is pushed, and a bit of which a register has the number.
    """
    if not instruction.op_count:
        return 0
    if instruction.op0_kind == OpKind.MEMORY_ESRDI:
        return string_bytes(instruction)
    if instruction.op0_kind != OpKind.MEMORY or instruction.is_stack_instruction or instruction.is_vsib:
        return 0
    if instruction.memory_segment in (Register.FS, Register.GS):
        return 0
    if instruction.mnemonic in _BITS and instruction.op1_kind == OpKind.REGISTER:  # it may be anywhere
        return 0
    writes = [each for each in _infos.info(instruction).used_memory() if each.access in WRITES]
    return MemorySizeExt.size(writes[0].memory_size) if writes else 0


def is_masked(instruction: Instruction) -> bool:
    """Return whether a store may leave some of its bytes out, as a mask says."""
    accesses = {each.access for each in _infos.info(instruction).used_memory()}
    return OpAccess.COND_WRITE in accesses or instruction.has_op_mask


def is_store(instruction: Instruction) -> bool:
    """Return whether an instruction stores to memory, and not to its own stack by the stack pointer."""
    if not instruction.op_count or instruction.op0_kind not in (OpKind.MEMORY, OpKind.MEMORY_ESRDI):
        return False
    return instruction.memory_base not in _OWN_STACK and stored_bytes(instruction) > 0
