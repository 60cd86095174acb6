"""Shared objects with markers and nothing else: an ELF file that loaders, tracers and debuggers read.

One function for each marker: the ``nop`` that the note names, room for a jump, and ``ret``. The arguments are where
the calling convention has them. Beside it lie semaphores, in memory that the process may write.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from anyprobe.isa.encode import machine_code

_PAGE = 0x1000
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NOTE = struct.Struct("<III")
_PROGBITS, _STRTAB, _HASH, _DYNAMIC_SECTION, _NOTE_SECTION, _DYNSYM = 1, 3, 5, 6, 7, 11
_WRITE, _ALLOC, _EXEC = 1, 2, 4
_LOAD, _PT_DYNAMIC, _PT_NOTE, _STACK = 1, 2, 4, 0x6474E551
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_GLOBAL_OBJECT, _GLOBAL_FUNCTION = 0x11, 0x12
_FUNCTION_ALIGNMENT = 16
_SEGMENTS = 6
SEMAPHORE_BYTES = 2


@dataclass(frozen=True, slots=True)
class NotedMarker:
    """A marker of an object to be made."""

    provider: str
    name: str
    arguments: str
    """As they stand in the note: ``8@%rdi -4@%esi``."""

    @property
    def function(self) -> str:
        """The name of the function that is the marker."""
        return f"{self.provider}_{self.name}"

    @property
    def semaphore(self) -> str:
        """The name of the 16-bit number that says how many listen."""
        return f"{self.function}_semaphore"


@dataclass(slots=True)
class _Part:
    """One section; in the file it lies where it lies in memory."""

    name: str
    kind: int
    flags: int = 0
    content: bytes = b""
    link: str = ""
    info: int = 0
    alignment: int = 1
    entry: int = 0
    at: int = 0


@dataclass(slots=True)
class _Strings:
    content: bytearray = field(default_factory=lambda: bytearray(1))

    def add(self, text: str) -> int:
        at = len(self.content)
        self.content += text.encode() + b"\0"
        return at


def shared_object(name: str, markers: Sequence[NotedMarker]) -> bytes:
    """Return the file of a shared object, called ``name``, that has these markers."""
    body = machine_code("nop; nop dword [rax+rax]; ret")
    step = -(-len(body) // _FUNCTION_ALIGNMENT) * _FUNCTION_ALIGNMENT
    filler = machine_code("int3") * (step - len(body))
    strings = _Strings()
    soname = strings.add(name)
    named = [(strings.add(each.function), strings.add(each.semaphore)) for each in markers]
    count = 1 + 2 * len(markers)
    text = _Part(".text", _PROGBITS, _ALLOC | _EXEC, (body + filler) * len(markers), alignment=_FUNCTION_ALIGNMENT)
    probes = _Part(".probes", _PROGBITS, _ALLOC | _WRITE, bytes(SEMAPHORE_BYTES * len(markers)), alignment=8)
    base = _Part(".stapsdt.base", _PROGBITS, _ALLOC, bytes(1))
    build_id = _Part(".note.gnu.build-id", _NOTE_SECTION, _ALLOC, bytes(_NOTE.size + 4 + 20), alignment=4)
    dynsym = _Part(
        ".dynsym", _DYNSYM, _ALLOC, bytes(_SYMBOL.size * count), ".dynstr", info=1, alignment=8, entry=_SYMBOL.size
    )  # fmt: skip
    dynstr = _Part(".dynstr", _STRTAB, _ALLOC, bytes(strings.content))
    chain = struct.pack(f"<{3 + count}I", 1, count, 1, 0, *range(2, count), 0)
    hashed = _Part(".hash", _HASH, _ALLOC, chain, ".dynsym", alignment=8, entry=4)
    dynamic = _Part(
        ".dynamic", _DYNAMIC_SECTION, _ALLOC | _WRITE, bytes(_DYNAMIC.size * 7), ".dynstr", alignment=8,
        entry=_DYNAMIC.size,
    )  # fmt: skip
    read = [build_id, dynsym, dynstr, hashed, base]
    written = [dynamic, probes]
    end = _placed(read, _HEADER.size + _SEGMENTS * _SEGMENT.size)
    text_end = _placed([text], _page(end))
    data_end = _placed(written, _page(text_end))
    parts = [_Part("", 0), *read, text, *written]

    functions = [text.at + step * index for index in range(len(markers))]
    guards = [probes.at + SEMAPHORE_BYTES * index for index in range(len(markers))]
    rows = [
        row
        for (function_name, guard_name), function, guard in zip(named, functions, guards, strict=True)
        for row in (
            _SYMBOL.pack(function_name, _GLOBAL_FUNCTION, 0, parts.index(text), function, len(body)),
            _SYMBOL.pack(guard_name, _GLOBAL_OBJECT, 0, parts.index(probes), guard, SEMAPHORE_BYTES),
        )
    ]
    dynsym.content = bytes(_SYMBOL.size) + b"".join(rows)
    entries = (
        (_DT_SONAME, soname), (_DT_HASH, hashed.at), (_DT_STRTAB, dynstr.at), (_DT_STRSZ, len(dynstr.content)),
        (_DT_SYMTAB, dynsym.at), (_DT_SYMENT, _SYMBOL.size), (0, 0),
    )  # fmt: skip
    dynamic.content = b"".join(_DYNAMIC.pack(*each) for each in entries)
    notes = b"".join(map(_note_of, markers, functions, guards, [base.at] * len(markers)))
    noted = _Part(".note.stapsdt", _NOTE_SECTION, 0, notes, alignment=4)
    build_id.content = _note(b"GNU\0", 3, hashlib.sha1(name.encode() + notes, usedforsecurity=False).digest())

    segments = [
        (_LOAD, 4, 0, end, _PAGE),
        (_LOAD, 5, text.at, text_end - text.at, _PAGE),
        (_LOAD, 6, dynamic.at, data_end - dynamic.at, _PAGE),
        (_PT_DYNAMIC, 6, dynamic.at, len(dynamic.content), 8),
        (_PT_NOTE, 4, build_id.at, len(build_id.content), 4),
        (_STACK, 6, 0, 0, 16),
    ]
    return _file(parts, noted, data_end, segments)


def _file(parts: "list[_Part]", noted: _Part, end: int, segments: list[tuple[int, int, int, int, int]]) -> bytes:
    """Return the file: what is loaded, the notes after it, and the table of sections at its end."""
    names = _Part(".shstrtab", _STRTAB)
    every = [*parts, noted, names]
    texts = _Strings()
    offsets = [texts.add(each.name) if each.name else 0 for each in every]
    names.content = bytes(texts.content)
    table_at = -(-_placed([noted, names], end) // 8) * 8
    indices = {each.name: index for index, each in enumerate(every)}
    content = bytearray(table_at)
    for each in every:
        content[each.at : each.at + len(each.content)] = each.content
    head = _HEADER.pack(
        b"\x7fELF\2\1\1", 3, 62, 1, 0, _HEADER.size, table_at, 0, _HEADER.size, _SEGMENT.size, len(segments),
        _SECTION.size, len(every), indices[names.name],
    )  # fmt: skip
    for kind, flags, at, size, alignment in segments:
        head += _SEGMENT.pack(kind, flags, at, at, at, size, size, alignment)
    content[: len(head)] = head
    for each, offset in zip(every, offsets, strict=True):
        address = each.at if each.flags & _ALLOC else 0
        content += _SECTION.pack(
            offset, each.kind, each.flags, address, each.at, len(each.content), indices.get(each.link, 0), each.info,
            each.alignment if each.kind else 0, each.entry,
        )  # fmt: skip
    return bytes(content)


def _placed(parts: Sequence[_Part], at: int) -> int:
    """Place sections one after the other, and return where the last one ends."""
    for each in parts:
        each.at = -(-at // each.alignment) * each.alignment
        at = each.at + len(each.content)
    return at


def _page(at: int) -> int:
    return -(-at // _PAGE) * _PAGE


def _note_of(marker: NotedMarker, location: int, semaphore: int, base: int) -> bytes:
    texts = b"".join(each.encode() + b"\0" for each in (marker.provider, marker.name, marker.arguments))
    return _note(b"stapsdt\0", 3, struct.pack("<QQQ", location, base, semaphore) + texts)


def _note(owner: bytes, kind: int, content: bytes) -> bytes:
    return _NOTE.pack(len(owner), len(content), kind) + owner + content + bytes(-len(content) % 4)
