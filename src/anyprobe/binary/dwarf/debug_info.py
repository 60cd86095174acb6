"""What an object's debug information says of a function: only the units that are needed are read."""

import bisect
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.ranges import AddressTable, ranges_of
from anyprobe.binary.dwarf.split_dwarf import split_off
from anyprobe.binary.objects.debug_files import separate_debug
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.errors import UnsupportedTarget

if TYPE_CHECKING:
    from anyprobe.binary.dwarf.lines import Lines

_C_LANGUAGES = frozenset([0x01, 0x02, 0x04, 0x0C, 0x1A, 0x1D, 0x21, 0x2B, 0x2C])
_CPP_LANGUAGES = frozenset([0x04, 0x1A, 0x21, 0x2B])
_OTHER_LANGUAGES = {
    0x16: "Go",
    0x1C: "Rust",
    0x13: "D",
    0x14: "Python",
    0x1B: "C",
    0x1E: "Swift",
    0x08: "Fortran",
    0x8001: "assembly",
}
_NAMED_TYPES = frozenset([dw.STRUCTURE, dw.UNION, dw.CLASS, dw.ENUMERATION, dw.TYPEDEF, dw.BASE])
_UNITS_TRIED = 64


class DebugInfo:
    """The debug information of one object; addresses are link-time ones."""

    def __init__(self, dwarf: dw.Dwarf, prefix: str = "") -> None:
        """Use ``open``."""
        self.dwarf, self._prefix = dwarf, prefix
        self._functions: dict[int, dict[int, int]] = {}
        self._split: dict[int, dw.Unit] = {}
        self._types: dict[int, dict[str, int]] = {}
        self._lines: dict[str, dict[str, Lines]] = {}

    @classmethod
    def open(cls, elf: ElfFile, roots: Sequence[str], prefix: str) -> "DebugInfo":
        """Read the object's own debug information, or that in its separate file; say what is missing."""
        holder = elf if elf.section(".debug_info") is not None else separate_debug(elf, roots, prefix, ".debug_info")
        if holder is None:
            name = os.path.basename(elf.path)
            raise UnsupportedTarget(f"{name} has no debug information, and no separate file of it is installed")
        supplement = _supplementary(holder, roots, prefix)
        return cls(dw.Dwarf(holder, None if supplement is None else dw.Dwarf(supplement)), prefix)

    @cached_property
    def _addresses(self) -> AddressTable:
        return AddressTable(self.dwarf)

    def function(self, address: int) -> dw.Entry:
        """Return the function that begins at an address; raise ``UnsupportedTarget`` where it is not described."""
        offset = self._addresses.unit_at(address)
        if offset is None:
            raise UnsupportedTarget("the debug information says nothing about it")
        unit = self._whole(self.dwarf.unit_at(offset))
        known = self._functions.get(offset)
        if known is None:
            known = self._functions[offset] = dict(_functions_below(unit.entry))
        found = known.get(address)
        entry = unit.dwarf.entry(found) if found is not None else None
        if entry is None:
            raise UnsupportedTarget("the debug information says nothing about it")
        return entry

    def _whole(self, unit: dw.Unit) -> dw.Unit:
        """Return a unit with all that it says, from the file that it was split off into, if it was."""
        if not unit.split or unit.dwarf.skeleton is not None:
            return unit
        if unit.offset not in self._split:
            self._split[unit.offset] = split_off(unit, self._prefix)
        return self._split[unit.offset]

    @cached_property
    def _parts(self) -> "list[DebugInfo]":
        """What types are in besides: a section of their own, and files that units were split off into."""
        found = [] if self.dwarf.types is None else [DebugInfo(self.dwarf.types)]
        units = (unit for unit in self.dwarf.units if unit.split and self.dwarf.skeleton is None)
        for unit in itertools.islice(units, _UNITS_TRIED):
            with suppress(UnsupportedTarget):  # said where a function of its own is asked for
                found.append(DebugInfo(self._whole(unit).dwarf))
        return found

    def definition(self, declaration: dw.Entry) -> dw.Entry | None:
        """Return the definition of a type that an entry only declares, looked for in the other units."""
        if (signed := declaration.reference(dw.AT_SIGNATURE)) is not None:
            return signed
        name = _qualified_name(declaration) if is_cpp(declaration.unit) else declaration.name
        return self.named(name) if name else None

    def named(self, name: str) -> dw.Entry | None:
        """Return the definition of a type by its name, with those of its scopes: ``struct`` before ``typedef``."""
        for unit in itertools.islice(self.units_naming(name.rpartition("::")[2]), _UNITS_TRIED):
            if unit.offset not in self._types:
                found = sorted(_types_below(unit.entry, ""), key=lambda item: item[1] == dw.TYPEDEF, reverse=True)
                self._types[unit.offset] = {each: offset for each, _, offset in found}
            offset = self._types[unit.offset].get(name)
            if offset is not None:
                return self.dwarf.entry(offset)
        return next((entry for part in self._parts if (entry := part.named(name)) is not None), None)

    def lines(self, file: str) -> "dict[str, Lines]":
        """Return the lines with code of the source files that a name means, by their paths; see ``lines_of``."""
        if file not in self._lines:
            from anyprobe.binary.dwarf.lines import lines_of

            try:
                self._lines[file] = lines_of(self.dwarf, file)
            except (IndexError, ValueError, OverflowError):
                raise self.dwarf.damaged() from None
        return self._lines[file]

    def statements(self) -> "list[tuple[int, str, int]]":
        """Return the address, file and line of each place at which a statement begins."""
        from anyprobe.binary.dwarf.lines import statements

        try:
            return list(statements(self.dwarf))
        except (IndexError, ValueError, OverflowError):
            raise self.dwarf.damaged() from None

    def units_naming(self, name: str) -> Iterator[dw.Unit]:
        """Yield the units in which a name occurs: where its text is, and from where that is referred to."""
        dwarf, text = self.dwarf, name.encode() + b"\0"
        if dwarf.skeleton is not None:  # all units of such a file share its one table of texts
            yield from dwarf.units
            return
        needles = [text]
        at = dwarf.strings.find(text)
        while at >= 0:
            needles.append(at.to_bytes(4, "little"))
            at = dwarf.strings.find(text, at + 1)
        seen = set()
        for needle in needles:
            by_index = self._units_by_index(needle) if needle is not text else iter(())
            for unit in itertools.chain(self._units_with(needle), by_index):
                if unit.offset not in seen:
                    seen.add(unit.offset)
                    yield unit

    def _units_with(self, needle: bytes) -> Iterator[dw.Unit]:
        """Yield the units whose entries have some bytes."""
        at = self.dwarf.info.find(needle)
        while at >= 0:
            unit = self.dwarf.unit_at(at)
            yield unit
            at = self.dwarf.info.find(needle, unit.head.end)

    def _units_by_index(self, needle: bytes) -> Iterator[dw.Unit]:
        """Yield the units that name a text by its index in a table of theirs, as LLVM has it."""
        table = self.dwarf.section(".debug_str_offsets")
        at = table.find(needle)
        while at >= 0:
            index = bisect.bisect_right(self._string_tables, at, key=lambda item: item[0]) - 1
            if index >= 0:
                yield self._string_tables[index][1]
            at = table.find(needle, at + 1)

    @cached_property
    def _string_tables(self) -> list[tuple[int, dw.Unit]]:
        """Where the table of texts of each unit begins that has one."""
        found = [(unit.entry.number(dw.AT_STR_OFFSETS_BASE), unit) for unit in self.dwarf.units]
        return sorted(((base, unit) for base, unit in found if base is not None), key=lambda item: item[0])


def is_cpp(unit: dw.Unit) -> bool:
    """Return whether a unit was written in C++."""
    return unit.entry.number(dw.AT_LANGUAGE) in _CPP_LANGUAGES


def foreign_language(unit: dw.Unit) -> str:
    """Return the language of a unit if it does not pass parameters as C does, else nothing."""
    language = unit.entry.number(dw.AT_LANGUAGE)
    if language is None or language in _C_LANGUAGES:
        return ""
    return _OTHER_LANGUAGES.get(language, f"language {language:#x}")


def _functions_below(parent: dw.Entry) -> Iterator[tuple[int, int]]:
    """Yield begin and offset of each function with code."""
    for entry in parent.children():
        if entry.tag == dw.SUBPROGRAM:
            ranges = ranges_of(entry)
            if ranges:
                yield ranges[0][0], entry.offset
        elif entry.tag == dw.NAMESPACE:
            yield from _functions_below(entry)


def _types_below(parent: dw.Entry, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yield the qualified name, the tag and the offset of each type that is defined."""
    for entry in parent.children():
        if entry.tag in _NAMED_TYPES and dw.AT_DECLARATION not in entry.attributes and entry.name:
            yield prefix + entry.name, entry.tag, entry.offset
        if entry.tag == dw.NAMESPACE or (entry.tag in {dw.STRUCTURE, dw.CLASS} and is_cpp(entry.unit)):
            yield from _types_below(entry, f"{prefix}{entry.name}::")


def _qualified_name(entry: dw.Entry) -> str:
    """Return the name of a type with those of the scopes around it."""

    def below(parent: dw.Entry, prefix: str) -> str:
        for each in parent.children():
            if each.offset == entry.offset:
                return prefix + each.name
            if each.tag in {dw.NAMESPACE, dw.STRUCTURE, dw.CLASS} and each.offset < entry.offset < each.next():
                return below(each, f"{prefix}{each.name}::")
        return ""

    return below(entry.unit.entry, "")


def _supplementary(holder: ElfFile, roots: Sequence[str], prefix: str) -> ElfFile | None:
    """Return the file that ``dwz`` has moved common parts to, if it is installed."""
    section = holder.section(".gnu_debugaltlink")
    if section is None:
        return None
    link, _, build_id = holder.section_bytes(section).partition(b"\0")
    name, digits = link.decode(errors="replace"), build_id.hex()
    places = [os.path.join(os.path.dirname(os.path.realpath(holder.path)), name)]
    for before in [prefix, ""] if prefix else [""]:
        places += [f"{before}{name}"] if name.startswith("/") else []
        places += [f"{before}{root}/.build-id/{digits[:2]}/{digits[2:]}.debug" for root in roots]
        places += [f"{before}{root}/.dwz/{os.path.basename(name)}" for root in roots]
        places += [f"{before}{root}/.dwz/x86_64-linux-gnu/{os.path.basename(name)}" for root in roots]
    for place in places:
        if not os.path.isfile(place):
            continue
        try:
            found = ElfFile.open(place)
        except UnsupportedTarget:
            continue
        if found.build_id == digits:
            return found
    return None
