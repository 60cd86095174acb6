"""Where an object has the table by which Go's runtime knows its functions, and what the table's offsets count from.

Go's own linker makes a section of it. In position-independent programs that the system's linker has linked it lies
among read-only data. The offsets count from ``runtime.text``, which is where ``.text`` begins only without code of C.
"""

from typing import NamedTuple

import numpy as np

from anyprobe.binary.objects.elf import ET_EXEC, ElfFile, Section
from anyprobe.binary.objects.golang import TABLE_HEADER, TABLE_SECTIONS
from anyprobe.binary.objects.relocations import R_RELATIVE, relocations
from anyprobe.core.memory import MemoryFault

_MAGICS = (b"\xf0\xff\xff\xff\0\0\1\x08", b"\xf1\xff\xff\xff\0\0\1\x08")
"""Since Go 1.18 (offsets from the start of the text) and since Go 1.20."""
_OTHER_SECTIONS = (".data.rel.ro", ".rodata")
_TEXT_START_AT = 24
"""Where the header has the text's start, up to Go 1.25; a loader writes it in position-independent objects."""
_MOST_PADDING = 64
_MODULE, _TEXT_IN_MODULE = ".go.module", 176
"""The section of ``runtime.firstmoduledata``, since Go 1.26, and where that has the text's start."""
_MADE_BY_C_LINKERS = (".init", ".plt.got", ".eh_frame")


class FunctionTable(NamedTuple):
    """The table's bytes, from its header on, and the address that its offsets count from."""

    content: bytes
    text: int


def function_table(elf: ElfFile) -> FunctionTable | None:
    """Return the table of an object; nothing for versions of it that are not known."""
    for section in elf.sections:
        if section.name in TABLE_SECTIONS:
            found = _table_at(elf, section, 0)
            return found if found is None or found.content[:8] in _MAGICS else None
    for section in elf.sections:
        content = elf.section_bytes(section) if section.name in _OTHER_SECTIONS else b""
        for magic in _MAGICS:
            at = content.find(magic)
            while at >= 0:
                if at % 8 == 0 and _is_header(content, at):
                    return _table_at(elf, section, at)
                at = content.find(magic, at + 1)
    return None


def _is_header(content: bytes, at: int) -> bool:
    """Return whether the parts of a table follow one another within the content."""
    if at + TABLE_HEADER.size > len(content):
        return False
    head = TABLE_HEADER.unpack_from(content, at)
    parts = head[8:]
    ordered = list(parts) == sorted(parts) and TABLE_HEADER.size <= parts[0] < TABLE_HEADER.size + _MOST_PADDING
    return ordered and at + parts[-1] + 8 * head[5] < len(content)


def _table_at(elf: ElfFile, section: Section, at: int) -> FunctionTable | None:
    content = elf.section_bytes(section)[at:]
    if len(content) < TABLE_HEADER.size:
        return None
    text = _text_start(elf, section.address + at)
    return None if text is None else FunctionTable(content, text)


def _text_start(elf: ElfFile, table: int) -> int | None:
    module = elf.section(_MODULE)
    places = [table + _TEXT_START_AT, *([] if module is None else [module.address + _TEXT_IN_MODULE])]
    for place in places:
        stored = _stored_pointer(elf, place)
        if stored:
            return stored
    text = elf.section(".text")
    if text is None or any(elf.section(name) is not None for name in _MADE_BY_C_LINKERS):
        return None
    return text.address


def _stored_pointer(elf: ElfFile, place: int) -> int:
    """Return the link-time address that an object holds somewhere, once it is loaded."""
    try:
        stored = int.from_bytes(elf.read(place, 8), "little")
    except MemoryFault:
        return 0
    if stored or elf.elf_type == ET_EXEC:
        return stored
    table = relocations(elf)
    rows = np.flatnonzero((table.offsets == place) & (table.kinds == R_RELATIVE))
    return int(table.addends[rows[0]]) if len(rows) else 0
