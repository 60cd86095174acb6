"""Where debug information says that a parameter is when its function is entered."""

import struct

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.forms import Cursor
from anyprobe.binary.objects.leb128 import read_sleb, read_uleb
from anyprobe.core.errors import UnsupportedTarget

_REGISTERS = (
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)), "",
    *(f"xmm{number}" for number in range(16)),
)  # fmt: skip
"""By the numbers that DWARF gives them."""
_REG0, _REGX, _BASE0, _DEREFERENCE, _FRAME, _CFA = 0x50, 0x90, 0x70, 0x06, 0x91, b"\x9c"
_PIECE, _STACK_VALUE = 0x93, 0x9F
_STACK_BASES = (6, 7)
FRAME = "frame"
_LOCLISTX = 0x22
_EVERYTHING = (1 << 64) - 1


def register_at(entry: dw.Entry, address: int, base: int) -> str:
    """Return the register that an entry's value is in at an address, empty where it is said otherwise or not at all.

    ``base`` is where the unit's code begins.
    """
    value = _described(entry, address, base)
    if len(value) == 1 and _REG0 <= value[0] < _REG0 + 32:
        return _REGISTERS[value[0] - _REG0]
    if len(value) == 2 and value[0] == _REGX and value[1] < len(_REGISTERS):
        return _REGISTERS[value[1]]
    return ""


def place_at(entry: dw.Entry, function: dw.Entry, address: int, base: int) -> str:
    """Return where a parameter is when its function is entered, as far as that is said: empty if it is not.

    A register, or ``stack+8``, above the return address; ``*`` before either: that is where its address is.
    """
    register = register_at(entry, address, base)
    if register:
        return register
    value = _described(entry, address, base)
    if not value:
        return ""
    if _BASE0 <= value[0] < _BASE0 + 16 and value[0] - _BASE0 not in _STACK_BASES and value[1:] == b"\0":
        return "*" + _REGISTERS[value[0] - _BASE0]
    frame = function.attributes.get(dw.AT_FRAME_BASE)
    if value[0] != _FRAME or frame is None or frame[1] != _CFA:
        return ""
    offset, end = read_sleb(value, 1)
    rest = value[end:]
    if offset < 0 or rest not in (b"", bytes([_DEREFERENCE])):
        return ""  # where it will be spilled
    return f"{'*' if rest else ''}stack+{8 + offset}"


def pieces_at(entry: dw.Entry, address: int, base: int) -> list[tuple[str, int]]:
    """Return the parts that a value is in at an address, with their bytes, 0 for all of it; empty if that is not said.

    Each is a register; ``*`` and a register that has the address of the part; ``frame``, where it is kept once the
    function has begun; or nothing where it is nowhere, or said in another way.
    """
    value = _described(entry, address, base)
    if value and value[-1] == _STACK_VALUE:  # what is computed of a register, as the lowest bit of a truth value
        place = _simple(value, 0)[0] if _BASE0 <= value[0] < _BASE0 + 16 else ""
        return [(place.removeprefix("*") if place.startswith("*") else "", 0)]
    found: list[tuple[str, int]] = []
    at = 0
    while at < len(value):
        place, at = _simple(value, at)
        if at < len(value) and value[at] == _PIECE:
            size, at = read_uleb(value, at + 1)
        elif at < len(value) and not (place == FRAME and value[at:] == bytes([_DEREFERENCE])):
            return [("", 0)]
        else:
            size, at = 0, len(value)
        found.append((place, size))
    return found


def _simple(value: bytes, at: int) -> tuple[str, int]:
    """Return the register that one operation names, and where the next one is."""
    operation = value[at]
    if operation == _PIECE:
        return "", at
    if _REG0 <= operation < _REG0 + 32:
        return _REGISTERS[operation - _REG0], at + 1
    if operation == _REGX:
        number, end = read_uleb(value, at + 1)
        return _REGISTERS[number] if number < len(_REGISTERS) else "", end
    if operation == _FRAME:
        return FRAME, read_sleb(value, at + 1)[1]
    if _BASE0 <= operation < _BASE0 + 16:
        offset, end = read_sleb(value, at + 1)
        if operation - _BASE0 in _STACK_BASES:
            return FRAME, end
        return "" if offset else "*" + _REGISTERS[operation - _BASE0], end
    return "", len(value)


def is_at_address(entry: dw.Entry, address: int, base: int) -> bool | None:
    """Return whether what a parameter's register or stack slot has is the value's address; ``None``: not said."""
    value = _described(entry, address, base)
    if not value:
        return None
    register = value[0] - _BASE0
    if 0 <= register < 32 and register not in _STACK_BASES and value[1:] == b"\0":
        return True
    return value[-1] == _DEREFERENCE


def _described(entry: dw.Entry, address: int, base: int) -> bytes:
    form, value = entry.attributes.get(dw.AT_LOCATION, (0, 0))
    if isinstance(value, bytes):
        return value
    if not form:
        return b""
    try:
        return _listed(entry.unit, form, value, address, base)
    except (IndexError, struct.error):
        raise UnsupportedTarget(f"{entry.unit.dwarf.path}: damaged debug information") from None


def _listed(unit: dw.Unit, form: int, at: int, address: int, base: int) -> bytes:
    """Return the description in a list that holds at an address."""
    if unit.head.version < 5 and unit.dwarf.skeleton is not None:
        return _split(unit, at, address)
    if unit.head.version < 5:
        return _old(unit.dwarf.section(".debug_loc"), at, address, base)
    content, size = unit.dwarf.section(".debug_loclists"), unit.head.offset_size
    if form == _LOCLISTX:
        start = unit.entry.number(dw.AT_LOCLISTS_BASE) or (0 if unit.dwarf.skeleton is None else 2 * size + 4)
        at = start + int.from_bytes(content[start + at * size : start + (at + 1) * size], "little")
    return _new(unit, content, at, address, base)


def _old(content: bytes, at: int, address: int, base: int) -> bytes:
    while True:
        begin, end = struct.unpack_from("<QQ", content, at)
        at += 16
        if begin == end == 0:
            return b""
        if begin == _EVERYTHING:
            base = end
            continue
        (size,) = struct.unpack_from("<H", content, at)
        at += 2 + size
        if base + begin <= address < base + end:
            return content[at - size : at]


def _split(unit: dw.Unit, at: int, address: int) -> bytes:
    """Return the same of a list that GCC and LLVM have split off before there was a standard for it."""
    cursor = Cursor(unit.dwarf.section(".debug_loc"), at)
    while (kind := cursor.byte()) != 0:
        start = unit.address_of(cursor.number())
        if kind == 1:  # DW_LLE_GNU_base_address_selection_entry, which the others do not need
            continue
        if kind == 2:  # DW_LLE_GNU_start_end_entry
            end = unit.address_of(cursor.number())
        elif kind == 3:  # DW_LLE_GNU_start_length_entry
            (length,) = struct.unpack_from("<I", cursor.content, cursor.at)
            cursor.at += 4
            end = start + length
        else:
            return b""
        (size,) = struct.unpack_from("<H", cursor.content, cursor.at)
        cursor.at += 2 + size
        if start <= address < end:
            return cursor.content[cursor.at - size : cursor.at]
    return b""


def _new(unit: dw.Unit, content: bytes, at: int, address: int, base: int) -> bytes:
    cursor = Cursor(content, at)
    fixed, number = cursor.word, cursor.number
    while (kind := cursor.byte()) != 0:
        begin = end = 0
        match kind:
            case 1:  # DW_LLE_base_addressx
                base = unit.address_of(number())
                continue
            case 2:  # DW_LLE_startx_endx
                begin, end = unit.address_of(number()), unit.address_of(number())
            case 3:  # DW_LLE_startx_length
                begin = unit.address_of(number())
                end = begin + number()
            case 4:  # DW_LLE_offset_pair
                begin, end = base + number(), base + number()
            case 5:  # DW_LLE_default_location
                begin, end = 0, _EVERYTHING
            case 6:  # DW_LLE_base_address
                base = fixed()
                continue
            case 7:  # DW_LLE_start_end
                begin, end = fixed(), fixed()
            case 8:  # DW_LLE_start_length
                begin = fixed()
                end = begin + number()
            case 9:  # DW_LLE_GNU_view_pair
                number(), number()
                continue
            case _:
                return b""
        size = number()
        cursor.at += size
        if begin <= address < end:
            return content[cursor.at - size : cursor.at]
    return b""
