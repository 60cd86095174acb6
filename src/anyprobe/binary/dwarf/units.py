"""Debug information (DWARF 2 to 5): units and entries, read one by one where they are asked for."""

import bisect
import struct
from collections.abc import Iterator
from functools import cached_property

from anyprobe.binary.dwarf import forms
from anyprobe.binary.objects.compressed import unpacked
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.core.errors import UnsupportedTarget

# tags
ARRAY, CLASS, ENUMERATION, PARAMETER, MEMBER, POINTER, REFERENCE, UNIT = 0x01, 0x02, 0x04, 0x05, 0x0D, 0x0F, 0x10, 0x11
STRUCTURE, SUBROUTINE, TYPEDEF, UNION, INHERITANCE, SUBRANGE, BASE = 0x13, 0x15, 0x16, 0x17, 0x1C, 0x21, 0x24
CONST, SUBPROGRAM, VOLATILE, RESTRICT, NAMESPACE, RVALUE_REFERENCE, ATOMIC = 0x26, 0x2E, 0x35, 0x37, 0x39, 0x42, 0x47
ENUMERATOR, UNSPECIFIED_TYPE, SKELETON, TYPE_PARAMETER, VARIANT, VARIANT_PART = 0x28, 0x3B, 0x4A, 0x2F, 0x19, 0x33
# attributes
AT_SIBLING, AT_LOCATION, AT_NAME, AT_BYTE_SIZE, AT_BIT_OFFSET, AT_BIT_SIZE = 0x01, 0x02, 0x03, 0x0B, 0x0C, 0x0D
AT_LOW_PC, AT_HIGH_PC, AT_LANGUAGE, AT_UPPER_BOUND, AT_ABSTRACT_ORIGIN, AT_COUNT = 0x11, 0x12, 0x13, 0x2F, 0x31, 0x37
AT_MEMBER_LOCATION, AT_DECLARATION, AT_ENCODING, AT_EXTERNAL, AT_SPECIFICATION, AT_TYPE = (
    0x38, 0x3C, 0x3E, 0x3F, 0x47, 0x49,
)  # fmt: skip
AT_PROTOTYPED, AT_CALLING_CONVENTION, AT_CONST_VALUE, AT_RANGES, AT_DATA_BIT_OFFSET = 0x27, 0x36, 0x1C, 0x55, 0x6B
AT_STR_OFFSETS_BASE, AT_ADDR_BASE, AT_RNGLISTS_BASE, AT_SIGNATURE, AT_DWO_NAME = 0x72, 0x73, 0x74, 0x69, 0x76
AT_LOCLISTS_BASE = 0x8C
AT_GNU_VECTOR, AT_GNU_DWO_NAME, AT_GNU_DWO_ID, AT_GNU_RANGES_BASE, AT_GNU_ADDR_BASE = (
    0x2107, 0x2130, 0x2131, 0x2132, 0x2133,
)  # fmt: skip
AT_COMP_DIR, AT_FRAME_BASE, AT_PRODUCER, AT_VARIABLE_PARAMETER = 0x1B, 0x40, 0x25, 0x4B
AT_DISCR, AT_DISCR_VALUE = 0x15, 0x16
AT_GO_KIND, AT_GO_EMBEDDED, AT_GO_RUNTIME_TYPE = 0x2900, 0x2903, 0x2904
AT_ALIGNMENT = 0x88
_ORIGINS = (AT_ABSTRACT_ORIGIN, AT_SPECIFICATION)
_TYPES = ".debug_types"


class Entry:
    """One debugging information entry."""

    __slots__ = ("attributes", "end", "offset", "parent", "tag", "unit")

    def __init__(
        self, unit: "Unit", offset: int, tag: int, end: int, attributes: "Attributes", *, parent: bool
    ) -> None:
        """Keep what was read; ``end`` is after its attributes, ``parent`` says whether children follow there."""
        self.unit, self.offset, self.tag, self.end = unit, offset, tag, end
        self.attributes, self.parent = attributes, parent

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from all others of this process."""
        return id(self.unit.dwarf), self.offset

    def number(self, attribute: int) -> int | None:
        """Return the value of an attribute if it is a number."""
        found = self.attributes.get(attribute)
        return found[1] if found is not None and isinstance(found[1], int) else None

    def text(self, attribute: int) -> str:
        """Return an attribute that is text; empty if there is none."""
        found = self.attributes.get(attribute)
        return "" if found is None else self.unit.text(*found)

    def address(self, attribute: int) -> int | None:
        """Return an attribute that is an address."""
        found = self.attributes.get(attribute)
        if found is None or not isinstance(found[1], int):
            return None
        return self.unit.address_of(found[1]) if found[0] in forms.ADDRESS_INDEX else found[1]

    def reference(self, attribute: int) -> "Entry | None":
        """Return the entry that an attribute refers to."""
        form, value = self.attributes.get(attribute, (0, b""))
        if not isinstance(value, int):
            return None
        dwarf = self.unit.dwarf
        if form in forms.REF_IN_UNIT:
            return dwarf.entry(self.unit.offset + value)
        if form in forms.REF_SUPPLEMENTARY:
            if dwarf.supplementary is None:
                raise UnsupportedTarget("a part of the debug information is in a file that is not installed (dwz)")
            return dwarf.supplementary.entry(value)
        if form == forms.REF_SIG8:
            return dwarf.type_by_signature(value)
        return dwarf.entry(value)

    @property
    def origin(self) -> "Entry | None":
        """The entry that this one completes."""
        return next((each for at in _ORIGINS if (each := self.reference(at)) is not None), None)

    @property
    def name(self) -> str:
        """The name, empty for what has none."""
        found = self.attributes.get(AT_NAME)
        if found is not None:
            return self.unit.text(*found)
        origin = self.origin
        return origin.name if origin is not None else ""

    @property
    def type(self) -> "Entry | None":
        """The type; none stands for ``void``."""
        if AT_TYPE in self.attributes:
            return self.reference(AT_TYPE)
        origin = self.origin
        return origin.type if origin is not None else None

    def children(self) -> Iterator["Entry"]:
        """Yield the entries right below this one."""
        at = self.end
        while self.parent:
            entry = self.unit.read(at)
            if entry is None:
                return
            yield entry
            at = entry.next()

    def next(self) -> int:
        """Return where the entry after this one and all below it is."""
        sibling = self.attributes.get(AT_SIBLING)
        if sibling is not None and isinstance(sibling[1], int):
            at = self.unit.offset + sibling[1]
            if at < self.end:
                raise self.unit.dwarf.damaged()
            return at
        at = self.end
        if not self.parent:
            return at
        while (below := self.unit.read(at)) is not None:
            at = below.next()
        return at + 1


Attributes = dict[int, tuple[int, forms.Value]]
"""Form and value by attribute."""


class Unit:
    """A unit: the entries of one source file, or of types that several share."""

    def __init__(self, dwarf: "Dwarf", offset: int, head: forms.Header) -> None:
        """Keep where it is."""
        self.dwarf, self.offset, self.head = dwarf, offset, head

    def read(self, at: int) -> Entry | None:
        """Return the entry at an offset, none where a list of children ends."""
        content, size = self.dwarf.info, self.head.offset_size
        try:
            code, place = read_uleb(content, at)
            if code == 0:
                return None
            tag, children, attributes = self._abbreviations[code]
            found: Attributes = {}
            for attribute, form, implicit in attributes:
                if form == forms.IMPLICIT_CONST:
                    found[attribute] = form, implicit
                else:
                    true_form, value, place = forms.read(content, place, form, size)
                    found[attribute] = true_form, value
        except (IndexError, KeyError, ValueError):
            raise self.dwarf.damaged() from None
        return Entry(self, at, tag, place, found, parent=children)

    @cached_property
    def _abbreviations(self) -> dict[int, forms.Abbreviation]:
        return self.dwarf.abbreviations(self.head.abbreviations)

    @cached_property
    def entry(self) -> Entry:
        """The entry that describes the unit."""
        found = self.read(self.head.first)
        if found is None:
            raise self.dwarf.damaged()
        return found

    @property
    def split(self) -> str:
        """The file that the rest of it is in, empty where all is here."""
        for attribute in (AT_DWO_NAME, AT_GNU_DWO_NAME):
            if attribute in self.entry.attributes:
                return self.text(*self.entry.attributes[attribute])
        return ""

    @property
    def split_identity(self) -> int | None:
        """What a unit that is split off and its skeleton have in common."""
        return self.head.split_identity or self.entry.number(AT_GNU_DWO_ID)

    @property
    def base(self) -> int:
        """Where its code begins, from which on some addresses are counted."""
        skeleton = self.dwarf.skeleton
        return self.entry.address(AT_LOW_PC) or (skeleton.base if skeleton is not None else 0)

    def text(self, form: int, value: forms.Value) -> str:
        """Return the text that an attribute's value means."""
        dwarf = self.dwarf
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if form in forms.STRING_INDEX:
            size = self.head.offset_size
            base = self.entry.number(AT_STR_OFFSETS_BASE) or (2 * size if self.head.version == 5 else 0)
            at = base + value * size
            return _text_at(
                dwarf.strings, int.from_bytes(dwarf.section(".debug_str_offsets")[at : at + size], "little")
            )
        if form == forms.LINE_STRP:
            return _text_at(dwarf.section(".debug_line_str"), value)
        if form in forms.STRING_SUPPLEMENTARY:
            return "" if dwarf.supplementary is None else _text_at(dwarf.supplementary.strings, value)
        return _text_at(dwarf.strings, value)

    def address_of(self, index: int) -> int:
        """Return an address by its index; those of what is split off are with the skeleton."""
        if self.dwarf.skeleton is not None:
            return self.dwarf.skeleton.address_of(index)
        base = self.entry.number(AT_ADDR_BASE) or self.entry.number(AT_GNU_ADDR_BASE) or 0
        at = base + 8 * index
        return int.from_bytes(self.dwarf.section(".debug_addr")[at : at + 8], "little")


class Dwarf:
    """The debug information of one file."""

    def __init__(
        self,
        elf: ElfFile,
        supplementary: "Dwarf | None" = None,
        *,
        skeleton: Unit | None = None,
        units: str = ".debug_info",
    ) -> None:
        """Read from ``elf``; what ``dwz`` has moved elsewhere is in ``supplementary``.

        ``skeleton``: the unit that ``elf`` has been split off from. ``units``: the section that the units are in.
        """
        self.path, self._elf, self.supplementary = elf.path, elf, supplementary
        self.skeleton, self._units = skeleton, units
        self._sections: dict[str, bytes] = {}
        self._shapes: dict[int, dict[int, forms.Abbreviation]] = {}

    def damaged(self) -> UnsupportedTarget:
        """Return the error for what contradicts itself."""
        return UnsupportedTarget(f"{self.path}: damaged debug information")

    def section(self, name: str) -> bytes:
        """Return a section's content, unpacked; empty if there is none."""
        if name not in self._sections:
            true_name = name if self.skeleton is None else f"{name}.dwo"
            # what was never linked has several of a name, one for each type
            found = [each for each in self._elf.sections if each.name == true_name]
            if self.skeleton is None:
                found = found[:1]
            self._sections[name] = b"".join(unpacked(self._elf, each, "debug information") for each in found)
        return self._sections[name]

    @cached_property
    def info(self) -> bytes:
        """The entries."""
        return self.section(self._units)

    @cached_property
    def types(self) -> "Dwarf | None":
        """The types that DWARF 4 has in a section of their own, if there are any."""
        if self._units == _TYPES or not self.section(_TYPES):
            return None
        return Dwarf(self._elf, self.supplementary, skeleton=self.skeleton, units=_TYPES)

    @property
    def strings(self) -> bytes:
        """The texts."""
        return self.section(".debug_str")

    def abbreviations(self, offset: int) -> dict[int, forms.Abbreviation]:
        """Return a table of abbreviations."""
        if offset not in self._shapes:
            try:
                self._shapes[offset] = forms.abbreviations(self.section(".debug_abbrev"), offset)
            except IndexError:
                raise self.damaged() from None
        return self._shapes[offset]

    @cached_property
    def units(self) -> list[Unit]:
        """All units, by their offsets."""
        found, at = [], 0
        try:
            while at + 4 <= len(self.info):
                head = forms.header(self.info, at, of_type=self._units == _TYPES)
                found.append(Unit(self, at, head))
                at = head.end
        except struct.error:
            raise self.damaged() from None
        return found

    @cached_property
    def _offsets(self) -> list[int]:
        return [unit.offset for unit in self.units]

    def unit_at(self, offset: int) -> Unit:
        """Return the unit that an offset is in."""
        index = bisect.bisect_right(self._offsets, offset) - 1
        if index < 0 or offset >= self.units[index].head.end:
            raise self.damaged()
        return self.units[index]

    def entry(self, offset: int) -> Entry | None:
        """Return the entry at an offset."""
        return self.unit_at(offset).read(offset)

    def type_by_signature(self, signature: int) -> Entry | None:
        """Return the type of a type unit."""
        unit = self._signed.get(signature)
        if unit is not None:
            return unit.read(unit.head.type_offset)
        if self.types is not None:
            return self.types.type_by_signature(signature)
        raise UnsupportedTarget(f"{self.path}: the debug information refers to a type that it does not have")

    @cached_property
    def _signed(self) -> dict[int, Unit]:
        """The type units by their signatures."""
        return {unit.head.signature: unit for unit in self.units if unit.head.type_offset}


def _text_at(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset)
    return strings[offset : end if end >= 0 else None].decode(errors="replace")
