"""Code that makes tasks by the system call itself, not through the C library, and not just as ``fork`` does.

Such tasks may share a thread pointer with others, or have none (``CLONE_SETTLS`` with 0), so that what the thread
pointer leads to is not a thread's own.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from iced_x86 import Mnemonic, OpKind

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.functions import Function
from anyprobe.core.address import AddressRange
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import Insn, decode_range

_WITHIN = 64
"""Bytes from where the number of the system call is loaded to the call: its other parameters are loaded in between."""
_AROUND = 256
"""Bytes in which ``clone3``'s flags are stored before the call."""
_CLONE_VM, _CLONE_SETTLS = 0x100, 0x80000
_FLAGS_END = 1 << 34
_LAST_SIGNAL = 64
_NUMBERS = (56, 435)
"""``clone`` and ``clone3``."""
_SYSCALL = b"\x0f\x05"
_EAX, _EDI = (b"\xb8", b"\x48\xc7\xc0"), (b"\xbf", b"\x48\xc7\xc7")
"""``mov r32, imm32`` and ``mov r64, imm32``; ``push imm8; pop`` is looked for by itself."""
_INDIRECT = (b"\xff\x15", b"\xff\x25")
"""``call [rip+disp32]`` and ``jmp [rip+disp32]``."""
_SETS = frozenset({Mnemonic.MOV, Mnemonic.OR, Mnemonic.PUSH})
_VECTOR_LOADS = frozenset({
    Mnemonic.MOVAPS, Mnemonic.MOVUPS, Mnemonic.MOVDQA, Mnemonic.MOVDQU, Mnemonic.MOVQ,
    Mnemonic.VMOVAPS, Mnemonic.VMOVUPS, Mnemonic.VMOVDQA, Mnemonic.VMOVDQU, Mnemonic.VMOVQ,
})  # fmt: skip
_IMMEDIATES = frozenset({
    OpKind.IMMEDIATE8, OpKind.IMMEDIATE16, OpKind.IMMEDIATE32, OpKind.IMMEDIATE64, OpKind.IMMEDIATE8TO16,
    OpKind.IMMEDIATE8TO32, OpKind.IMMEDIATE8TO64, OpKind.IMMEDIATE32TO64,
})  # fmt: skip


def task_makers(elf: ElfFile, ranges: Sequence[AddressRange], callees: AbstractSet[int]) -> Iterator[int]:
    """Yield where the number of ``clone`` or ``clone3`` is loaded for a call of ``syscall``.

    ``callees``: what calls of the C library's function name: its stubs, its slots, or itself in a static program.
    """
    for each in ranges:
        content = elf.read(each.start, len(each))
        for number in _NUMBERS:
            for at in loads(content, number, _EAX, b"\x58"):
                if reaches_syscall(content, at):
                    yield each.start + at
            for at in loads(content, number, _EDI, b"\x5f") if callees else ():
                if not callees.isdisjoint(_targets(content, at, each.start)):
                    yield each.start + at


def calls_function(elf: ElfFile, at: int) -> bool:
    """Return whether what ends at ``at``, of ``task_makers``, loads the number for the C library's ``syscall``."""
    before = elf.read(at - 7, 7)
    return before.endswith(b"\x5f") or before.startswith(_EDI[1]) or before[2:].startswith(_EDI[0])


def shares_memory(elf: ElfFile, function: Function | None, at: int) -> bool:
    """Return whether a call may ask for shared memory or another thread pointer, by the constants near before it.

    ``at`` is after what loads its number. What comes after the call is about others: the number of ``set_robust_list``
    after a fork looks like flags, too.
    """
    if function is None:
        return True
    start = function.start
    for insn in decode_range(elf.read(start, min(at + _WITHIN, function.end) - start), start):
        if insn.address > at - _AROUND and any(map(_is_sharing, _constants(elf, insn))):
            return True
        if insn.address >= at and insn.raw == _SYSCALL:
            return False
    return False


def _is_sharing(value: int) -> bool:
    """Return whether a constant looks like flags of ``clone`` that share memory, or set a thread pointer."""
    signal = value & 0xFF
    return bool(value & (_CLONE_VM | _CLONE_SETTLS)) and 0 < value < _FLAGS_END and signal <= _LAST_SIGNAL


def loads(content: bytes, number: int, moves: Sequence[bytes], pop: bytes) -> Iterator[int]:
    """Yield the ends of instructions that load a number into a register."""
    value = number.to_bytes(4, "little")
    for at in _places(content, value):
        if any(content.endswith(move, 0, at) for move in moves):
            yield at + len(value)
    pushed = b"\x6a" + value[:1] + pop
    for at in _places(content, pushed) if number < 128 else ():
        yield at + len(pushed)


def _places(content: bytes, wanted: bytes) -> Iterator[int]:
    """Yield the offsets at which some bytes stand."""
    at = content.find(wanted)
    while at >= 0:
        yield at
        at = content.find(wanted, at + 1)


def _targets(content: bytes, at: int, start: int) -> Iterator[int]:
    """Yield what calls and jumps after an offset would lead to, or what slot they would read."""
    window = content[at : at + _WITHIN]
    for offset in range(len(window) - 5):
        size = 5 if window[offset] in b"\xe8\xe9" else 6 if window[offset : offset + 2] in _INDIRECT else 0
        displacement = window[offset + size - 4 : offset + size]
        if size and len(displacement) == 4:
            yield start + at + offset + size + int.from_bytes(displacement, "little", signed=True)


def reaches_syscall(content: bytes, at: int) -> bool:
    """Return whether the code at an offset comes to ``syscall`` before it goes elsewhere."""
    window = content[at : at + _WITHIN]
    if _SYSCALL not in window:
        return False
    for insn in decode_range(window, 0):
        if insn.raw == _SYSCALL:
            return True
        if not insn.may_go_on:
            return False
    return False


def _constants(elf: ElfFile, insn: Insn) -> Iterator[int]:
    """Yield the immediate operands of an instruction, and the constants that it loads."""
    iced = insn.iced
    for number in range(iced.op_count) if iced.mnemonic in _SETS else ():
        if iced.op_kind(number) in _IMMEDIATES:
            yield iced.immediate(number)
    if iced.mnemonic in _VECTOR_LOADS and iced.is_ip_rel_memory_operand:
        try:
            content = elf.read(iced.ip_rel_memory_address, 16)
        except MemoryFault:
            return
        yield int.from_bytes(content[:8], "little")
        yield int.from_bytes(content[8:], "little")
