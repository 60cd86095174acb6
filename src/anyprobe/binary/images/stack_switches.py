"""Functions that change to another stack by code of their own, and come back when another one changes to theirs.

They keep the stack pointer somewhere and take another one from elsewhere, call nothing, and have no frame of their own
that they could take it back from. ``swapcontext`` is one, and so are those of libraries of coroutines and fibers.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.isa.decode import CALLS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.analysis.views import FunctionView
    from anyprobe.binary.images.image import Image

_LONGEST = 512
"""Bytes of such a function at most."""
_PIECE = 1 << 20
"""Bytes that are looked at in one go."""
_LOADED, _STORED = 1, 2
"""Forms of an instruction with a stack pointer in it: it is the register operand, or the other one."""
_W, _R, _B = 0x08, 0x04, 0x01
_MOV_FROM, _MOV_TO, _XCHG, _LEA = 0x89, 0x8B, 0x87, 0x8D
_RSP, _RBP = 4, 5


def _tables() -> "tuple[NDArray[np.uint8], ...]":
    """Return, by the value of a prefix, an opcode and an operand byte, the forms in which they load ``rsp``."""
    prefixes, opcodes, operands = (np.zeros(256, np.uint8) for _ in range(3))
    for low in range(16):
        if low & _W:
            prefixes[0x40 | low] = (0 if low & _R else _LOADED) | (0 if low & _B else _STORED)
    opcodes[_MOV_TO] = opcodes[_LEA] = _LOADED
    opcodes[_MOV_FROM], opcodes[_XCHG] = _STORED, _LOADED | _STORED
    for value in range(256):
        mode, register, other = value >> 6, value >> 3 & 7, value & 7
        operands[value] = _LOADED * (register == _RSP) | _STORED * (mode == 3 and other == _RSP and register != _RBP)
    return prefixes, opcodes, operands


def stack_switches(image: "Image") -> Iterator[int]:
    """Yield the starts of small functions in which ``rsp`` may be loaded: what they are is to be seen in their code."""
    prefixes, opcodes, operands = _tables()
    starts, ends = image.functions.starts, image.functions.ends
    found = set[int]()
    for each in image.code_ranges:
        content = np.frombuffer(image.read(each.start, len(each)), np.uint8)
        for low in range(0, len(content), _PIECE):
            piece = content[low : low + _PIECE + 2]
            forms = prefixes[piece[:-2]] & opcodes[piece[1:-1]] & operands[piece[2:]]
            places = np.flatnonzero(forms) + each.start + low
            rows = np.searchsorted(starts, places, side="right") - 1
            inside = rows[(rows >= 0) & (places < ends[rows])]
            small = inside[ends[inside] - starts[inside] <= _LONGEST]
            found.update(starts[small].tolist())
    yield from sorted(found)


def switches_stacks(code: "FunctionView") -> bool:
    """Return whether a function keeps its stack pointer and takes another one."""
    if any(flow in CALLS for _, flow in code.turns):
        return False
    loads = keeps = False
    for low, high in zip(code.addresses, code.ends, strict=True):
        raw = code.content[low - code.start : high - code.start]
        if _aligns(raw) or _makes_frame(raw):
            return False
        loads |= _loads(raw)
        keeps |= _keeps(raw)
    return loads and keeps


def _parts(raw: bytes) -> tuple[int, int, int, int, int]:
    """Return prefix, opcode, and mode, register and other operand of an instruction of 64 bits; zeros for others."""
    if len(raw) < 3 or raw[0] & 0xF8 != 0x48:
        return 0, 0, 0, 0, 0
    return raw[0], raw[1], raw[2] >> 6, raw[2] >> 3 & 7 | (raw[0] & _R) << 1, raw[2] & 7 | (raw[0] & _B) << 3


def _loads(raw: bytes) -> bool:
    """Return whether an instruction takes a stack pointer from a register, or from memory that is not the frame's."""
    prefix, opcode, mode, register, other = _parts(raw)
    if opcode in (_MOV_TO, _LEA, _XCHG) and register == _RSP:
        base = raw[3] & 7 | (prefix & _B) << 3 if other & 7 == _RSP and mode != 3 else other
        return not (base == _RSP or (base == _RBP and mode != 0))
    return opcode in (_MOV_FROM, _XCHG) and mode == 3 and other == _RSP and register not in (_RSP, _RBP)


def _keeps(raw: bytes) -> bool:
    """Return whether it puts the stack pointer, or one near to it, elsewhere."""
    _, opcode, mode, register, other = _parts(raw)
    if opcode in (_MOV_FROM, _XCHG) and register == _RSP:
        return True
    if opcode == _LEA and other == _RSP and mode != 3:
        return register != _RSP and raw[3] & 7 == _RSP
    return opcode in (_MOV_TO, _XCHG) and mode == 3 and other == _RSP


def _makes_frame(raw: bytes) -> bool:
    _, opcode, mode, register, other = _parts(raw)
    return mode == 3 and (opcode, register, other) in ((_MOV_FROM, _RSP, _RBP), (_MOV_TO, _RBP, _RSP))


def _aligns(raw: bytes) -> bool:
    """Return whether it makes room for a frame at a round address: ``and rsp``."""
    return raw[:3] in (b"\x48\x83\xe4", b"\x48\x81\xe4")
