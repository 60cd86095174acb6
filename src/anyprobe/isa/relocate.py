"""Displaced copies: one instruction rewritten to run at another address with the same effect, or a refusal by name.

The length of a copy never depends on where the copy lies, so that patches can be laid out before they are placed; it
does depend on the original's address (the return address that a ``call`` pushes), so displace run-time instructions
(``Insn.at``), not link-time ones. Nothing here changes a flag or a register that the original leaves alone.

Known differences, by design: a ``call [mem]`` whose load faults does so with its return address already pushed, and one
whose operand lies where it pushes, but not by way of rsp, calls its return address (compilers have no such calls);
``syscall`` leaves the copy's address in rcx; x87 instructions record the copy's address as the last instruction.
"""

import struct

from iced_x86 import Decoder, OpKind, Register

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.encode import CONDITIONS, head

_REACH = 1 << 31
_MASK64 = (1 << 64) - 1
_OPERAND_SIZE = 0x66
_COUNTED = frozenset(range(0xE0, 0xE4))  # loopne, loope, loop, jrcxz: short forms only


def displace(insn: Insn, new_address: int, *, target: int | None = None) -> bytes | Refusal:
    """Return the bytes that do at ``new_address`` what the instruction does at its own.

    ``target`` replaces the destination of a direct branch, for branches into other displaced copies.
    """
    refusal = _refused_by_kind(insn)
    if refusal is not None:
        return refusal
    flow = insn.flow
    if insn.target is not None:
        return _direct_branch(insn, new_address, insn.target if target is None else target)
    if flow is Flow.INDIRECT_CALL:
        return _indirect_call(insn, new_address)
    if insn.iced.memory_base == Register.RIP:
        return _patch_rip_relative(insn, insn.raw, insn.raw, new_address)
    return insn.raw


def must_stay(insn: Insn) -> Refusal | None:
    """Return why an instruction has no displaced form, wherever the copy might lie."""
    if insn.flow is not Flow.INDIRECT_CALL:
        return _refused_by_kind(insn)
    copy = displace(insn, insn.address)
    return copy if isinstance(copy, Refusal) else None


def _refuse(insn: Insn, why: str) -> Refusal:
    return Refusal(Reason.NO_DISPLACED_FORM, insn.address, f"{insn.text}: {why}")


def _refused_by_kind(insn: Insn) -> Refusal | None:
    """Refuse what has no displaced form anywhere."""
    flow = insn.flow
    if flow is Flow.NEXT:
        if insn.iced.memory_base == Register.EIP:
            return _refuse(insn, "its operand is relative to eip")
        return None
    if flow is Flow.INVALID:
        return Refusal(Reason.UNDECODABLE, insn.address, f"the decoder does not know {insn.raw.hex(' ')}")
    if flow is Flow.OTHER:
        return _refuse(insn, "far branches and software interrupts show the program where they ran")
    if flow is Flow.TRAP or flow is Flow.RET or flow is Flow.SYSCALL:
        return None
    if insn.iced.memory_base == Register.EIP:
        return _refuse(insn, "its operand is relative to eip")
    # Intel ignores the prefix in 64-bit mode, AMD truncates the instruction pointer; rex.w overrides it on both.
    if _OPERAND_SIZE in insn.raw and _OPERAND_SIZE in _prefixes(insn.raw) and not _has_rex_w(insn.raw):
        return _refuse(insn, "a branch with an operand size prefix depends on the processor's make")
    return None


_LEGACY_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")


def _prefixes(raw: bytes) -> bytes:
    """Return everything before the opcode; a rex prefix before other prefixes counts, though it has no effect."""
    count = 0
    while raw[count] in _LEGACY_PREFIXES or raw[count] & 0xF0 == 0x40:
        count += 1
    return raw[:count]


def _has_rex_w(raw: bytes) -> bool:
    return _prefixes(raw)[-1:] in _REX_W


_REX_W = frozenset(bytes([rex]) for rex in range(0x48, 0x50))


def _relative(insn: Insn, destination: int, end: int) -> bytes | Refusal:
    """Return the 32-bit displacement from ``end`` to ``destination``."""
    distance = (destination - end + (1 << 63) & _MASK64) - (1 << 63)
    if not -_REACH <= distance < _REACH:
        return _refuse(insn, f"{destination:#x} is out of reach from a copy at {end:#x}")
    return struct.pack("<i", distance)


def _near(insn: Insn, opcode: bytes, at: int, destination: int) -> bytes | Refusal:
    """Return a near branch in its 32-bit form."""
    relative = _relative(insn, destination, at + len(opcode) + 4)
    return relative if isinstance(relative, Refusal) else opcode + relative


_JUMP_PAST = b"\xeb\x05"
"""``jmp short`` past a near jump."""
_XBEGIN = b"\xc7\xf8"


def _direct_branch(insn: Insn, at: int, target: int) -> bytes | Refusal:
    flow = insn.flow
    if flow is Flow.JUMP:
        return _near(insn, head("jmp target"), at, target)
    if flow is Flow.CALL:
        push = push_address(insn.end)
        jump = _near(insn, head("jmp target"), at + len(push), target)
        return jump if isinstance(jump, Refusal) else push + jump
    if flow is Flow.XBEGIN:
        return _near(insn, _XBEGIN, at, target)
    opcode = _opcode(insn)
    if opcode in _COUNTED:
        # loop taken ; jmp short past ; taken: jmp target ; past:
        # All prefixes stay: 67 selects ecx, and f2 or f3 turn loope and loopne into each other on some processors.
        front = _prefixes(insn.raw) + bytes([opcode, 2]) + _JUMP_PAST
        jump = _near(insn, head("jmp target"), at + len(front), target)
        return jump if isinstance(jump, Refusal) else front + jump
    # jcc target; prefixes (branch hints, bnd) have no effect and are dropped
    return _near(insn, head(f"j{CONDITIONS[_condition(insn)]} target"), at, target)


def _after_prefixes(insn: Insn) -> bytes:
    """Return the bytes from the opcode on; a rex prefix has no effect on a branch."""
    return insn.raw[len(_prefixes(insn.raw)) :]


def _opcode(insn: Insn) -> int:
    """Return the first opcode byte of a branch; never a byte of its displacement."""
    return _after_prefixes(insn)[0]


def _condition(insn: Insn) -> int:
    """Return the low four opcode bits of a conditional jump."""
    raw = _after_prefixes(insn)
    return raw[1] & 0xF if raw[0] == 0x0F else raw[0] & 0xF


def push_address(address: int) -> bytes:
    """Return code that pushes a 64-bit constant and changes nothing else."""
    low = struct.unpack("<i", struct.pack("<I", address & 0xFFFFFFFF))[0]
    push = head("push low") + struct.pack("<i", low)  # sign-extended
    if low & _MASK64 == address:
        return push
    return push + head("mov dword [rsp+4], high") + struct.pack("<I", address >> 32)


def _indirect_call(insn: Insn, at: int) -> bytes | Refusal:
    """``push return address; jmp operand``, the operand seeing rsp eight lower."""
    iced = insn.iced
    push = push_address(insn.end)
    if iced.op0_kind == OpKind.REGISTER:
        if iced.op0_register == Register.RSP:
            return _refuse(insn, "calls its own stack pointer")
        return push + _call_to_jump(insn)
    if iced.memory_base in (Register.RSP, Register.ESP):
        if iced.memory_base == Register.ESP:
            return _refuse(insn, "its operand is relative to esp")
        jump = _lowered_stack_jump(insn)
        return jump if isinstance(jump, Refusal) else push + jump
    jump = _call_to_jump(insn)
    if iced.memory_base == Register.RIP:
        patched = _patch_rip_relative(insn, insn.raw, jump, at + len(push))
        return patched if isinstance(patched, Refusal) else push + patched
    return push + jump


def _call_to_jump(insn: Insn) -> bytes:
    """Turn ``call r/m64`` (ff /2) into ``jmp r/m64`` (ff /4)."""
    raw = bytearray(insn.raw)
    modrm = raw.index(0xFF) + 1  # no prefix is 0xff
    raw[modrm] = raw[modrm] & 0xC7 | 4 << 3
    return bytes(raw)


def _lowered_stack_jump(insn: Insn) -> bytes | Refusal:
    """Return ``jmp [rsp + d + 8]`` for ``call [rsp + d]``, always with a 32-bit displacement."""
    raw = _call_to_jump(insn)
    modrm = raw.index(0xFF) + 1
    displacement = insn.iced.memory_displacement
    signed = (displacement + (1 << 63) & _MASK64) - (1 << 63) + 8
    if -8 < signed < 8 or insn.iced.memory_index != Register.NONE:
        return _refuse(insn, "its operand may lie where it pushes the return address")
    if not -_REACH <= signed < _REACH:
        return _refuse(insn, "its displacement cannot grow by eight")
    # mod 10: base + disp32. prefixes ff modrm sib disp32
    return raw[:modrm] + bytes([raw[modrm] & 0x3F | 0x80, raw[modrm + 1]]) + struct.pack("<i", signed)


def _patch_rip_relative(insn: Insn, original: bytes, copy: bytes, at: int) -> bytes | Refusal:
    """Return ``copy`` with its disp32 (where the original has it) pointing at the original's operand."""
    offset = _displacement_offset(original)
    operand = insn.iced.ip_rel_memory_address
    relative = _relative(insn, operand, at + len(copy))
    if isinstance(relative, Refusal):
        return _refuse(insn, f"its operand at {operand:#x} is out of reach from a copy at {at:#x}")
    return copy[:offset] + relative + copy[offset + 4 :]


def _displacement_offset(raw: bytes) -> int:
    decoder = Decoder(64, raw, ip=0)
    return int(decoder.get_constant_offsets(decoder.decode()).displacement_offset)
