"""The functions of one object: symbols and unwind tables reconciled, found by name, by glob and by address."""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.demangle import Spelling, is_mangled, mangled_hint, spellings
from anyprobe.binary.symbols import (
    SHN_ABS,
    SHN_UNDEF,
    STB_LOCAL,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_NOTYPE,
    VERSYM_HIDDEN,
    SymbolTable,
)
from anyprobe.binary.unwind import UnwindTable
from anyprobe.core.address import AddressRange

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Function:
    """One function, in link-time addresses; ``names`` has the best one first."""

    start: int
    end: int
    names: tuple[str, ...]
    is_ifunc: bool = False
    versions: tuple[str, ...] = ()
    """Names with their versions, ``memcpy@@GLIBC_2.14``, where they have one."""

    @property
    def name(self) -> str:
        """The best of its names."""
        return self.names[0]

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.end - self.start

    @property
    def demangled(self) -> str:
        """The name as a programmer wrote it."""
        return spellings(self.name).full if is_mangled(self.name) else self.name

    def __str__(self) -> str:
        """Return the name as a programmer wrote it."""
        return self.demangled


@dataclass(frozen=True, eq=False)
class _Symbols:
    """The function symbols of all tables in columns, ascending by address."""

    value: NDArray[np.int64]
    size: NDArray[np.int64]
    table: NDArray[np.int64]
    index: NDArray[np.int64]
    kind: NDArray[np.int64]
    bind: NDArray[np.int64]

    def where(self, mask: NDArray[Any]) -> "_Symbols":
        """Return some of the rows."""
        return _Symbols(
            self.value[mask], self.size[mask], self.table[mask], self.index[mask], self.kind[mask], self.bind[mask]
        )


@dataclass(frozen=True, eq=False)
class FunctionTable:
    """All functions of an object; ``starts`` ascend, and no end lies beyond the next start."""

    module: str
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Every address in executable ranges that has any symbol: more than the functions."""
    tables: Sequence[SymbolTable] = field(repr=False)
    symbols: _Symbols = field(repr=False)

    @classmethod
    def build(
        cls,
        module: str,
        tables: Sequence[SymbolTable],
        unwind: UnwindTable,
        ranges: Sequence[AddressRange],
        stubs: Sequence[AddressRange],
    ) -> "FunctionTable":
        """Reconcile symbols with unwind bounds; ``stubs`` are the PLT's."""
        symbols = _collect(tables, ranges)
        labels = np.unique(symbols.value)
        functions = _without_inner_labels(symbols, unwind)
        bounds = unwind.starts
        keep = _within(bounds, ranges) & ~_within(bounds, stubs) & ~_covered(bounds, functions)
        starts = np.unique(np.concatenate([functions.value, bounds[keep]]))
        ends = _ends(starts, functions, bounds, unwind.ends, ranges)
        return cls(module, starts, ends, labels, tables, functions)

    def __len__(self) -> int:
        """Return the number of functions."""
        return len(self.starts)

    def at(self, address: int) -> Function | None:
        """Return the function that starts at an address."""
        row = int(np.searchsorted(self.starts, address))
        return self.row(row) if row < len(self.starts) and self.starts[row] == address else None

    def containing(self, address: int) -> Function | None:
        """Return the function whose bytes an address lies in."""
        row = int(np.searchsorted(self.starts, address, side="right")) - 1
        return self.row(row) if row >= 0 and address < self.ends[row] else None

    def all(self) -> list[Function]:
        """Return every function."""
        return [self.row(row) for row in range(len(self.starts))]

    def row(self, row: int) -> Function:
        """Return the function of a row of ``starts``."""
        start, end = int(self.starts[row]), int(self.ends[row])
        low, high = self._symbol_rows[0][row], self._symbol_rows[1][row]
        if low == high:
            return Function(start, end, (f"{self.module}+{start:#x}",))
        if high - low == 1:
            rank, version = self._ranks[low]
            return Function(start, end, rank[3:], self._ifuncs[low], (rank[3] + version,) if version else ())
        ranks = sorted(self._ranks[low:high])
        names = tuple(dict.fromkeys(rank[3] for rank, _ in ranks))
        versions = tuple(dict.fromkeys(rank[3] + version for rank, version in ranks if version))
        return Function(start, end, names, any(self._ifuncs[low:high]), versions)

    @cached_property
    def _symbol_rows(self) -> tuple[list[int], list[int]]:
        """For each function, the range of its rows in ``symbols``."""
        left = np.searchsorted(self.symbols.value, self.starts, side="left")
        right = np.searchsorted(self.symbols.value, self.starts, side="right")
        return left.tolist(), right.tolist()

    @cached_property
    def _ifuncs(self) -> list[bool]:
        """Whether each symbol is an IFUNC."""
        found: list[bool] = (self.symbols.kind == STT_GNU_IFUNC).tolist()
        return found

    @cached_property
    def _ranks(self) -> list[tuple[tuple[bool, int, int, str], str]]:
        """What names are ordered by: global ones, few leading underscores, short; then the name and its version."""
        names, versions = self.names(), self._versions
        local = (self.symbols.bind == STB_LOCAL).tolist()
        return [
            ((each, len(name) - len(name.lstrip("_")), len(name), name), version)
            for each, name, version in zip(local, names, versions, strict=True)
        ]

    @cached_property
    def _names(self) -> list[str]:
        """The name of each symbol, without its version."""
        found = [""] * len(self.symbols.value)
        for number, table in enumerate(self.tables):
            rows = np.flatnonzero(self.symbols.table == number)
            texts = table.texts(table.symbols["name"][self.symbols.index[rows]].tolist())
            for row, text in zip(rows.tolist(), texts, strict=True):
                found[row] = text
        return found

    @cached_property
    def _versions(self) -> list[str]:
        """The version of each symbol, ``@@GLIBC_2.14``, or nothing."""
        versioned = [table.versym is not None for table in self.tables]
        return [
            self.tables[table].version(index) if versioned[table] or "@" in name else ""
            for table, index, name in zip(
                self.symbols.table.tolist(), self.symbols.index.tolist(), self._names, strict=True
            )
        ]

    def lookup(self, name: str) -> list[Function]:
        """Return the functions of one exact name: mangled, demangled, versioned, or ``module+0x1234``."""
        base, at, version = name.partition("@")
        rows = self._rows_named(base, at + version) if at else self._rows_named(base, "")
        if not rows and not at:
            rows = self._rows_spelled(name) or self._rows_unnamed(name)
        return [self.row(row) for row in rows]

    def match(self, glob: str) -> list[Function]:
        """Return the functions of which a name, demangled or not, matches a glob; without a glob, of that name."""
        if not _GLOB.search(glob):
            return self.lookup(glob)
        if "[" in glob or "(" in glob:  # F[int] and f(char*) are names too
            exact = self.lookup(glob)
            if exact:
                return exact
        if not glob.strip("*"):
            return self.all()
        pattern = re.compile(fnmatch.translate(glob)).match
        found: list[Function] = []
        for row in range(len(self.starts)):
            function = self.row(row)
            spelled = (spellings(name) for name in function.names if is_mangled(name))
            if any(map(pattern, function.names + function.versions)) or any(each.matches(pattern) for each in spelled):
                found.append(function)
        return found

    def names(self) -> list[str]:
        """Return the name of every symbol, without its version: the nearest ones are searched among them."""
        return [name.partition("@")[0] if "@" in name else name for name in self._names]

    def rows_of_addresses(self, addresses: NDArray[np.int64]) -> list[int]:
        """Return the rows of the functions that start at some addresses."""
        return np.flatnonzero(np.isin(self.starts, addresses)).tolist()

    def _rows_named(self, name: str, version: str) -> list[int]:
        """Return the rows of an exact name; without a version, hidden old versions give way to the default one."""
        values: list[int] = []
        hidden: list[int] = []
        for number, table in enumerate(self.tables):
            offsets = table.offsets_of(name)
            if not offsets:
                continue
            mine = np.flatnonzero(self.symbols.table == number)
            indices = self.symbols.index[mine]
            hit = np.isin(table.symbols["name"][indices], np.array(offsets, np.uint32))
            for value, index in zip(self.symbols.value[mine[hit]].tolist(), indices[hit].tolist(), strict=True):
                own = table.version(index)
                if version and own.lstrip("@") != version.lstrip("@"):
                    continue
                old = (own.startswith("@") and not own.startswith("@@")) or _is_hidden(table, index)
                (hidden if old and not version else values).append(value)
        return self.rows_of_addresses(np.array(values or hidden, np.int64))

    def _rows_unnamed(self, name: str) -> list[int]:
        """Return the row of ``module+0x1234``."""
        module, _, offset = name.rpartition("+")
        if module != self.module or not re.fullmatch(r"0x[0-9a-f]{1,16}", offset):
            return []
        return self.rows_of_addresses(np.array([int(offset, 16)], np.int64))

    def _rows_spelled(self, name: str) -> list[int]:
        """Return the rows of which a demangled name is ``name``."""
        hint = mangled_hint(name)
        if not any(hint.encode() in table.strings for table in self.tables):
            return []
        wanted = Spelling.normal(name)
        values = [
            value
            for value, symbol in zip(self.symbols.value.tolist(), self._names, strict=True)
            if is_mangled(symbol) and hint in symbol and wanted in spellings(symbol.partition("@")[0]).normalised()
        ]
        return self.rows_of_addresses(np.array(values, np.int64))


def _is_hidden(table: SymbolTable, index: int) -> bool:
    return table.versym is not None and bool(int(table.versym[index]) & VERSYM_HIDDEN)


def _collect(tables: Sequence[SymbolTable], ranges: Sequence[AddressRange]) -> _Symbols:
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
    return _Symbols(*joined)


def _without_inner_labels(symbols: _Symbols, unwind: UnwindTable) -> _Symbols:
    """Drop untyped symbols that are labels inside functions, keep those that assembly code calls functions."""
    typed = symbols.kind != STT_NOTYPE
    functions = symbols.where(typed)
    inside = _covered(symbols.value, functions) | _strictly_inside(symbols.value, unwind.starts, unwind.ends)
    free = (symbols.bind != STB_LOCAL) & ~inside
    return symbols.where(typed | free | (~typed & np.isin(symbols.value, functions.value)))


def _covered(addresses: NDArray[np.int64], functions: _Symbols) -> NDArray[np.bool_]:
    """Return which addresses lie inside a sized function symbol, behind its first byte."""
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
    functions: _Symbols,
    bounds_start: NDArray[np.int64],
    bounds_end: NDArray[np.int64],
    ranges: Sequence[AddressRange],
) -> NDArray[np.int64]:
    """Return the end of each function: what its symbol says, else its unwind entry, else the next start."""
    ends = np.zeros(len(starts), np.int64)
    np.maximum.at(ends, np.searchsorted(starts, functions.value), functions.value + functions.size)
    known = np.isin(bounds_start, starts)
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
