"""Every address of an object that something other than a branch in its code may enter."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.relocations import R_64, R_IRELATIVE, R_RELATIVE, Relocations, in_place_values
from anyprobe.binary.objects.symbols import SHN_UNDEF, STT_NOTYPE, SymbolTable
from anyprobe.binary.objects.table_store import Entries
from anyprobe.binary.unwind.landing_pads import landing_pads
from anyprobe.core.arrays import among, unique
from anyprobe.core.memory import MemoryFault

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image

_SINGLE = (12, 13)  # DT_INIT, DT_FINI
_ARRAYS = ((25, 27), (26, 28), (32, 33))  # DT_INIT_ARRAY, DT_FINI_ARRAY, DT_PREINIT_ARRAY with their sizes


def code_entries(image: "Image", more: list[int]) -> Entries:
    """Return the entries of an object; ``more`` are those that the caller found."""
    elf, dynamic = image.elf, image.dynamic_table
    symbols = image.functions.symbols
    typed = symbols.kind != STT_NOTYPE
    starts = image.functions.starts
    exported = dynamic.symbols["value"].astype(np.int64) if dynamic is not None else np.empty(0, np.int64)
    certain = np.concatenate(
        [
            starts[~among(starts, symbols.value[~typed])],
            symbols.value[typed],
            image.unwind.starts,
            landing_pads(elf, image.unwind),
            np.array([*loader_entries(elf), *more], np.uint64).astype(np.int64),
            exported,
        ]
    )
    stored, labels = image.stored_pointers, image.functions.labels
    pointed = unique(stored[~among(stored, certain)])
    named = unique(labels[~among(labels, certain) & ~among(labels, pointed)])
    found = unique(np.concatenate([certain, stored, labels]))
    outer = unique(np.concatenate([exported, stored]))
    return Entries(*(each[_in_code(image, each)] for each in (found, named, pointed, outer)))


def _in_code(image: "Image", addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
    inside = np.zeros(len(addresses), np.bool_)
    for area in image.code_ranges:
        inside |= (addresses >= area.start) & (addresses < area.end)
    return inside


def stored_pointers(image: "Image") -> NDArray[np.int64]:
    """Return the addresses that the loader, or the linker in a fixed-address object, has stored in the data."""
    found = _relocated_pointers(image.elf, image.relocations, image.dynamic_table)
    return found if image.is_pie else np.concatenate([found, _absolute_pointers(image)])


def _relocated_pointers(elf: ElfFile, fixes: Relocations, dynamic: SymbolTable | None) -> NDArray[np.int64]:
    """Return the addresses that the loader computes from the object alone."""
    parts = [fixes.addends[fixes.of_kind(R_RELATIVE, R_IRELATIVE)], in_place_values(elf, fixes.in_place)]
    if dynamic is not None:
        rows = fixes.of_kind(R_64)
        rows = rows[fixes.symbols[rows] < len(dynamic.symbols)]
        symbols = dynamic.symbols[fixes.symbols[rows]]
        own = symbols["shndx"] != SHN_UNDEF
        parts.append(symbols["value"][own].astype(np.int64) + fixes.addends[rows][own])
    return np.concatenate(parts)


def loader_entries(elf: ElfFile) -> list[int]:
    """Return what the kernel or the loader calls: the program's entry, and what the dynamic table names."""
    found = [elf.entry, *(elf.dynamic[tag] for tag in _SINGLE if tag in elf.dynamic)]
    for tag, size in _ARRAYS:
        if elf.dynamic.get(tag) and elf.dynamic.get(size):
            try:
                found += elf.array("<u8", elf.dynamic[tag], elf.dynamic[size] // 8).tolist()
            except MemoryFault:
                continue
    return [each for each in found if 0 < each < 1 << 63]  # none is 0, and words of arrays that are filled later, or -1


def _absolute_pointers(image: "Image") -> NDArray[np.int64]:
    """Return all aligned words of a fixed-address object's data that point into its code."""
    low = min((area.start for area in image.code_ranges), default=0)
    high = max((area.end for area in image.code_ranges), default=0)
    found: list[NDArray[np.int64]] = []
    for segment in image.elf.loads:
        first = segment.vaddr + 7 & ~7
        count = (segment.vaddr + segment.filesz - first) // 8
        words = image.elf.array("<i8", first, count) if count > 0 else ()
        values = np.asarray(words, np.int64)
        if segment.executable:  # a linker that keeps constants beside the code: look at what is not code
            places = first + 8 * np.arange(len(values))
            code = np.zeros(len(values), np.bool_)
            for area in image.code_ranges:
                code |= (places >= area.start) & (places < area.end)
            values = values[~code]
        found.append(values[(values >= low) & (values < high)])
    return np.concatenate(found) if found else np.empty(0, np.int64)
