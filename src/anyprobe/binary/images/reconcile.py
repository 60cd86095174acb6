"""Symbols and unwind tables reconciled: where the functions of an object start and end."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.bounds import Bounds, SymbolColumns
from anyprobe.binary.objects.symbols import (
    SHN_ABS,
    SHN_UNDEF,
    STB_LOCAL,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_NOTYPE,
    SymbolTable,
)
from anyprobe.binary.unwind.eh_frame import UnwindTable
from anyprobe.core.address import AddressRange
from anyprobe.core.arrays import among, unique


def reconcile(
    tables: Sequence[SymbolTable], unwind: UnwindTable, ranges: Sequence[AddressRange], stubs: Sequence[AddressRange]
) -> Bounds:
    """Return the functions in some executable ranges; ``stubs`` are the PLT's."""
    symbols = _collect(tables, ranges)
    functions = _without_inner_labels(symbols, unwind)
    bounds = unwind.starts
    keep = _within(bounds, ranges) & ~_within(bounds, stubs) & ~_covered(bounds, functions)
    # what signal handlers return to has an entry from the byte in front on: unwinders look up return addresses less one
    keep &= ~(unwind.signal_frame & among(bounds + 1, functions.value))
    starts = unique(np.concatenate([functions.value, bounds[keep]]))
    ends = _ends(starts, functions, bounds, unwind.ends, ranges)
    return Bounds(starts, ends, unique(symbols.value), functions)


def _collect(tables: Sequence[SymbolTable], ranges: Sequence[AddressRange]) -> SymbolColumns:
    """Return every defined symbol of executable addresses, of all tables, ascending by address."""
    columns: list[NDArray[np.int64]] = []
    for number, table in enumerate(tables):
        raw = table.symbols
        kind = raw["info"] & 15
        defined = (raw["shndx"] != SHN_UNDEF) & (raw["shndx"] != SHN_ABS) & (raw["name"] != 0)
        code = (kind == STT_FUNC) | (kind == STT_GNU_IFUNC) | (kind == STT_NOTYPE)
        rows = np.flatnonzero(defined & code & _within(raw["value"].astype(np.int64), ranges))
        picked = raw[rows]
        columns.append(
            np.stack(
                [
                    picked["value"].astype(np.int64),
                    picked["size"].astype(np.int64),
                    np.full(len(rows), number, np.int64),
                    rows.astype(np.int64),
                    (picked["info"] & 15).astype(np.int64),
                    (picked["info"] >> 4).astype(np.int64),
                ]
            )
        )
    joined = np.concatenate(columns, axis=1) if columns else np.empty((6, 0), np.int64)
    joined = joined[:, np.argsort(joined[0], kind="stable")]
    return SymbolColumns(*joined)


def _without_inner_labels(symbols: SymbolColumns, unwind: UnwindTable) -> SymbolColumns:
    """Drop untyped symbols that are labels inside functions, keep those that assembly code calls functions."""
    typed = symbols.kind != STT_NOTYPE
    functions = symbols.where(typed)
    inside = _covered(symbols.value, functions) | _strictly_inside(symbols.value, unwind.starts, unwind.ends)
    free = (symbols.bind != STB_LOCAL) & ~inside
    return symbols.where(typed | free | (~typed & among(symbols.value, functions.value)))


def _covered(addresses: NDArray[np.int64], functions: SymbolColumns) -> NDArray[np.bool_]:
    """Return which addresses lie inside a sized function symbol, after its first byte."""
    order = np.argsort(functions.value, kind="stable")
    starts = functions.value[order]
    ends = starts + functions.size[order]
    return _strictly_inside(addresses, starts, ends)


def _strictly_inside(
    addresses: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which addresses lie in some ``(start, end)``; ``starts`` ascend."""
    if not len(starts):
        return np.zeros(len(addresses), np.bool_)
    reach = np.maximum.accumulate(ends)
    row = np.searchsorted(starts, addresses, side="left") - 1  # the last start below the address
    return (row >= 0) & (addresses < reach[np.maximum(row, 0)])


def _within(addresses: NDArray[np.int64], ranges: Sequence[AddressRange]) -> NDArray[np.bool_]:
    """Return which addresses lie in some of the ranges."""
    inside = np.zeros(len(addresses), np.bool_)
    for each in ranges:
        inside |= (addresses >= each.start) & (addresses < each.end)
    return inside


def _ends(
    starts: NDArray[np.int64],
    functions: SymbolColumns,
    bounds_start: NDArray[np.int64],
    bounds_end: NDArray[np.int64],
    ranges: Sequence[AddressRange],
) -> NDArray[np.int64]:
    """Return the end of each function: what its symbol says, else its unwind entry, else the next start."""
    ends = np.zeros(len(starts), np.int64)
    np.maximum.at(ends, np.searchsorted(starts, functions.value), functions.value + functions.size)
    known = among(bounds_start, starts)
    from_unwind = np.zeros(len(starts), np.int64)
    np.maximum.at(from_unwind, np.searchsorted(starts, bounds_start[known]), bounds_end[known])
    ends = np.where(ends > starts, ends, from_unwind)
    order = np.argsort(bounds_start, kind="stable")
    unsized = np.flatnonzero(ends <= starts)
    row = np.searchsorted(bounds_start[order], starts[unsized], side="right") - 1
    if len(order):  # an unsized symbol amid an unwind entry ends with the entry
        around = bounds_end[order][np.maximum(row, 0)]
        ends[unsized] = np.where((row >= 0) & (around > starts[unsized]), around, 0)
    limit = np.append(starts[1:], np.iinfo(np.int64).max)
    for each in ranges:
        inside = (starts >= each.start) & (starts < each.end)
        limit[inside] = np.minimum(limit[inside], each.end)
    return np.where(ends > starts, np.minimum(ends, limit), limit)
