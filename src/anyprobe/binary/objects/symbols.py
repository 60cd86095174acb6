"""Symbol tables: ``.symtab``, the dynamic one (found without sections too), and their version names."""

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import SHF_COMPRESSED, SHT_SYMTAB, ElfFile
from anyprobe.core.arrays import among
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault

STT_NOTYPE, STT_FUNC, STT_TLS, STT_GNU_IFUNC = 0, 2, 6, 10
STB_LOCAL, STB_GLOBAL = 0, 1
SHN_UNDEF, SHN_ABS = 0, 0xFFF1

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)

DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF

VERSYM_HIDDEN = 0x8000


@dataclass(frozen=True, eq=False)
class SymbolTable:
    """One symbol table: the raw entries, their strings, and what versions they have."""

    symbols: NDArray[Any]
    strings: bytes
    versym: NDArray[Any] | None = None
    version_names: dict[int, str] = field(default_factory=dict)
    identity: tuple[int, ...] = ()
    """The identity of the separate debug file that has the table."""

    def name(self, index: int) -> str:
        """Return the name of a symbol, without ``@VERSION``."""
        return self.raw_name(index).partition("@")[0]

    def raw_name(self, index: int) -> str:
        """Return the name of a symbol as it is in the table; ``.symtab`` keeps ``@VERSION`` in it."""
        start = int(self.symbols["name"][index])
        end = self.strings.find(b"\0", start)
        return self.strings[start : end if end >= 0 else None].decode("utf-8", "replace")

    def names(self, indices: "NDArray[Any]") -> list[str]:
        """Return the names of many symbols, without their versions."""
        return [text.partition("@")[0] for text in self.texts(self.symbols["name"][indices].tolist())]

    def texts(self, starts: list[int]) -> list[str]:
        """Return the strings at many offsets."""
        strings, size = self.strings, len(self.strings)
        if strings.isascii():  # once for all of them
            text = strings.decode("ascii")
            until = text.find
            return [text[start : end if (end := until("\0", start)) >= 0 else size] for start in starts]
        find = strings.find
        return [
            strings[start : end if (end := find(b"\0", start)) >= 0 else size].decode("utf-8", "replace")
            for start in starts
        ]

    def spelled(self, starts: NDArray[np.uint32], names: Collection[str]) -> dict[int, str]:
        """Return which of the strings at many offsets are, but for a version, some names, with what they are."""
        if not names or not self.strings:
            return {}
        content, ends = np.frombuffer(self.strings, np.uint8), self._ends
        after = np.searchsorted(ends, starts)
        rows = np.flatnonzero(after < len(ends))
        begins = starts[rows].astype(np.int64)
        # few strings are read: those as long as a name, with the same letters at some places
        wanted = np.frombuffer(b"".join(encoded := [name.encode() for name in names]), np.uint8)
        sizes = np.array([len(name) for name in encoded], np.int64)
        keys = _keys(content, begins, ends[after[rows]] - begins)
        rows = rows[among(keys, _keys(wanted, np.cumsum(sizes) - sizes, sizes))]
        texts = zip(rows.tolist(), self.texts(starts[rows].tolist()), strict=True)
        return {row: text for row, text in texts if text.partition("@")[0] in names}

    def having(self, starts: NDArray[np.uint32], letter: bytes) -> NDArray[np.int64]:
        """Return which of the strings at many offsets have an ASCII letter in them, before their version."""
        content, ends = np.frombuffer(self.strings, np.uint8), self._ends
        places = np.flatnonzero(content == ord(letter))
        following = np.append(places, len(content))[np.searchsorted(places, starts)]
        return np.flatnonzero(following < np.append(ends, len(content))[np.searchsorted(ends, starts)])

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where names end: at a zero, or at what begins a version."""
        content = np.frombuffer(self.strings, np.uint8)
        return np.flatnonzero((content == 0) | (content == ord("@")))

    def version(self, index: int) -> str:
        """Return ``@@VERSION`` (the default one), ``@VERSION`` (hidden) or nothing."""
        if self.versym is not None:
            return self._version_of(int(self.versym[index]))
        name = self.raw_name(index)
        at = name.find("@")
        return name[at:] if at >= 0 else ""

    def versions(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the versions of many symbols of a dynamic table."""
        numbers = [] if self.versym is None else self.versym[indices].tolist()
        texts = {number: self._version_of(number) for number in set(numbers)}
        return [texts[number] for number in numbers]

    def _version_of(self, number: int) -> str:
        version = self.version_names.get(number & ~VERSYM_HIDDEN, "")
        return ("@" if number & VERSYM_HIDDEN else "@@") + version if version else ""

    def offsets_of(self, name: str) -> list[int]:
        """Return every offset into the strings at which exactly ``name`` (maybe with a version) can be read."""
        wanted, found, at = name.encode(), [], 0
        while (at := self.strings.find(wanted, at)) >= 0:
            if self.strings[at + len(wanted) : at + len(wanted) + 1] in (b"\0", b"@"):
                found.append(at)
            at += 1
        return found

    def value_of(self, name: str) -> int | None:
        """Return the value of a symbol that the object defines, ``None`` if it defines none of this name."""
        names, sections = self.symbols["name"], self.symbols["shndx"]
        for start in self.offsets_of(name):
            rows = np.flatnonzero((names == start) & (sections != SHN_UNDEF))
            if len(rows):
                return int(self.symbols["value"][rows[0]])
        return None


def _keys(content: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each string, equal for equal strings: of its size and four of its letters."""
    keys = sizes.copy()
    for place in (0, sizes // 3, sizes // 2, np.maximum(sizes - 1, 0)):
        keys = keys << 8 | content[begins + place]
    return keys


def static_symbols(elf: ElfFile) -> SymbolTable | None:
    """Return ``.symtab``, if the file still has it; raise ``UnsupportedTarget`` where it is compressed and damaged."""
    section = next((each for each in elf.sections if each.kind == SHT_SYMTAB), None)
    if section is None or section.link >= len(elf.sections) or section.offset + section.size > elf.size:
        return None
    strings = elf.sections[section.link]
    if (section.flags | strings.flags) & SHF_COMPRESSED:
        from anyprobe.binary.objects.compressed import unpacked

        content = unpacked(elf, section, "symbols")
        packed = np.frombuffer(content, SYMBOL, len(content) // SYMBOL.itemsize)
        return SymbolTable(packed, unpacked(elf, strings, "symbols"))
    symbols = elf.array_at(SYMBOL, section.offset, section.size // SYMBOL.itemsize)
    return SymbolTable(symbols, elf.section_bytes(strings))


_RELOCATION_TAGS = ((7, 8), (23, 2))  # DT_RELA, DT_RELASZ; DT_JMPREL, DT_PLTRELSZ


def dynamic_symbols(elf: ElfFile) -> SymbolTable | None:
    """Return the dynamic symbol table by way of ``PT_DYNAMIC``, so that stripped section headers do not matter."""
    table = elf.dynamic
    if DT_SYMTAB not in table or DT_STRTAB not in table:
        return None
    try:
        symbols = elf.array(SYMBOL, table[DT_SYMTAB], _dynamic_count(elf))
        strings = elf.read(table[DT_STRTAB], table.get(DT_STRSZ, 0))
        versym = elf.array("<u2", table[DT_VERSYM], len(symbols)) if DT_VERSYM in table else None
        versions = _version_names(elf, strings) if versym is not None else {}
    except (MemoryFault, UnsupportedTarget, struct.error):
        return None  # a damaged table has no names; the unwind tables may still have bounds
    return SymbolTable(symbols, strings, versym, versions)


def _dynamic_count(elf: ElfFile) -> int:
    """Return the number of dynamic symbols, which no tag says: from the hash tables."""
    if DT_HASH in elf.dynamic:
        return int(elf.array("<u4", elf.dynamic[DT_HASH], 2)[1])
    if DT_GNU_HASH in elf.dynamic:
        return max(_gnu_hash_count(elf, elf.dynamic[DT_GNU_HASH]), _section_count(elf), _relocated_count(elf))
    return max(_section_count(elf), _relocated_count(elf))


def _section_count(elf: ElfFile) -> int:
    section = next((each for each in elf.sections if each.name == ".dynsym"), None)
    return section.size // SYMBOL.itemsize if section else 0


def _relocated_count(elf: ElfFile) -> int:
    """Return one more than the highest symbol of a relocation: a hash table without exports knows of no import."""
    highest, room = -1, (elf.dynamic[DT_STRTAB] - elf.dynamic[DT_SYMTAB]) // SYMBOL.itemsize  # the strings come next
    for tag, size_tag in _RELOCATION_TAGS:
        if elf.dynamic.get(tag) and elf.dynamic.get(size_tag):
            words: NDArray[Any] = elf.array("<u8", elf.dynamic[tag], elf.dynamic[size_tag] // 24 * 3)
            indices = (words[1::3] >> np.uint64(32)).astype(np.int64)
            highest = max(highest, int(indices[indices < room].max(initial=0)))
    return highest + 1


def _gnu_hash_count(elf: ElfFile, address: int) -> int:
    """Return the number of symbols: the end of the chain that the highest bucket starts."""
    buckets, first, bloom, _ = elf.array("<u4", address, 4).tolist()
    at = address + 16 + bloom * 8
    highest = int(elf.array("<u4", at, buckets).max(initial=0))
    if highest < first:
        return int(first)
    chain = at + buckets * 4
    while not int(elf.array("<u4", chain + (highest - first) * 4, 1)[0]) & 1:
        highest += 1
    return highest + 1


def _version_names(elf: ElfFile, strings: bytes) -> dict[int, str]:
    """Return the names of the versions that the object defines or needs, by index."""
    names = _needed_versions(elf, strings)
    address = elf.dynamic.get(DT_VERDEF, 0)
    for _ in range(min(elf.dynamic.get(DT_VERDEFNUM, 0), VERSYM_HIDDEN)):
        _, _, index, _, _, aux, following = struct.unpack("<HHHHIII", elf.read(address, 20))
        start = struct.unpack("<I", elf.read(address + aux, 4))[0]
        if index > 1:  # 1 is the object's own name
            names[index] = strings[start : strings.find(b"\0", start)].decode("utf-8", "replace")
        if not following:
            break
        address += following
    return names


def _needed_versions(elf: ElfFile, strings: bytes) -> dict[int, str]:
    """Return the names of the versions that the object imports, by index."""
    names: dict[int, str] = {}
    address = elf.dynamic.get(DT_VERNEED, 0)
    for _ in range(min(elf.dynamic.get(DT_VERNEEDNUM, 0), VERSYM_HIDDEN)):
        _, count, _, aux, following = struct.unpack("<HHIII", elf.read(address, 16))
        at = address + aux
        for _ in range(count):
            _, _, index, start, step = struct.unpack("<IHHII", elf.read(at, 16))
            names[index & ~VERSYM_HIDDEN] = strings[start : strings.find(b"\0", start)].decode("utf-8", "replace")
            at += step
        if not following:
            break
        address += following
    return names


def address_of(name: str, tables: Sequence[SymbolTable], where: str) -> int:
    """Return the link-time address of the only thing in an object's tables that has a name; ``where``: the object's."""
    found: set[int] = set()
    for table in tables:
        symbols = table.symbols
        named = among(symbols["name"], np.array(table.offsets_of(name), symbols["name"].dtype))
        defined = (symbols["shndx"] != SHN_UNDEF) & (symbols["shndx"] != SHN_ABS)
        for value, info in symbols[named & defined][["value", "info"]].tolist():
            if info & 15 == STT_TLS:
                raise UnsupportedTarget(f"{name} is another one in each thread")
            found.add(int(value))
    if not found:
        raise UnsupportedTarget(f"{where} has no symbol {name}, or has lost it")
    if len(found) > 1:
        raise UnsupportedTarget(f"{len(found)} things in {where} are named {name}")
    return found.pop()
