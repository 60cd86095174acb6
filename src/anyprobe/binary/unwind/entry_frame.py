"""Whether the word at the stack pointer is a function's return address when it is entered, by its unwind entry.

It is not for parts of functions, which are jumped to with a frame in place, nor for a program's first function; and of
code without an unwind entry it is not known.
"""

import struct

import numpy as np

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.binary.unwind.eh_frame import sorted_entries
from anyprobe.core.memory import MemoryFault

_STACK_POINTER, _RETURN_ADDRESS = 7, 16
_NOP, _DEF_CFA, _DEF_CFA_OFFSET = 0x00, 0x0C, 0x0E
_ADVANCES = frozenset({0x01, 0x02, 0x03, 0x04})
_PLAIN_AUGMENTATION = "zR"


class _Unusual(Exception):  # noqa: N818 - a verdict
    """The entry says something that ordinary functions do not say."""


def entry_frame_objection(elf: ElfFile, start: int) -> str | None:
    """Return why the word at the stack pointer may be something else at ``start``, ``None`` where it cannot.

    Functions with a personality, which exceptions stop at, have an objection too.
    """
    try:
        place = _entry_of(elf, start)
        if place is None:
            return "the function has no unwind entry"
        _check(elf, place, start)
    except _Unusual as verdict:
        return str(verdict)
    except (MemoryFault, LookupError, ValueError, struct.error):
        return "the function's unwind entry cannot be read"
    return None


def _entry_of(elf: ElfFile, start: int) -> int | None:
    """Return the address of the unwind entry that begins at ``start``, from the sorted table."""
    table = sorted_entries(elf)
    if table is None:
        return None
    row = int(np.searchsorted(table[:, 0], start))
    return int(table[row, 1]) if row < len(table) and int(table[row, 0]) == start else None


def _check(elf: ElfFile, place: int, start: int) -> None:
    length, backwards = struct.unpack("<II", elf.read(place, 8))
    common = place + 4 - backwards
    body = elf.read(common + 4, struct.unpack("<I", elf.read(common, 4))[0])
    version, end = body[4], body.index(b"\0", 5)
    if body[5:end].decode("ascii", "replace") != _PLAIN_AUGMENTATION:
        raise _Unusual("the function has exception handlers, or an unwind entry of an unusual kind")
    _, at = read_uleb(body, end + 1)
    data_alignment, at = body[at], at + 1
    register, at = (body[at], at + 1) if version == 1 else read_uleb(body, at)
    _, at = read_uleb(body, at)
    encoding, at = body[at], at + 1
    if (data_alignment, register, encoding & 0x0F) != (0x78, _RETURN_ADDRESS, 0x0B):  # -8
        raise _Unusual("the function has an unwind entry of an unusual kind")
    entry = elf.read(place + 8, length - 4)
    begin = struct.unpack_from("<i", entry, 0)[0] + place + 8
    if encoding & 0x70 != 0x10 or begin != start:
        raise _Unusual("the function has an unwind entry of an unusual kind")
    size, rest = read_uleb(entry, 8)
    state = _Frame()
    state.run(body[at:])
    state.run(entry[rest + size :])
    if state.offset != 8 or not state.return_address:
        raise _Unusual("the function is entered with something else than a return address on top of the stack")


class _Frame:
    """What the rules say at the first instruction."""

    def __init__(self) -> None:
        self.offset = 0
        self.return_address = False

    def run(self, rules: bytes) -> None:
        """Follow rules up to the first that is for a later instruction."""
        at = 0
        while at < len(rules):
            rule, at = rules[at], at + 1
            if rule >> 6 == 1 or rule in _ADVANCES:
                return
            if rule >> 6 == 2:  # a register saved at an offset from the frame
                where, at = read_uleb(rules, at)
                if (rule & 0x3F, where) != (_RETURN_ADDRESS, 1):
                    raise _Unusual("the function is entered with registers of another on the stack")
                self.return_address = True
            elif rule == _DEF_CFA:
                register, at = read_uleb(rules, at)
                self.offset, at = read_uleb(rules, at)
                if register != _STACK_POINTER:
                    raise _Unusual("the function is entered with a frame in place")
            elif rule == _DEF_CFA_OFFSET:
                self.offset, at = read_uleb(rules, at)
            elif rule != _NOP:
                raise _Unusual("the function is entered with a frame that cannot be followed")
