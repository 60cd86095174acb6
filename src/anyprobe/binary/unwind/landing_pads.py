"""Exception tables (LSDA): where the unwinder may enter a function."""

import struct

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.binary.unwind.eh_frame import OMIT, UnwindTable, read_encoded
from anyprobe.core.arrays import unique


def landing_pads(elf: ElfFile, table: UnwindTable) -> NDArray[np.int64]:
    """Return the addresses of all landing pads, ascending and unique.

    A table that cannot be read raises ``ValueError``: with pads unknown, no jump may span several instructions.
    """
    pads: set[int] = set()
    found = 0
    for segment in elf.loads:
        inside = (table.lsda >= segment.vaddr) & (table.lsda < segment.vaddr + segment.filesz)
        rows = np.flatnonzero(inside & (table.lsda != 0))
        if not len(rows):
            continue
        found += len(rows)
        low = int(table.lsda[rows].min())
        content = elf.read(low, segment.vaddr + segment.filesz - low)
        places = np.append(unique(table.lsda[rows]), low + len(content))
        limits = places[np.searchsorted(places, table.lsda[rows], side="right")]
        columns = (table.starts[rows].tolist(), table.lsda[rows].tolist(), limits.tolist())
        for start, lsda, limit in zip(*columns, strict=True):
            try:
                pads.update(_pads_of(content, low, start, lsda, limit))
            except (IndexError, struct.error) as error:
                raise ValueError(f"the exception table of the function at {start:#x}") from error
    if found != np.count_nonzero(table.lsda):
        raise ValueError("an exception table")
    return np.array(sorted(pads), np.int64)


def _pads_of(content: bytes, low: int, start: int, lsda: int, limit: int) -> list[int]:
    """Return the landing pads of the function at ``start``, whose table is at ``lsda``.

    The tables of a function's sections say that they end where the last of them does: the next begins at ``limit``.
    """
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
    end = min(at + size, limit - low)
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
