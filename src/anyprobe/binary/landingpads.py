"""Exception tables (LSDA): where the unwinder may enter a function."""

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.elf import ElfFile
from anyprobe.binary.unwind import OMIT, UnwindTable, read_encoded, read_uleb
from anyprobe.core.memory import MemoryFault


def landing_pads(elf: ElfFile, table: UnwindTable) -> NDArray[np.int64]:
    """Return the addresses of all landing pads, ascending and unique."""
    with_tables = np.flatnonzero(table.lsda)
    if not len(with_tables):
        return np.empty(0, np.int64)
    low = int(table.lsda[with_tables].min())
    segment = next((each for each in elf.loads if each.vaddr <= low < each.vaddr + each.filesz), None)
    if segment is None:
        return np.empty(0, np.int64)
    content = elf.read(low, segment.vaddr + segment.filesz - low)
    pads: set[int] = set()
    for start, lsda in zip(table.starts[with_tables].tolist(), table.lsda[with_tables].tolist(), strict=True):
        try:
            pads.update(_pads_of(content, low, start, lsda))
        except (IndexError, MemoryFault):
            continue  # points outside of its segment: damaged, and never usable by the unwinder either
    return np.array(sorted(pads), np.int64)


def _pads_of(content: bytes, low: int, start: int, lsda: int) -> list[int]:
    """Return the landing pads of the function at ``start``, whose table is at ``lsda``."""
    at = lsda - low
    base = start
    encoding = content[at]
    at += 1
    if encoding != OMIT:
        base, at = read_encoded(content, at, encoding, low + at)
    encoding = content[at]
    at += 1
    if encoding != OMIT:
        _, at = read_uleb(content, at)  # where the type table is
    encoding = content[at]
    size, at = read_uleb(content, at + 1)
    end = at + size
    if encoding & 0x0F == 1:
        return _pads_uleb(content, at, end, base)
    pads: list[int] = []
    while at < end:
        _, at = read_encoded(content, at, encoding & 0x0F, 0)
        _, at = read_encoded(content, at, encoding & 0x0F, 0)
        pad, at = read_encoded(content, at, encoding & 0x0F, 0)
        _, at = read_uleb(content, at)
        if pad:
            pads.append(base + pad)
    return pads


def _pads_uleb(content: bytes, at: int, end: int, base: int) -> list[int]:
    """Read the usual form: four LEB128 numbers per call site, of which the third is the pad."""
    pads: list[int] = []
    column = value = shift = 0
    for byte in content[at:end]:
        if column == 2:
            value |= (byte & 0x7F) << shift
            shift += 7
        if byte < 0x80:
            if column == 2:
                if value:
                    pads.append(base + value)
                value = shift = 0
            column = (column + 1) & 3
    return pads
