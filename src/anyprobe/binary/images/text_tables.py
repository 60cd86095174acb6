"""Arrays of pointers to texts in an object, such as names of the values of an enumeration."""

from collections.abc import Callable, Iterator

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.relocations import R_RELATIVE, relocations
from anyprobe.core.memory import MemoryFault

_ET_EXEC, _WORD, _LONGEST = 2, 8, 256


def texts_from(elf: ElfFile, first: str) -> list[str]:
    """Return the texts of the array in which the first pointer is to a text that is known, up to what is no text.

    The end of an array is not in the file: what follows may be another array.
    """
    pointers = _pointers(elf)
    for text in _places_of(elf, b"\0" + first.encode() + b"\0"):
        for place in pointers(text + 1):
            return list(_texts(elf, place, _stored(elf)))
    return []


def _places_of(elf: ElfFile, content: bytes) -> Iterator[int]:
    for segment in elf.loads:
        own = elf.read(segment.vaddr, segment.filesz)
        at = own.find(content)
        while at >= 0:
            yield segment.vaddr + at
            at = own.find(content, at + 1)


def _pointers(elf: ElfFile) -> Callable[[int], list[int]]:
    """Return what finds the places that hold an address, in ascending order."""
    if elf.elf_type == _ET_EXEC:
        return lambda address: list(_places_of(elf, address.to_bytes(_WORD, "little")))
    table = relocations(elf)
    relative = table.of_kind(R_RELATIVE)
    addends, offsets = table.addends[relative], table.offsets[relative]
    return lambda address: sorted(offsets[addends == address].tolist())


def _stored(elf: ElfFile) -> Callable[[int], int]:
    """Return what reads a pointer as it is once the object is loaded, 0 for none."""
    if elf.elf_type == _ET_EXEC:
        return lambda place: int.from_bytes(elf.read(place, _WORD), "little")
    table = relocations(elf)
    relative = table.of_kind(R_RELATIVE)
    known = dict(zip(table.offsets[relative].tolist(), table.addends[relative].tolist(), strict=True))
    return lambda place: known.get(place, 0)


def _texts(elf: ElfFile, place: int, stored: Callable[[int], int]) -> Iterator[str]:
    while True:
        try:
            segment = next(each for each in elf.loads if each.vaddr <= (at := stored(place)) < each.vaddr + each.filesz)
            text = elf.read(at, min(_LONGEST, segment.vaddr + segment.filesz - at)).partition(b"\0")[0]
        except (MemoryFault, StopIteration):
            return
        if not text or not text.isascii() or not text.decode().isprintable():
            return
        yield text.decode()
        place += _WORD
