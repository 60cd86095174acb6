"""The encodings of DWARF 2 to 5: abbreviations, and how each form of an attribute is read."""

import struct
from typing import NamedTuple

from anyprobe.binary.objects.leb128 import read_sleb, read_uleb
from anyprobe.core.errors import UnsupportedTarget

Value = int | bytes
"""An attribute's value: a number, an offset into another section, or the bytes of a block or text."""

# forms that something other than their width is known of
ADDR, STRING, STRP, INDIRECT, IMPLICIT_CONST, FLAG_PRESENT = 0x01, 0x08, 0x0E, 0x16, 0x21, 0x19
REF_ADDR, REF_SIG8, LINE_STRP = 0x10, 0x20, 0x1F
REF_ALT, STRP_ALT = 0x1F20, 0x1F21
_OFFSETS = frozenset([STRP, REF_ADDR, 0x17, 0x1D, LINE_STRP, REF_ALT, STRP_ALT])
"""As wide as offsets are in the unit."""
_FIXED = {
    ADDR: 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x1C: 4, REF_SIG8: 8,
    0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4,
}  # fmt: skip
_ULEB = frozenset([0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02])
_SDATA, _DATA16 = 0x0D, 0x1E
_BLOCKS = {0x03: 2, 0x04: 4, 0x0A: 1}
_LEB_BLOCKS = frozenset([0x09, 0x18])
REF_IN_UNIT = frozenset([0x11, 0x12, 0x13, 0x14, 0x15])
REF_SUPPLEMENTARY = frozenset([REF_ALT, 0x1C, 0x24])
STRING_SUPPLEMENTARY = frozenset([STRP_ALT, 0x1D])
STRING_INDEX = frozenset([0x1A, 0x25, 0x26, 0x27, 0x28, 0x1F02])
ADDRESS_INDEX = frozenset([0x1B, 0x29, 0x2A, 0x2B, 0x2C, 0x1F01])


class Abbreviation(NamedTuple):
    """The shape of a kind of entries: its tag, whether they have children, and their attributes with forms."""

    tag: int
    children: bool
    attributes: tuple[tuple[int, int, int], ...]
    """Attribute, form, and the value of ``implicit_const``."""


class Cursor:
    """Reads what a list of locations or of ranges consists of, one item after the other."""

    def __init__(self, content: bytes, at: int) -> None:
        """Begin at an offset."""
        self.content, self.at = content, at

    def byte(self) -> int:
        """Return a byte."""
        self.at += 1
        return self.content[self.at - 1]

    def word(self) -> int:
        """Return a number of eight bytes."""
        self.at += 8
        return int(struct.unpack_from("<Q", self.content, self.at - 8)[0])

    def number(self) -> int:
        """Return an unsigned LEB128 number."""
        value, self.at = read_uleb(self.content, self.at)
        return value


def initial_length(content: bytes, at: int) -> tuple[int, int, int]:
    """Return the length that a unit or table begins with, the bytes of its offsets, and the place after it."""
    (length,) = struct.unpack_from("<I", content, at)
    if length != 0xFFFFFFFF:
        return length, 4, at + 4
    (length,) = struct.unpack_from("<Q", content, at + 4)
    return length, 8, at + 12


def abbreviations(content: bytes, at: int) -> dict[int, Abbreviation]:
    """Return the abbreviations of a unit by their code."""
    found: dict[int, Abbreviation] = {}
    while True:
        code, at = read_uleb(content, at)
        if code == 0:
            return found
        tag, at = read_uleb(content, at)
        children = content[at] != 0
        at += 1
        attributes = []
        while True:
            attribute, at = read_uleb(content, at)
            form, at = read_uleb(content, at)
            implicit = 0
            if form == IMPLICIT_CONST:
                implicit, at = read_sleb(content, at)
            if attribute == form == 0:
                break
            attributes.append((attribute, form, implicit))
        found[code] = Abbreviation(tag, children, tuple(attributes))


def read(content: bytes, at: int, form: int, offset_size: int) -> tuple[int, Value, int]:
    """Return the form (of an indirect one, the true one), the value, and the place after it."""
    size = _FIXED.get(form) or (offset_size if form in _OFFSETS else 0)
    if size:
        return form, int.from_bytes(content[at : at + size], "little"), at + size
    if form == FLAG_PRESENT:
        return form, 1, at
    if form in _ULEB:
        return form, *read_uleb(content, at)
    if form == STRING:
        end = content.index(b"\0", at)
        return form, content[at:end], end + 1
    if form == _SDATA:
        return form, *read_sleb(content, at)
    if form in _LEB_BLOCKS:
        size, at = read_uleb(content, at)
        return form, content[at : at + size], at + size
    if form in _BLOCKS:
        width = _BLOCKS[form]
        size = int.from_bytes(content[at : at + width], "little")
        return form, content[at + width : at + width + size], at + width + size
    if form == _DATA16:
        return form, content[at : at + 16], at + 16
    if form == INDIRECT:
        form, at = read_uleb(content, at)
        return read(content, at, form, offset_size)
    raise UnsupportedTarget(f"debug information in an unknown form ({form:#x})")


class Header(NamedTuple):
    """The head of a unit of ``.debug_info``."""

    end: int
    version: int
    kind: int
    """DWARF 5's unit type; 1 for what came before."""
    abbreviations: int
    offset_size: int
    first: int
    """Where the first entry is."""
    signature: int = 0
    type_offset: int = 0
    split_identity: int = 0
    """What a skeleton and the unit that was split off have in common."""


_COMPILE, _SKELETON, _SPLIT, _TYPE, _SPLIT_TYPE = 1, 4, 5, 2, 6


def header(content: bytes, at: int, *, of_type: bool = False) -> Header:
    """Read the head of the unit at an offset; ``of_type``: in ``.debug_types``."""
    begin = at
    length, size, at = initial_length(content, at)
    end = at + length
    (version,) = struct.unpack_from("<H", content, at)
    at += 2
    kind, signature, type_offset, identity = _COMPILE, 0, 0, 0
    if not 2 <= version <= 5 or end > len(content):
        raise UnsupportedTarget(f"debug information of DWARF version {version}")
    if version == 5:
        kind = content[at]
        at += 2  # and the size of addresses
        where = int.from_bytes(content[at : at + size], "little")
        at += size
        if kind in {_SKELETON, _SPLIT}:
            (identity,) = struct.unpack_from("<Q", content, at)
            at += 8
        of_type = kind in {_TYPE, _SPLIT_TYPE}
    else:
        where = int.from_bytes(content[at : at + size], "little")
        at += size + 1
    if of_type:
        (signature,) = struct.unpack_from("<Q", content, at)
        type_offset = begin + int.from_bytes(content[at + 8 : at + 8 + size], "little")
        at += 8 + size
    return Header(end, version, kind, where, size, at, signature, type_offset, identity)
