"""Functions that change to another stack by code of their own, and come back when another one changes to theirs.

They keep the stack pointer somewhere and take another one from elsewhere, call nothing, and have no frame of their own
that they could take it back from. ``swapcontext`` is one, and so are those of libraries of coroutines and fibers.

Assembly may have labels only: its code is then in no function, or in what seems to be the end of the one before it.
What is called there is looked at from where it is called.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyprobe.core.arrays import among
from anyprobe.isa.decode import CALLS, JUMPS, Flow, flow_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.analysis.views import FunctionView
    from anyprobe.binary.images.image import Image

_LONGEST = 512
"""Bytes of such a function at most."""
_MOST_INSTRUCTIONS = 128
_LEAVING = frozenset({Flow.RET, Flow.INDIRECT_JUMP})
_GOING_ON = frozenset({Flow.NEXT, Flow.JCC, Flow.SYSCALL})
_PIECE = 1 << 20
"""Bytes that are looked at in one go."""
_LOADED, _STORED = 1, 2
"""Forms of an instruction with a stack pointer in it: it is the register operand, or the other one."""
_W, _R, _B = 0x08, 0x04, 0x01
_MOV_FROM, _MOV_TO, _XCHG, _LEA = 0x89, 0x8B, 0x87, 0x8D
_RSP, _RBP = 4, 5


class End(NamedTuple):
    """An instruction by which code leaves for another stack, or goes on on it."""

    address: int
    by_jump: bool
    conditional: bool = False


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


def stack_switches(image: "Image") -> Iterator[tuple[int, bool]]:
    """Yield the starts of functions in which ``rsp`` may be loaded, and whether anything tells their size.

    What they are is to be seen in their code. Those whose size is known are small.
    """
    prefixes, opcodes, operands = _tables()
    starts, ends, symbols = image.functions.starts, image.functions.ends, image.functions.symbols
    sized = among(starts, np.concatenate([symbols.value[symbols.size > 0], image.unwind.starts]))
    likely = (ends - starts <= _LONGEST) | ~sized
    found = set[tuple[int, bool]]()
    for each in image.code_ranges:
        content = np.frombuffer(image.read(each.start, len(each)), np.uint8)
        for low in range(0, len(content), _PIECE):
            piece = content[low : low + _PIECE + 2]
            forms = prefixes[piece[:-2]] & opcodes[piece[1:-1]] & operands[piece[2:]]
            places = np.flatnonzero(forms) + each.start + low
            rows = np.searchsorted(starts, places, side="right") - 1
            inside = rows[(rows >= 0) & (places < ends[rows])]
            rows = inside[likely[inside]]
            found.update(zip(starts[rows].tolist(), sized[rows].tolist(), strict=True))
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


def switch_at(code: "FunctionView", start: int) -> tuple[End, ...]:
    """Return where the code that begins at an address ends, if it changes stacks as such functions do."""
    first = code.index_of(start)
    seen, ends, todo = set[int](), list[End](), [] if first is None else [first]
    loads = keeps = False
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        if number == len(code.addresses) or len(seen) > _MOST_INSTRUCTIONS:
            return ()
        one, raw, address = code.iced[number], code.raw_at(number), code.addresses[number]
        flow = flow_of(one)
        if flow in JUMPS:
            target = code.index_of(one.near_branch_target)
            if target is None:
                ends.append(End(address, by_jump=True, conditional=flow is not Flow.JUMP))
            else:
                todo.append(target)
        elif flow in _LEAVING:
            ends.append(End(address, by_jump=flow is Flow.INDIRECT_JUMP))
        elif flow not in _GOING_ON or _aligns(raw) or _makes_frame(raw):
            return ()
        if flow in _GOING_ON:
            todo.append(number + 1)
        loads, keeps = loads or _loads(raw), keeps or _keeps(raw)
    return tuple(sorted(ends)) if loads and keeps else ()


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
