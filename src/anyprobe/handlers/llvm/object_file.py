"""The parts of a relocatable ELF object that LLVM makes: sections, symbols, relocations."""

import struct
from dataclasses import dataclass

from anyprobe.core.errors import InternalError

_SYMTAB, _RELA, _REL, _NOBITS = 2, 4, 9, 8
_WRITABLE, _ALLOCATED, _EXECUTABLE = 1, 2, 4
_NOT_NEEDED = (".eh_frame", ".llvm_addrsig", ".note.gnu.property")


@dataclass(frozen=True, slots=True)
class Section:
    """One section; ``allocated``: it belongs to the program."""

    name: str
    kind: int
    allocated: bool
    executable: bool
    writable: bool
    content: bytes
    alignment: int
    link: int
    info: int

    @property
    def needed(self) -> bool:
        """Whether it has to be where the code runs."""
        return self.allocated and self.name not in _NOT_NEEDED


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name and where it is: the index of its section (0: nowhere) and the offset in it."""

    name: str
    section: int
    value: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place in a section that depends on a symbol."""

    section: int
    offset: int
    kind: int
    symbol: Symbol
    addend: int


class ObjectFile:
    """A parsed object."""

    def __init__(self, content: bytes) -> None:
        """Parse what LLVM made."""
        start, count, names = struct.unpack_from("<Q", content, 0x28)[0], *struct.unpack_from("<HH", content, 0x3C)
        heads = [struct.unpack_from("<IIQQQQIIQQ", content, start + 64 * index) for index in range(count)]
        strings = content[heads[names][4] :]
        self.sections = [
            Section(
                _name(strings, head[0]), head[1], bool(head[2] & _ALLOCATED), bool(head[2] & _EXECUTABLE),
                bool(head[2] & _WRITABLE),
                bytes(head[5]) if head[1] == _NOBITS else content[head[4] : head[4] + head[5]],
                max(head[8], 1), head[6], head[7],
            )
            for head in heads
        ]  # fmt: skip
        self.symbols = self._symbols()
        self.relocations = [each for section in self.sections for each in self._relocations(section)]

    def _symbols(self) -> list[Symbol]:
        found = []
        for section in self.sections:
            if section.kind == _SYMTAB:
                strings = self.sections[section.link].content
                for name, _, _, index, value, _ in struct.iter_unpack("<IBBHQQ", section.content):
                    found.append(Symbol(_name(strings, name), index, value))
        return found

    def _relocations(self, section: Section) -> list[Relocation]:
        if section.kind == _RELA:
            entries = list(struct.iter_unpack("<QQq", section.content))
        elif section.kind == _REL:
            entries = [(*entry, 0) for entry in struct.iter_unpack("<QQ", section.content)]
        else:
            return []
        if not self.sections[section.info].allocated:
            return []
        return [
            Relocation(section.info, offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend)
            for offset, info, addend in entries
        ]

    def symbol(self, name: str) -> Symbol:
        """Return a symbol by name."""
        for each in self.symbols:
            if each.name == name:
                return each
        raise InternalError(f"the object has no symbol {name}")


def _name(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


_PC32, _PLT32 = 2, 4
RELATIVE = frozenset([_PC32, _PLT32])
"""Kinds of relocations that do not depend on where the code lies."""
_STUB_BYTES = 16


@dataclass(frozen=True, slots=True)
class Image:
    """Code followed by its constants; the first ``code_bytes`` are code."""

    content: bytes
    code_bytes: int


def linked(content: bytes, entry: str) -> Image:
    """Return the code and constants of an x86-64 object in one piece that can lie anywhere, entered at its begin."""
    found = ObjectFile(content)
    first = found.symbol(entry)
    order = [index for index, section in enumerate(found.sections) if section.needed and section.content]
    order.sort(key=lambda index: (index != first.section, not found.sections[index].executable, index))
    # what does not begin with its entry gets a jump in front
    image, places, code_bytes = bytearray(b"\xe9".ljust(_STUB_BYTES, b"\xcc") if first.value else b""), {}, 0
    for index in order:
        section = found.sections[index]
        padding = -len(image) % section.alignment
        image += (b"\xcc" if section.executable else b"\0") * padding
        places[index] = len(image)
        image += section.content
        code_bytes = len(image) if section.executable else code_bytes
    if first.value:
        struct.pack_into("<i", image, 1, places[first.section] + first.value - 5)
    for each in found.relocations:
        if each.section not in places:
            continue
        if each.kind not in RELATIVE or each.symbol.section not in places:
            raise InternalError(f"generated code refers to {each.symbol.name or 'something'} outside")
        place = places[each.section] + each.offset
        distance = places[each.symbol.section] + each.symbol.value + each.addend - place
        struct.pack_into("<i", image, place, distance)
    return Image(bytes(image), code_bytes)
