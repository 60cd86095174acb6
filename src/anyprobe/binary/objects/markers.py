"""USDT markers: the places in code that ``.note.stapsdt`` (version 3) names, with their semaphores and arguments."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from anyprobe.binary.objects.elf import SHT_NOBITS, ElfFile
from anyprobe.binary.objects.marker_arguments import MarkerArgument, parse_arguments

SECTION, BASE_SECTION = ".note.stapsdt", ".stapsdt.base"
_OWNER, _KIND = b"stapsdt\0", 3
_HEAD = struct.Struct("<III")
_ADDRESSES = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class Marker:
    """One place of a marker, in link-time addresses; several places may have the same names."""

    provider: str
    name: str
    """As it stands in the note, without quotes around it: ``query__start``."""
    location: int
    semaphore: int
    """Address of the 16-bit number that says how many listen, 0 where the program has no such number."""
    arguments: tuple[MarkerArgument, ...]

    @property
    def shown(self) -> str:
        """The name as DTrace has it: ``query-start``."""
        return dashed(self.name)


@dataclass(frozen=True, slots=True)
class Markers:
    """What an object's notes say."""

    found: tuple[Marker, ...] = ()
    damaged: tuple[str, ...] = ()
    """What is wrong with notes that cannot be read; the others are read."""


def dashed(name: str) -> str:
    """Return a marker's name with a dash for each two underscores, as DTrace has it."""
    return name.replace("__", "-")


def read_markers(elf: ElfFile) -> Markers:
    """Return the markers of an object; what is damaged is said, and hides nothing but itself."""
    found: list[Marker] = []
    damaged: list[str] = []
    base = elf.section(BASE_SECTION)
    for section in elf.sections:
        if section.name != SECTION or section.kind == SHT_NOBITS:
            continue
        content = elf.content[section.offset : section.offset + section.size]
        if len(content) < section.size:
            damaged.append(f"{SECTION} reaches beyond the end of the file")
        for at, made in _notes(content):
            where = f"the note at {section.offset + at:#x}"
            if isinstance(made, str):
                damaged.append(f"{where} {made}")
                continue
            marker, linked_for = made
            moved = base.address - linked_for if base is not None and linked_for else 0
            marker = _moved(marker, moved)
            if any(each.vaddr <= marker.location < each.vaddr + each.filesz for each in elf.loads if each.executable):
                found.append(marker)
            else:
                name = f"{marker.provider}:{marker.name}"
                damaged.append(f"{where} places {name} at {marker.location:#x}, where there is no code")
    return Markers(tuple(found), tuple(damaged))


def _moved(marker: Marker, distance: int) -> Marker:
    """Return a marker of an object that was moved after it was linked, as prelinking does it."""
    semaphore = (marker.semaphore + distance) % (1 << 64) if marker.semaphore else 0
    return replace(marker, location=(marker.location + distance) % (1 << 64), semaphore=semaphore)


def _notes(content: bytes) -> Iterator[tuple[int, "tuple[Marker, int] | str"]]:
    """Yield where each note begins, and what it says: a marker with the base it was linked for, or what is wrong."""
    at = 0
    while at + _HEAD.size <= len(content):
        name_size, size, kind = _HEAD.unpack_from(content, at)
        begin = at + _HEAD.size
        body = begin + (name_size + 3 & ~3)
        if body + size > len(content):
            yield at, f"is longer ({size:,} bytes) than what is left; notes after it cannot be found"
            return
        if content[begin : begin + name_size] == _OWNER and kind == _KIND:
            yield at, _marker(content[body : body + size])
        elif content[begin : begin + name_size] == _OWNER:
            yield at, f"is of version {kind}, and not of version {_KIND}"
        at = body + (size + 3 & ~3)
    if content[at:].strip(b"\0"):
        yield at, "is cut off"


def _marker(content: bytes) -> "tuple[Marker, int] | str":
    if len(content) < _ADDRESSES.size:
        return f"is too short ({len(content)} bytes)"
    location, base, semaphore = _ADDRESSES.unpack_from(content)
    texts = content[_ADDRESSES.size :].split(b"\0")
    if len(texts) < 3:
        return "has a name that does not end"
    provider, name = (_text(each) for each in texts[:2])
    if not provider or not name:
        return "has no name"
    arguments = texts[2].decode("utf-8", "replace")
    return Marker(provider, name, location, semaphore, parse_arguments(arguments)), base


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' else text
