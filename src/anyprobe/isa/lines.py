"""Straight lines of instructions by their shape: displaced, and kept for later, without being decoded again.

The shape is a number that says of each instruction how long it is and what of its copy depends on where that lies. It
is found once, from decoded instructions. Lines with anything else than plain instructions, operands relative to rip,
direct calls and conditional jumps have none: ``relocate`` displaces these one by one.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from iced_x86 import Register

from anyprobe.isa.decode import Flow, Insn, decode_range
from anyprobe.isa.relocate import push_address

MOST = 7
"""Instructions in a line with a shape: there are eight bits for each, of a number that is not negative in 64 bits."""
_COPIED, _CALL, _COUNTED, _JCC_SHORT, _JCC_NEAR = 0, 1, 13, 14, 15
"""What the upper four of an instruction's bits are. Any other number says where its displacement from rip begins."""
_KINDS = 0xF0F0F0F0F0F0F0
_CALL_OPCODE, _JUMP_OPCODE, _JCC_BYTES, _COUNTED_BYTES = 0xE8, b"\xe9", 6, 9
_JUMP_PAST = b"\xeb\x05\xe9"
"""``jmp short`` past the near jump that comes after it, to which the short jump of ``loop`` or ``jrcxz`` leads."""
_I32 = struct.Struct("<i")
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def shape_of(insns: Sequence[Insn]) -> int:
    """Return the shape of a line, 0 if it has none."""
    if isinstance(insns, KeptLine):
        return insns.shape
    if len(insns) > MOST:
        return 0
    shape = 0
    for insn in reversed(insns):
        kind = _kind_of(insn)
        if kind is None:
            return 0
        shape = shape << 8 | kind << 4 | insn.length
    return shape


def _kind_of(insn: Insn) -> int | None:
    raw, flow = insn.raw, insn.flow
    if flow is Flow.NEXT:
        if not insn.iced.is_ip_rel_memory_operand:
            return _COPIED
        at = insn.offsets.displacement_offset
        return at if insn.iced.memory_base == Register.RIP and _CALL < at < _COUNTED else None
    if flow is Flow.CALL:
        return _CALL if len(raw) == 5 and raw[0] == _CALL_OPCODE else None
    if flow is not Flow.JCC:
        return None
    if len(raw) == 2:
        return _JCC_SHORT if raw[0] >> 4 == 7 else _COUNTED
    return _JCC_NEAR if len(raw) == _JCC_BYTES and raw[0] == 0x0F else None


def content_of(insns: Sequence[Insn]) -> bytes:
    """Return the bytes of a line."""
    return insns.content if isinstance(insns, KeptLine) else b"".join([insn.raw for insn in insns])


def kept(insns: tuple[Insn, ...]) -> "Sequence[Insn]":
    """Return a line with its shape, which tells at once what else each instruction is asked for; itself if it has none.

    Precondition: each instruction begins where the one before it ends.
    """
    shape = shape_of(insns)
    return KeptLine(content_of(insns), insns[0].address, shape, insns) if shape else insns


def is_copied(shape: int) -> bool:
    """Return whether what is displaced of a line are its very bytes, wherever that lies."""
    return not shape & _KINDS


def has_branch(shape: int) -> bool:
    """Return whether conditional jumps are in a line."""
    while shape:
        if shape >> 4 & 15 >= _COUNTED:
            return True
        shape >>= 8
    return False


def count_of(shape: int) -> int:
    """Return how many instructions a line has, by its shape."""
    return (shape.bit_length() + 7) // 8


def size_of(shape: int) -> int:
    """Return how many bytes a line has, by its shape; -1 of what is no shape."""
    lengths = [shape >> 8 * number & 15 for number in range(count_of(shape))] if 0 <= shape < 1 << 8 * MOST else []
    return sum(lengths) if all(lengths) and lengths else -1


class Displaced(NamedTuple):
    """What does the same as a line elsewhere."""

    code: bytes
    targets: Sequence[int]
    """Where conditional jumps lead."""


def displaced(content: bytes, shape: int, address: int, at: int) -> Displaced | None:
    """Return what does at ``at`` what a line does at its run-time address, ``None`` if something is out of reach."""
    out, done, start = bytearray(), 0, 0
    targets: list[int] = []
    while shape:
        end, kind = start + (shape & 15), shape >> 4 & 15
        shape >>= 8
        if kind:
            out += content[done:start]
            here, done = at + len(out), end
            if kind >= _COUNTED:
                if kind == _JCC_NEAR:
                    relative, opcode = _I32.unpack_from(content, start + 2)[0], content[start : start + 2]
                else:
                    relative, byte = (content[start + 1] ^ 0x80) - 0x80, content[start]
                    opcode = bytes((0x0F, byte + 0x10) if kind == _JCC_SHORT else (byte, 2, *_JUMP_PAST))
                out += opcode
                target = address + end + relative
                targets.append(target)
                distance = target - here - len(opcode) - 4
            elif kind == _CALL:
                out += push_address(address + end) + _JUMP_OPCODE
                distance = address + end + _I32.unpack_from(content, start + 1)[0] - (at + len(out) + 4)
            else:
                done = start + kind
                out += content[start:done]
                distance = _I32.unpack_from(content, done)[0] + address + start - here
                done += 4
            if not _LEAST <= distance <= _MOST:
                return None
            out += _I32.pack(distance)
        start = end
    return Displaced(bytes(out + content[done:]), targets)


def copies_of(shape: int, address: int, at: int) -> Iterator[tuple[int, int]]:
    """Yield where the instructions of a line are, with where ``displaced`` puts each, and what follows the last one."""
    while shape:
        length, kind = shape & 15, shape >> 4 & 15
        shape >>= 8
        yield address, at
        address += length
        if kind == _CALL:
            at += len(push_address(address)) + len(_JUMP_OPCODE) + 4
        else:
            at += _COUNTED_BYTES if kind == _COUNTED else _JCC_BYTES if kind > _COUNTED else length
    yield address, at


class KeptLine(Sequence[Insn]):
    """The instructions of a line with a shape, decoded when they are first asked for, which most are not."""

    __slots__ = ("_insns", "address", "content", "end", "first_end", "shape")

    def __init__(self, content: bytes, address: int, shape: int, insns: tuple[Insn, ...] | None = None) -> None:
        """Take the bytes, where they are, the shape, and the instructions, if these are decoded already."""
        self.content, self.address, self.shape = content, address, shape
        self.first_end, self.end = address + (shape & 15), address + len(content)
        self._insns = insns

    @property
    def insns(self) -> tuple[Insn, ...]:
        """The instructions."""
        if self._insns is None:
            self._insns = tuple(decode_range(self.content, self.address))
        return self._insns

    @overload
    def __getitem__(self, index: int) -> Insn: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Insn]: ...

    def __getitem__(self, index: int | slice) -> Insn | Sequence[Insn]:
        """Return an instruction by its number, or several."""
        return self.insns[index]

    def __iter__(self) -> Iterator[Insn]:
        """Yield the instructions."""
        return iter(self.insns)

    def __len__(self) -> int:
        """Return the number of instructions."""
        return count_of(self.shape)
