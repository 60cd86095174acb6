"""Where ``errno`` is in each thread: read off the C library's own ``__errno_location``."""

from collections.abc import Callable, Iterable

from iced_x86 import Code, Decoder, Instruction, Register

from anyprobe.core.memory import Memory, MemoryFault

_FUNCTION_BYTES = 32
_LOADS, _ADDS = frozenset({Code.MOV_R64_RM64}), frozenset({Code.ADD_R64_RM64})
_CONSTANTS = frozenset({Code.MOV_RM64_IMM32, Code.ADD_RM64_IMM8, Code.ADD_RM64_IMM32, Code.ADD_RAX_IMM32})
_LESS = frozenset({Code.SUB_RM64_IMM8, Code.SUB_RM64_IMM32, Code.SUB_RAX_IMM32})


def errno_offset(code: bytes, address: int, word: Callable[[int], int]) -> int | None:
    """Return where ``errno`` is from the thread pointer on, by the code of ``__errno_location`` at ``address``.

    ``word`` reads what the loader has filled in. ``None`` for code that does anything but add to the thread pointer.
    """
    total, pointers = 0, 0
    for insn in Decoder(64, code, ip=address):
        if insn.code == Code.ENDBR64:
            continue
        if insn.code == Code.RETNQ:
            return _signed(total) if pointers == 1 else None
        if insn.op0_register != Register.RAX:
            return None
        sets = insn.code in _LOADS or insn.code == Code.MOV_RM64_IMM32
        total, pointers = (0, 0) if sets else (total, pointers)
        if insn.code in _CONSTANTS:
            total += insn.immediate(1)
        elif insn.code in _LESS:
            total -= insn.immediate(1)
        elif insn.code in _LOADS | _ADDS and _is_thread_pointer(insn):
            pointers += 1
        elif insn.code in _LOADS | _ADDS and insn.is_ip_rel_memory_operand:
            total += word(insn.ip_rel_memory_address)
        else:
            return None
    return None


def errno_word(code: bytes, address: int) -> int | None:
    """Return where the loader says by a single word where ``errno`` is, before it has done so."""
    read: list[int] = []

    def word(at: int) -> int:
        read.append(at)
        return -8

    return read[0] if errno_offset(code, address, word) == -8 and len(read) == 1 else None


def _is_thread_pointer(insn: Instruction) -> bool:
    absolute = insn.memory_base == Register.NONE and insn.memory_index == Register.NONE
    return insn.segment_prefix == Register.FS and absolute and insn.memory_displacement == 0


def _signed(value: int) -> int | None:
    value &= (1 << 64) - 1
    value -= (1 << 64) * (value >> 63)
    return value if -(1 << 31) <= value < 0 else None


Places = Iterable[tuple[Memory, int, int]]
"""Where ``__errno_location`` is: the pristine bytes of an object, the link-time address in it, and its bias."""


def find_word(places: Places) -> int | None:
    """Return where the loader will say where ``errno`` is."""
    for pristine, start, bias in places:
        try:
            found = errno_word(pristine.read(start, _FUNCTION_BYTES), start + bias)
        except MemoryFault:
            continue
        if found is not None:
            return found
    return None


def find_errno(places: Places, live: Memory) -> int | None:
    """Return where ``errno`` is, by the first ``__errno_location`` that can be understood."""
    for pristine, start, bias in places:
        try:
            code = pristine.read(start, _FUNCTION_BYTES)
            found = errno_offset(code, start + bias, lambda at: int.from_bytes(live.read(at, 8), "little"))
        except MemoryFault:
            continue
        if found is not None:
            return found
    return None
