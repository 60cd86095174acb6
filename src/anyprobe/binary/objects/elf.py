"""ELF objects: header, segments, sections, dynamic table, notes; bytes at link-time addresses."""

import mmap
import os
import stat
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from anyprobe.core.address import page_ceil, page_floor
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault

ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
EM_X86_64 = 62
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_EH_FRAME = 1, 2, 3, 4, 0x6474E550
PF_X = 1
SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 4, 8
SHF_ALLOC, SHF_EXECINSTR, SHF_COMPRESSED = 2, 4, 0x800
NT_GNU_BUILD_ID = 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 1, 5, 10, 14

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header."""

    kind: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int

    @property
    def executable(self) -> bool:
        """Return whether the segment is mapped executable."""
        return bool(self.flags & PF_X)


@dataclass(frozen=True, slots=True)
class Section:
    """A section header with its name."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entsize: int


class ElfFile:
    """A 64-bit little-endian x86-64 executable, shared object or debug file; every read is checked against its size."""

    def __init__(self, path: str, content: bytes | mmap.mmap, *, unlinked: bool = False) -> None:
        """Check the header of ``content``; ``path`` is for messages. ``unlinked``: an object file will do."""
        self.path = path
        self.content = content
        self.identity: tuple[int, ...] | None = None
        """Size and times of the file that was opened: the same file with other content has others."""
        self.size = len(content)
        self._check_identity()
        head = _HEADER.unpack(self._slice(0, _HEADER.size, "header"))
        self.elf_type: int = head[1]
        self.machine: int = head[2]
        self.entry: int = head[4]
        self._phoff, self._shoff = head[5:7]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = head[9:14]
        if self.machine != EM_X86_64:
            raise UnsupportedTarget(f"{path}: made for another architecture (ELF machine {self.machine}), not x86-64")
        if self.elf_type not in (ET_EXEC, ET_DYN) and not (unlinked and self.elf_type == ET_REL):
            raise UnsupportedTarget(f"{path}: neither an executable nor a shared object (ELF type {self.elf_type})")

    @classmethod
    def open(cls, path: str, *, unlinked: bool = False) -> "ElfFile":
        """Map the file at ``path``; raise ``UnsupportedTarget`` with the reason if it cannot serve."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us
        except OSError as error:
            raise UnsupportedTarget(f"{path}: cannot be read: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnsupportedTarget(f"{path}: not a regular file, so not an ELF file")
            if status.st_size == 0:
                raise UnsupportedTarget(f"{path}: is empty, not an ELF file")
            content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise UnsupportedTarget(f"{path}: cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        elf = cls(path, content, unlinked=unlinked)
        elf.identity = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return elf

    def _check_identity(self) -> None:
        """Refuse what is not a 64-bit little-endian ELF file, by name."""
        ident = self.content[:16]
        if ident[:4] != b"\x7fELF" or len(ident) < 16:
            raise UnsupportedTarget(f"{self.path}: not an ELF file")
        if ident[4] != 2:
            raise UnsupportedTarget(f"{self.path}: a 32-bit object; only 64-bit x86-64 is supported")
        if ident[5] != 1:
            raise UnsupportedTarget(f"{self.path}: made for another architecture (big-endian), not x86-64")

    def damaged(self, what: str) -> UnsupportedTarget:
        """Return the error for a file whose tables contradict its size."""
        return UnsupportedTarget(f"{self.path}: damaged ELF file ({what} lies outside of it)")

    def _slice(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.damaged(what)
        return self.content[offset : offset + size]

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The program headers."""
        if not self._phnum:
            return ()
        if self._phentsize != _SEGMENT.size:
            raise self.damaged("program header table")
        table = self._slice(self._phoff, self._phnum * _SEGMENT.size, "program header table")
        return tuple(
            Segment(kind, flags, offset, vaddr, filesz, memsz)
            for kind, flags, offset, vaddr, _, filesz, memsz, _ in _SEGMENT.iter_unpack(table)
        )

    @cached_property
    def loads(self) -> tuple[Segment, ...]:
        """The segments that are mapped."""
        return tuple(segment for segment in self.segments if segment.kind == PT_LOAD)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The section headers; none when they were stripped away or cannot be read."""
        if not self._shoff or self._shentsize != _SECTION.size or self._shoff + _SECTION.size > self.size:
            return ()
        first = _SECTION.unpack(self._slice(self._shoff, _SECTION.size, "section header table"))
        count = self._shnum or first[5]  # more than 65279 sections: the count is in the first header
        if self._shoff + count * _SECTION.size > self.size:
            return ()  # the end of the file is gone (sstrip); loading does not need it, so we do not either
        raw = list(_SECTION.iter_unpack(self._slice(self._shoff, count * _SECTION.size, "section header table")))
        index = first[6] if self._shstrndx == 0xFFFF else self._shstrndx
        names = self.content[raw[index][4] : raw[index][4] + raw[index][5]] if index < len(raw) else b""
        return tuple(
            Section(_text_at(names, row[0]), row[1], row[2], row[3], row[4], row[5], row[6], row[9]) for row in raw
        )

    def section(self, name: str) -> Section | None:
        """Return the section of this name."""
        return next((section for section in self.sections if section.name == name), None)

    def section_bytes(self, section: Section) -> bytes:
        """Return what the file holds of a section."""
        if section.kind == SHT_NOBITS:
            return b""
        return self._slice(section.offset, section.size, f"section {section.name}")

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """The dynamic table: tag to value (the last one of a repeated tag)."""
        segment = next((each for each in self.segments if each.kind == PT_DYNAMIC), None)
        if segment is None or segment.offset + segment.filesz > self.size:
            return {}
        pairs = np.frombuffer(self.content, "<u8", segment.filesz // 16 * 2, segment.offset).tolist()
        table: dict[int, int] = {}
        for tag, value in zip(pairs[::2], pairs[1::2], strict=True):
            if tag == 0:
                break
            table[tag] = value
        return table

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The names of the libraries that are loaded with this object."""
        return self._dynamic_texts(_DT_NEEDED)

    @cached_property
    def soname(self) -> str:
        """The name by which others need this library; empty if it says none."""
        return next(iter(self._dynamic_texts(_DT_SONAME)), "")

    def _dynamic_texts(self, wanted: int) -> tuple[str, ...]:
        segment = next((each for each in self.segments if each.kind == PT_DYNAMIC), None)
        if segment is None or segment.offset + segment.filesz > self.size or _DT_STRTAB not in self.dynamic:
            return ()
        pairs = np.frombuffer(self.content, "<u8", segment.filesz // 16 * 2, segment.offset).tolist()
        size = self.dynamic.get(_DT_STRSZ, 0)
        strings = self._slice(self.offset_of(self.dynamic[_DT_STRTAB]), size, "the dynamic strings")
        return tuple(
            _text_at(strings, value)
            for tag, value in zip(pairs[::2], pairs[1::2], strict=True)
            if tag == wanted and value < size
        )

    @cached_property
    def notes(self) -> tuple[tuple[str, int, bytes], ...]:
        """The notes of the loaded segments: owner, type, description."""
        found: list[tuple[str, int, bytes]] = []
        areas = [(each.offset, each.filesz) for each in self.segments if each.kind == PT_NOTE]
        if not areas:
            areas = [(each.offset, each.size) for each in self.sections if each.kind == 7]
        for offset, size in areas:
            found += notes_in(self.content[offset : min(offset + size, self.size)])
        return tuple(found)

    @cached_property
    def build_id(self) -> str | None:
        """The linker's build-id in hexadecimal."""
        for owner, kind, description in self.notes:
            if owner == "GNU" and kind == NT_GNU_BUILD_ID and description:
                return description.hex()
        return None

    def offset_of(self, vaddr: int) -> int:
        """Return where in the file the byte at ``vaddr`` lies; raise ``MemoryFault`` if it is not in the file."""
        for segment in self.loads:
            if segment.vaddr <= vaddr < segment.vaddr + segment.filesz:
                return vaddr - segment.vaddr + segment.offset
        raise MemoryFault(vaddr, 1)

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at a link-time address; what only memory has (``.bss``) reads as zero."""
        for segment in self.loads:
            into = address - segment.vaddr
            if into >= 0 and into + size <= segment.memsz:
                start = segment.offset + into
                if into + size <= segment.filesz and start + size <= self.size:
                    return self.content[start : start + size]
                kept = max(min(segment.filesz - into, size), 0)
                if kept and start + kept > self.size:
                    break
                return self.content[start : start + kept] + bytes(size - kept)
        for segment in self.loads:  # whole pages are mapped: around a segment stands what the file has there
            low, high = page_floor(segment.vaddr), page_ceil(segment.vaddr + segment.filesz)
            start = segment.offset + address - segment.vaddr
            if segment.filesz == segment.memsz and low <= address and address + size <= high and start >= 0:
                return self.content[start : start + size].ljust(size, b"\0")
        raise MemoryFault(address, size)

    def array(self, dtype: DTypeLike, vaddr: int, count: int) -> NDArray[Any]:
        """Return ``count`` items at ``vaddr`` without copying."""
        offset = self.offset_of(vaddr)
        return self.array_at(dtype, offset, count)

    def array_at(self, dtype: DTypeLike, offset: int, count: int) -> NDArray[Any]:
        """Return ``count`` items at a file offset without copying."""
        kind = np.dtype(dtype)
        if offset < 0 or count < 0 or offset + count * kind.itemsize > self.size:
            raise self.damaged("a table")
        return np.frombuffer(self.content, kind, count, offset)


def _text_at(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset)
    return strings[offset : end if end >= 0 else None].decode("utf-8", "replace")


def notes_in(content: bytes) -> list[tuple[str, int, bytes]]:
    """Return the notes that follow each other in some bytes: owner, type, description."""
    found: list[tuple[str, int, bytes]] = []
    position = 0
    while position + 12 <= len(content):
        namesz, descsz, kind = struct.unpack_from("<III", content, position)
        name_at = position + 12
        desc_at = name_at + (namesz + 3 & ~3)
        if desc_at + descsz > len(content):
            break
        owner = content[name_at : name_at + namesz].rstrip(b"\0").decode("utf-8", "replace")
        found.append((owner, kind, content[desc_at : desc_at + descsz]))
        position = desc_at + (descsz + 3 & ~3)
    return found
