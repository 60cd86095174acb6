"""Which addresses entries of debug information are about: ``.debug_aranges``, and the ranges of single entries."""

import bisect
import struct
from collections.abc import Iterator

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.forms import ADDR, ADDRESS_INDEX, Cursor, initial_length
from anyprobe.core.errors import UnsupportedTarget

_RNGLISTX = 0x23
_END = 0
_EVERYTHING = (1 << 64) - 1


class AddressTable:
    """Units by the addresses that they have code at."""

    def __init__(self, dwarf: dw.Dwarf) -> None:
        """Read ``.debug_aranges``, and where it leaves units out, the units themselves."""
        spans: list[tuple[int, int, int]] = []
        listed = set()
        for unit, begin, end in _aranges(dwarf.section(".debug_aranges")):
            listed.add(unit)
            spans.append((begin, end, unit))
        for each in dwarf.units:
            if each.offset not in listed and each.entry.tag in {dw.UNIT, dw.SKELETON}:
                spans += [(begin, end, each.offset) for begin, end in ranges_of(each.entry)]
        self._spans = sorted(span for span in spans if span[0] and span[0] < span[1])
        self._begins = [span[0] for span in self._spans]

    def unit_at(self, address: int) -> int | None:
        """Return the offset of the unit that an address belongs to."""
        index = bisect.bisect_right(self._begins, address) - 1
        # spans hardly ever overlap; where they do, a few steps back find the one
        for begin, end, unit in reversed(self._spans[max(index - 3, 0) : index + 1]):
            if begin <= address < end:
                return unit
        return None


def _aranges(content: bytes) -> Iterator[tuple[int, int, int]]:
    at = 0
    while at + 12 <= len(content):
        begin = at
        length, size, at = initial_length(content, at)
        end = at + length
        unit = int.from_bytes(content[at + 2 : at + 2 + size], "little")
        at += 2 + size + 2
        at += -(at - begin) % 16
        last = at + (min(end, len(content)) - at) // 16 * 16
        for start, span in struct.iter_unpack("<QQ", content[at:last]):
            if span:
                yield unit, start, start + span
        at = end


def ranges_of(entry: dw.Entry) -> list[tuple[int, int]]:
    """Return the ranges of addresses that an entry is about, in the order in which they are listed."""
    form, place = entry.attributes.get(dw.AT_RANGES, (0, b""))
    if isinstance(place, int):
        try:
            return list(_listed(entry.unit, form, place))
        except (IndexError, struct.error):
            raise UnsupportedTarget(f"{entry.unit.dwarf.path}: damaged debug information") from None
    low = entry.address(dw.AT_LOW_PC)
    high = entry.attributes.get(dw.AT_HIGH_PC)
    if low is None or high is None or not isinstance(high[1], int):
        return []
    if high[0] == ADDR:
        return [(low, high[1])]
    return [(low, entry.unit.address_of(high[1]) if high[0] in ADDRESS_INDEX else low + high[1])]


def _listed(unit: dw.Unit, form: int, value: int) -> Iterator[tuple[int, int]]:
    base, skeleton = unit.base, unit.dwarf.skeleton
    if unit.head.version < 5:
        if skeleton is not None:  # these stay with the skeleton
            value += skeleton.entry.number(dw.AT_GNU_RANGES_BASE) or 0
        yield from _old((skeleton or unit).dwarf.section(".debug_ranges"), value, base)
        return
    content, size = unit.dwarf.section(".debug_rnglists"), unit.head.offset_size
    if form == _RNGLISTX:
        start = unit.entry.number(dw.AT_RNGLISTS_BASE) or (0 if skeleton is None else 2 * size + 4)
        value = start + int.from_bytes(content[start + value * size : start + (value + 1) * size], "little")
    yield from _new(unit, content, value, base)


def _old(content: bytes, at: int, base: int) -> Iterator[tuple[int, int]]:
    while True:
        begin, end = struct.unpack_from("<QQ", content, at)
        at += 16
        if begin == end == 0:
            return
        if begin == _EVERYTHING:
            base = end
        else:
            yield base + begin, base + end


def _new(unit: dw.Unit, content: bytes, at: int, base: int) -> Iterator[tuple[int, int]]:
    cursor = Cursor(content, at)
    fixed, number = cursor.word, cursor.number
    while (kind := cursor.byte()) != _END:
        match kind:
            case 1:  # DW_RLE_base_addressx
                base = unit.address_of(number())
            case 2:  # DW_RLE_startx_endx
                yield unit.address_of(number()), unit.address_of(number())
            case 3:  # DW_RLE_startx_length
                start = unit.address_of(number())
                yield start, start + number()
            case 4:  # DW_RLE_offset_pair
                yield base + number(), base + number()
            case 5:  # DW_RLE_base_address
                base = fixed()
            case 6:  # DW_RLE_start_end
                yield fixed(), fixed()
            case 7:  # DW_RLE_start_length
                start = fixed()
                yield start, start + number()
            case _:
                raise UnsupportedTarget(f"{unit.dwarf.path}: damaged debug information")
