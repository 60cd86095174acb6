"""What few bytes say of a function, mostly its first ones."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from iced_x86 import Decoder

from anyprobe.binary.decoding.code_scan import CodeBytes
from anyprobe.isa.decode import Flow, decode_range

if TYPE_CHECKING:
    from iced_x86 import Instruction

_STUB_JUMP = b"\xff\x25"
"""``jmp [rip+x]``, prefixes left out."""
_THUNK_END, _THUNK = b"\x24\xc3", re.compile(rb"[\x48\x4c]\x89[\x04\x0c\x14\x1c\x2c\x34\x3c]\x24\xc3")
_FRONT = 48
"""So many bytes show how a function begins."""
_TAKING = re.compile(rb"[\x58-\x5f\x8f\xc9]|[\x81\x83]\xc4|\x8d[\x64\xa4]")
"""Opcodes of what takes something from the stack: ``pop``, ``leave``, ``add rsp``, ``lea rsp``."""


def is_stub_at(area: CodeBytes, address: int) -> bool:
    """Return whether a linkage stub (``jmp [rip+x]``, after ``endbr64`` or not) lies at an address."""
    content = area.content[address - area.start : address - area.start + 16]
    if _STUB_JUMP not in content:  # hardly any function begins so
        return False
    head = decode_range(content, address)
    jump = next((insn for insn in head[:2] if not insn.is_endbr), None)
    return jump is not None and jump.flow is Flow.INDIRECT_JUMP and jump.iced.is_ip_rel_memory_operand


def takes_return_at(area: CodeBytes, target: int) -> bool:
    """Return whether what begins at an address takes its return address from the stack at once."""
    from anyprobe.binary.decoding.stack_depth import takes_return

    content = area.content[target - area.start : target - area.start + _FRONT]
    if _TAKING.search(content) is None:
        return False
    decoder = Decoder(64, content, ip=target)

    def instruction_at(address: int) -> "Instruction | None":
        decoder.position, decoder.ip = address - target, address
        return decoder.decode() if decoder.can_decode else None

    return takes_return(target, instruction_at)


def thunks_in(area: CodeBytes) -> Iterator[int]:
    """Yield where ``mov [rsp], reg; ret`` stands: what overwrites its return address jumps somewhere."""
    content, at = area.content, area.content.find(_THUNK_END)
    while at >= 0:
        if _THUNK.match(content, at - 3):
            yield area.start + at - 3
        at = content.find(_THUNK_END, at + 1)
