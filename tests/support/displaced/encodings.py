"""Instructions made up systematically: every opcode of every map, and every operand of an indirect call or jump."""

import itertools
import struct

from iced_x86 import Decoder

_BEHIND = bytes(10)
"""Displacement and immediates."""
_MODRM = (0x05, 0x03, 0xC3)  # [rip], [rbx], a register: the low six bits without reg
_PREFIX = (b"", b"\x66", b"\xf2", b"\xf3")


def _legacy():
    maps = (b"", b"\x0f", b"\x0f\x38", b"\x0f\x3a")
    for prefix, rex, opcode_map, opcode in itertools.product(_PREFIX, (b"", b"\x48"), maps, range(256)):
        yield prefix + rex + opcode_map + bytes([opcode])


def _vex():
    # c4, inverted rxb and map, w vvvv l pp; xop is the same under 8f
    for escape, maps in ((0xC4, (1, 2, 3, 5, 6)), (0x8F, (8, 9, 10))):
        for number, wide, long, pp, opcode in itertools.product(maps, (0, 0x80), (0, 4), range(4), range(256)):
            yield bytes([escape, 0xE0 | number, wide | 0x70 | long | pp, opcode])


def _evex():
    # 62, inverted rxbr' and map, w vvvv 1 pp, z l'l b v' aaa
    last = (0x08, 0x28, 0x48, 0x09, 0x89, 0x49, 0xC9, 0x18, 0x58, 0x59)
    for number, wide, pp, flags, opcode in itertools.product((1, 2, 3, 5, 6), (0, 0x80), range(4), last, range(256)):
        yield bytes([0x62, 0xF0 | number, wide | 0x74 | pp, flags, opcode])


def scan_every_opcode(forms):
    """Add one instance of everything the decoder knows to some forms."""
    for head in itertools.chain(_legacy(), _vex()):
        for modrm, reg in itertools.product(_MODRM, range(8)):
            _add(forms, head + bytes([modrm | reg << 3]) + _BEHIND)
    for head in _evex():
        for modrm in _MODRM:
            _add(forms, head + bytes([modrm | 1 << 3]) + _BEHIND)


def _add(forms, content):
    iced = Decoder(64, content).decode()
    if not iced.is_invalid:
        forms.add(iced, content[: iced.len])


def indirect_branches(kind):
    """Yield ``ff /kind`` (2: call, 4: jmp) with every register and every shape of memory operand."""
    displacements = itertools.cycle((0, -8, 8, -16, -15, -1, 0x78, 0x7F, -0x80, 0x100, -0x1000, 0x7FFFFFF8, 0x7FFFFFF7))
    for rex, modrm in itertools.product((b"", b"\x41", b"\x42", b"\x43", b"\x48", b"\x4b"), range(256)):
        mode, rm = modrm >> 6, modrm & 7
        if modrm >> 3 & 7 != kind:
            continue
        for sib in range(256) if mode != 3 and rm == 4 else (None,):
            code = rex + bytes([0xFF, modrm]) + (b"" if sib is None else bytes([sib]))
            value = next(displacements)
            if mode == 1:
                code += struct.pack("<b", max(-0x80, min(0x7F, value)))
            elif mode == 2 or (mode == 0 and (rm == 5 or (sib is not None and sib & 7 == 5))):
                code += struct.pack("<i", value)
            yield code


def direct_branches(random):
    """Yield every direct branch under many combinations of prefixes."""
    opcodes = [bytes([0x70 | condition]) + b"\x20" for condition in range(16)]
    opcodes += [bytes([0x0F, 0x80 | condition]) + b"\x00\x02\0\0" for condition in range(16)]
    opcodes += [bytes([0xE0 | counted]) + b"\x20" for counted in range(4)]
    opcodes += [b"\xeb\x20", b"\xe9\x00\x02\0\0", b"\xe8\x00\x02\0\0"]
    pieces = b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf2\xf3\x40\x41\x48\x4f"
    for opcode, _ in itertools.product(opcodes, range(16)):
        yield bytes(random.choice(pieces) for _ in range(random.randrange(5))) + opcode
