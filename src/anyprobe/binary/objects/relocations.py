"""Dynamic relocations: the values that the loader writes, as far as the file alone decides them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import SHF_ALLOC, SHT_RELA, ElfFile
from anyprobe.core.arrays import among

DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_JMPREL, DT_RELRSZ, DT_RELR = 2, 7, 8, 23, 35, 36
R_64, R_GLOB_DAT, R_JUMP_SLOT, R_RELATIVE, R_IRELATIVE = 1, 6, 7, 8, 37

RELA = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])


@dataclass(frozen=True, eq=False)
class Relocations:
    """All relocations with addends, and the addresses that the compact (RELR) form relocates in place."""

    offsets: NDArray[np.int64]
    kinds: NDArray[np.int64]
    symbols: NDArray[np.int64]
    addends: NDArray[np.int64]
    in_place: NDArray[np.int64]

    def of_kind(self, *kinds: int) -> NDArray[np.intp]:
        """Return the rows of some kinds."""
        return np.flatnonzero(among(self.kinds, np.array(kinds, np.int64)))


def relocations(elf: ElfFile) -> Relocations:
    """Return the dynamic relocations of an object; static executables keep theirs (IRELATIVE) in sections."""
    table = elf.dynamic
    parts: list[NDArray[Any]] = []
    if table:
        for tag, size_tag in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
            if table.get(tag) and table.get(size_tag):
                parts.append(elf.array(RELA, table[tag], table[size_tag] // RELA.itemsize))
    else:
        parts += [
            elf.array_at(RELA, each.offset, each.size // RELA.itemsize)
            for each in elf.sections
            if each.kind == SHT_RELA and each.flags & SHF_ALLOC
        ]
    rows: NDArray[Any] = np.concatenate(parts) if parts else np.empty(0, RELA)
    info = rows["info"].astype(np.int64)
    return Relocations(
        rows["offset"].astype(np.int64), info & 0xFFFF_FFFF, info >> 32, rows["addend"].astype(np.int64), _relr(elf)
    )


def _relr(elf: ElfFile) -> NDArray[np.int64]:
    """Expand the compact relative relocations: an address, then bitmaps of the 63 words that follow."""
    table = elf.dynamic
    if not table.get(DT_RELR) or not table.get(DT_RELRSZ):
        return np.empty(0, np.int64)
    places: list[NDArray[np.int64]] = []
    following = 0
    bits = np.arange(1, 64, dtype=np.uint64)
    steps = np.arange(63, dtype=np.int64) * 8
    for word in elf.array("<u8", table[DT_RELR], table[DT_RELRSZ] // 8):
        if not int(word) & 1:
            places.append(np.array([int(word)], np.int64))
            following = int(word) + 8
        else:
            places.append(following + steps[(word >> bits) & np.uint64(1) != 0])
            following += 63 * 8
    return np.concatenate(places)


def in_place_values(elf: ElfFile, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the 8-byte values that the file has at some ascending addresses; those not in the file are left out."""
    found: list[NDArray[np.int64]] = []
    for segment in elf.loads:
        inside = places[(places >= segment.vaddr) & (places + 8 <= segment.vaddr + segment.filesz)]
        if len(inside):
            raw: NDArray[Any] = elf.array("u1", segment.vaddr, segment.filesz)
            sliding: NDArray[Any] = np.ndarray((len(raw) - 7,), "<i8", raw.data, strides=(1,))
            found.append(sliding[inside - segment.vaddr].astype(np.int64))
    return np.concatenate(found) if found else np.empty(0, np.int64)
