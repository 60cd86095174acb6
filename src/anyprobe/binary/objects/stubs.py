"""The linker's stubs: ``[endbr64] [bnd] jmp *slot(%rip)``, by which code of one object calls functions of others."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.relocations import R_64, R_GLOB_DAT, R_JUMP_SLOT, Relocations
from anyprobe.binary.objects.symbols import SHN_UNDEF, STB_GLOBAL, STT_FUNC, SymbolTable
from anyprobe.core.address import AddressRange

_JUMP = 6


class SlotJump(NamedTuple):
    """A jump through a word of the data, with the prefixes before it."""

    start: int
    end: int
    slot: int


def imported_slots(dynamic: SymbolTable, fixes: Relocations) -> dict[int, str]:
    """Return the slots that the loader fills with addresses of named functions or objects."""
    rows = fixes.of_kind(R_JUMP_SLOT, R_GLOB_DAT, R_64)
    rows = rows[fixes.symbols[rows] < len(dynamic.symbols)]
    columns = (fixes.offsets[rows].tolist(), dynamic.names(fixes.symbols[rows]))
    return {slot: name for slot, name in zip(*columns, strict=True) if name}


def own_stubs(dynamic: SymbolTable, fixes: Relocations, jumps: Sequence[SlotJump]) -> dict[int, int]:
    """Return the object's own function that each stub leads to, if no other object has it, too.

    Weak ones are left out: they are there to be replaced.
    """
    rows = fixes.of_kind(R_JUMP_SLOT, R_GLOB_DAT)
    rows = rows[fixes.symbols[rows] < len(dynamic.symbols)]
    symbols = dynamic.symbols[fixes.symbols[rows]]
    mine = (symbols["shndx"] != SHN_UNDEF) & (symbols["info"] == STB_GLOBAL << 4 | STT_FUNC)
    function = dict(zip(fixes.offsets[rows][mine].tolist(), symbols["value"][mine].tolist(), strict=True))
    return {start: function[slot] for start, _, slot in jumps if slot in function}


def slot_jumps(elf: ElfFile, area: AddressRange) -> list[SlotJump]:
    """Return what looks like a stub in a range of code, whatever its slot is for."""
    raw: NDArray[Any] = elf.array("u1", area.start, len(area))
    if len(raw) < _JUMP:
        return []
    pairs = np.ndarray((len(raw) - 1,), "<u2", raw.data, strides=(1,))
    at = np.flatnonzero(pairs[: len(raw) - 5] == 0x25FF)  # ff 25 disp32
    displacements: NDArray[Any] = np.ndarray((len(raw) - 3,), "<i4", raw.data, strides=(1,))
    targets = area.start + at + _JUMP + displacements[at + 2]
    found: list[SlotJump] = []
    content = raw.data
    for offset, slot in zip(at.tolist(), targets.tolist(), strict=True):
        start = offset
        if start and content[start - 1] == 0xF2:  # bnd
            start -= 1
        if start >= 4 and bytes(content[start - 4 : start]) == b"\xf3\x0f\x1e\xfa":
            start -= 4
        found.append(SlotJump(area.start + start, area.start + offset + _JUMP, slot))
    return found


def named_stubs(dynamic: SymbolTable, fixes: Relocations, jumps: Sequence[SlotJump]) -> list[tuple[int, int, str]]:
    """Return (start, end, name of the function) of what looks like a stub, ascending."""
    names = imported_slots(dynamic, fixes)
    return sorted((start, end, names[slot]) for start, end, slot in jumps if slot in names)
