"""The functions of one object, found by name, by glob and by address."""

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.symbol_names import SymbolNames
from anyprobe.binary.objects.symbols import STT_GNU_IFUNC, SymbolTable
from anyprobe.core.arrays import among

if TYPE_CHECKING:
    from anyprobe.binary.objects.bounds import Bounds, SymbolColumns

STUB_SUFFIX = "@plt"
"""What follows a function's name in that of a linker's stub that leads to it."""
_GLOB = re.compile(r"[*?\[]")
_WHICH = re.compile(r"(.+)@(0x[0-9a-f]{1,16})")
_PART = re.compile(r"(.+)\.(?:cold|cold\.\d+|__part\.\d+)")
_PART_MARKS = (b".cold", b".__part.")
_REMEMBERED = 256
"""Names whose functions are remembered."""
_WORTH_SORTING = 64
"""Fewer addresses are looked for one by one."""
_WORTH_ALL = 8
"""Names are decoded all at once where this part of the functions is asked for."""


class Function(NamedTuple):
    """One function, in link-time addresses; ``names`` has the best one first."""

    start: int
    end: int
    names: tuple[str, ...]
    is_ifunc: bool = False
    versions: tuple[str, ...] = ()
    """Names with their versions, ``memcpy@@GLIBC_2.14``, where they have one."""
    resolver_names: tuple[str, ...] = ()
    """Names of an IFUNC that mean the code here, which chooses the function, and not what it chooses."""

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
        name = self.names[0]
        if not name.startswith("_"):
            return name
        from anyprobe.binary.objects.demangle import is_mangled, spellings

        return spellings(name).full if is_mangled(name) else name

    def __str__(self) -> str:
        """Return the name as a programmer wrote it."""
        return self.demangled


class FunctionTable:
    """All functions of an object; ``starts`` ascend, and no end lies beyond the next start."""

    def __init__(self, module: str, tables: Sequence[SymbolTable], bounds: "Bounds") -> None:
        """Name what ``bounds`` found in ``tables``; ``module`` names what has no symbol."""
        self.module, self.tables, self.bounds = module, tables, bounds
        self._names = SymbolNames(tables, bounds.symbols)
        self._matched: tuple[str, list[Function]] = "", []
        """The glob that was asked for last, and its functions: a program may wait when it is asked again."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the functions start."""
        return self.bounds.starts

    @property
    def ends(self) -> NDArray[np.int64]:
        """The end of each."""
        return self.bounds.ends

    @property
    def labels(self) -> NDArray[np.int64]:
        """Every address in executable ranges that has any symbol: more than the functions."""
        return self.bounds.labels

    @property
    def symbols(self) -> "SymbolColumns":
        """The symbols that name functions, ascending by address."""
        return self.bounds.symbols

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
        return self._rows(slice(None))

    def row(self, row: int) -> Function:
        """Return the function of a row of ``starts``."""
        return self._rows(slice(row, row + 1))[0]

    def _rows(self, rows: slice | NDArray[np.int64]) -> list[Function]:
        """Return the functions of some rows of ``starts``."""
        starts, ends, values = self.starts[rows], self.ends[rows], self.symbols.value
        if len(starts) >= len(self.starts) // _WORTH_ALL:
            self._names.all_ranks()
        left, right = np.searchsorted(values, starts, side="left"), np.searchsorted(values, starts, side="right")
        columns = (starts.tolist(), ends.tolist(), left.tolist(), right.tolist())
        return [self._function(*each) for each in zip(*columns, strict=True)]

    def _function(self, start: int, end: int, low: int, high: int) -> Function:
        """Return the function that some rows of ``symbols`` name."""
        if low == high:
            return Function(start, end, (self._unnamed(start),))
        ranks = self._names.ranks(low, high)
        if high - low == 1:
            name, version = ranks[0][3:]
            return Function(start, end, (name,), self._ifuncs[low], (name + version,) if version else ())
        chooses = self._ifuncs[low:high]
        resolvers = tuple(rank[3] for rank, ifunc in zip(ranks, chooses, strict=True) if not ifunc and any(chooses))
        ranks.sort()
        names = tuple(dict.fromkeys([rank[3] for rank in ranks]))
        versions = tuple(dict.fromkeys([rank[3] + rank[4] for rank in ranks if rank[4]]))
        return Function(start, end, names, any(chooses), versions, resolvers)

    def _unnamed(self, start: int) -> str:
        return f"{self.module}+{start:#x}"

    @cached_property
    def _ifuncs(self) -> list[bool]:
        """Whether each symbol is an IFUNC."""
        found: list[bool] = (self.symbols.kind == STT_GNU_IFUNC).tolist()
        return found

    def lookup(self, name: str) -> list[Function]:
        """Return the functions of one exact name: mangled, demangled, versioned, or ``module+0x1234``.

        Of several functions of one name ``name@0x1234`` is the one that starts at this address.
        """
        found = self._looked_up.get(name)
        if found is None:
            if len(self._looked_up) >= _REMEMBERED:
                self._looked_up.clear()
            found = self._looked_up[name] = self._look_up(name)
        return list(found)

    @cached_property
    def _looked_up(self) -> dict[str, list[Function]]:
        """The functions of names that were asked for."""
        return {}

    def _look_up(self, name: str) -> list[Function]:
        which = _WHICH.fullmatch(name)
        if which is not None:
            start = int(which[2], 16)
            return [function for function in self.lookup(which[1]) if function.start == start]
        base, at, version = name.partition("@")
        values = self._preferred(self._names.named(base), version.lstrip("@") if at else None)
        if not values and not at:
            values = self._spelled(name) or self._unnamed_start(name)
        return self._starting_at(values)

    def starts_of(self, names: Collection[str]) -> dict[str, list[int]]:
        """Return where the functions of many exact names start: in one search, where ``lookup`` makes one for each."""
        rows: dict[str, list[int]] = {}
        for row, name in self._names.spelled(names):
            rows.setdefault(name, []).append(row)
        return {name: sorted(set(self._preferred(own, None))) for name, own in rows.items()}

    def match(self, glob: str) -> list[Function]:
        """Return the functions of which a name, demangled or not, matches a glob; without a glob, of that name."""
        if not _GLOB.search(glob):
            return self.lookup(glob)
        if "[" in glob or "(" in glob or "operator" in glob:  # F[int], f(char*) and operator* are names too
            exact = self.lookup(glob)
            if exact:
                return exact
        if not glob.strip("*"):
            return self.all()
        if glob != self._matched[0]:
            self._matched = glob, self._starting_at(self._matching(re.compile(fnmatch.translate(glob)).match))
        return list(self._matched[1])

    def names(self) -> list[str]:
        """Return the name of every symbol, without its version: the nearest ones are searched among them."""
        return self._names.plain

    @cached_property
    def cold_parts(self) -> dict[int, int]:
        """Which functions are parts of which others, as their symbols say: ``f.cold``, ``f.cold.0``, ``f.__part.1``."""
        if not any(mark in table.strings for table in self.tables for mark in _PART_MARKS):
            return {}
        dotted = ((row, _PART.fullmatch(name)) for row, name in self._names.having(b"."))
        parts = [(row, match[1]) for row, match in dotted if match is not None]
        owners: dict[str, list[int]] = {base: [] for _, base in parts}
        for row, name in self._names.spelled(owners):
            owners[name].append(row)
        found: dict[int, int] = {}
        for row, base in parts:
            starts = set(self._preferred(owners[base], None))
            if len(starts) == 1:
                found[int(self.symbols.value[row])] = starts.pop()
        return found

    def _starting_at(self, addresses: Sequence[int]) -> list[Function]:
        """Return the functions that start at some addresses, ascending."""
        if not addresses:
            return []
        if len(addresses) > _WORTH_SORTING:
            return self._rows(np.flatnonzero(among(self.starts, np.array(addresses, np.int64))))
        wanted = np.array(sorted(set(addresses)), np.int64)
        rows = np.searchsorted(self.starts, wanted)
        there = rows < len(self.starts)
        return self._rows(rows[there][self.starts[rows[there]] == wanted[there]])

    def _preferred(self, rows: Sequence[int], version: str | None) -> list[int]:
        """Return the addresses of symbols of a version; without one, old versions give way to the default."""
        values, names = self.symbols.value, self._names
        if version is not None:
            return [int(values[row]) for row in rows if names.version(row).lstrip("@") == version]
        return [int(values[row]) for row in rows if not names.is_old(row)] or [int(values[row]) for row in rows]

    def _unnamed_start(self, name: str) -> list[int]:
        """Return the start that ``module+0x1234`` says."""
        module, _, offset = name.rpartition("+")
        return [int(offset, 16)] if module == self.module and re.fullmatch(r"0x[0-9a-f]{1,16}", offset) else []

    def _spelled(self, name: str) -> list[int]:
        """Return the starts of the functions of which a demangled name is ``name``."""
        from anyprobe.binary.objects.demangle import Spelling, is_mangled, mangled_hint, spellings

        hint = mangled_hint(name)
        if not any(hint.encode() in table.strings for table in self.tables):
            return []
        wanted = Spelling.normal(name)
        return [
            value
            for value, symbol in zip(self.symbols.value.tolist(), self._names.plain, strict=True)
            if is_mangled(symbol) and hint in symbol and wanted in spellings(symbol).normalised()
        ]

    def _matching(self, pattern: Callable[[str], object]) -> list[int]:
        """Return the starts of the functions of which some name matches a pattern."""
        from anyprobe.binary.objects.demangle import is_mangled, spellings

        columns = (self.symbols.value.tolist(), self._names.plain, self._names.versions)
        found = [
            value
            for value, name, version in zip(*columns, strict=True)
            if pattern(name)
            or (version and pattern(name + version))
            or (is_mangled(name) and spellings(name).matches(pattern))
        ]
        unnamed = self.starts[~among(self.starts, self.symbols.value)].tolist()
        return found + [start for start in unnamed if pattern(self._unnamed(start))]
