"""What the first bytes of a function say of it."""

from anyprobe.binary.codescan import CodeBytes
from anyprobe.binary.stackdepth import takes_return
from anyprobe.isa.decode import Flow, decode_iced, decode_range

_STUB_JUMP = b"\xff\x25"
"""``jmp [rip+x]``, prefixes left out."""
_FRONT = 48
"""So many bytes show how a function begins."""
_POPS = frozenset(range(0x58, 0x60)) | {0x8F, 0x83, 0x81, 0x8D, 0xC9}
"""Opcodes of what takes something from the stack: ``pop``, ``add``, ``lea``, ``leave``."""


def is_stub_at(area: CodeBytes, address: int) -> bool:
    """Return whether a linkage stub (``jmp [rip+x]``, behind ``endbr64`` or not) lies at an address."""
    content = area.content[address - area.start : address - area.start + 16]
    if _STUB_JUMP not in content:  # hardly any function begins so
        return False
    head = decode_range(content, address)
    jump = next((insn for insn in head[:2] if not insn.is_endbr), None)
    return jump is not None and jump.flow is Flow.INDIRECT_JUMP and jump.iced.is_ip_rel_memory_operand


def takes_return_at(area: CodeBytes, target: int) -> bool:
    """Return whether what begins at an address takes its return address from the stack at once."""
    content = area.content[target - area.start : target - area.start + _FRONT]
    if not _POPS.intersection(content):  # nearly all
        return False
    by_address = {one.ip: one for one in decode_iced(content, target)}
    return takes_return(target, by_address.get)
