"""The names and versions of an object's function symbols: those of a few, or of all at once."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.symbols import STB_LOCAL, VERSYM_HIDDEN, SymbolTable

if TYPE_CHECKING:
    from anyprobe.binary.objects.bounds import SymbolColumns

Rank = tuple[bool, int, int, str, str]
"""What names are ordered by: global ones, few leading underscores, short; then the name, and its version."""

_WORTH_AN_INDEX = 256
"""Names that are asked for one by one, before all are read at once."""


class SymbolNames:
    """Names by the rows of ``symbols``. Reading all of a library's takes long enough to be put off."""

    def __init__(self, tables: Sequence[SymbolTable], symbols: "SymbolColumns") -> None:
        """Read nothing yet."""
        self._tables, self._symbols = tables, symbols
        self._asked = 0

    @cached_property
    def raw(self) -> list[str]:
        """The name of each symbol as its table has it; ``.symtab`` keeps ``@VERSION`` in it."""
        found = [""] * len(self._symbols.value)
        for table, rows, starts in self._places():
            for row, text in zip(rows.tolist(), table.texts(starts.tolist()), strict=True):
                found[row] = text
        return found

    @cached_property
    def plain(self) -> list[str]:
        """The name of each symbol, without its version."""
        return [name.partition("@")[0] if "@" in name else name for name in self.raw]

    def having(self, letter: bytes) -> list[tuple[int, str]]:
        """Return the rows of the names that have an ASCII letter in them, ascending, with the names."""
        found: list[tuple[int, str]] = []
        for table, rows, starts in self._places():
            mine = table.having(starts, letter)
            texts = table.texts(starts[mine].tolist())
            found += [(row, text.partition("@")[0]) for row, text in zip(rows[mine].tolist(), texts, strict=True)]
        return sorted(found)

    def spelled(self, names: Collection[str]) -> list[tuple[int, str]]:
        """Return the rows that have some names, ascending, with the names: of many names and few rows."""
        found: list[tuple[int, str]] = []
        for table, rows, starts in self._places():
            texts = table.spelled(starts, names)
            found += [(int(rows[at]), text.partition("@")[0]) for at, text in texts.items()]
        return sorted(found)

    def _places(self) -> Iterator[tuple[SymbolTable, NDArray[np.int64], NDArray[np.uint32]]]:
        """Yield each table, the rows that come from it, and where their names are in its strings."""
        for number, table in enumerate(self._tables):
            rows = np.flatnonzero(self._symbols.table == number)
            yield table, rows, table.symbols["name"][self._symbols.index[rows]]

    @cached_property
    def versions(self) -> list[str]:
        """The version of each symbol, ``@@GLIBC_2.14``, or nothing."""
        found = [name[name.find("@") :] if "@" in name else "" for name in self.raw]
        for number, table in enumerate(self._tables):
            if table.versym is not None:
                rows = np.flatnonzero(self._symbols.table == number)
                texts = table.versions(self._symbols.index[rows])
                for row, text in zip(rows.tolist(), texts, strict=True):
                    found[row] = text
        return found

    @cached_property
    def _ranks(self) -> list[Rank]:
        local = (self._symbols.bind == STB_LOCAL).tolist()
        return [_rank(*each) for each in zip(local, self.plain, self.versions, strict=True)]

    def all_ranks(self) -> list[Rank]:
        """Return what every symbol is ordered by."""
        return self._ranks

    def ranks(self, low: int, high: int) -> list[Rank]:
        """Return what the symbols of a range of rows are ordered by."""
        known: list[Rank] | None = self.__dict__.get("_ranks")
        return known[low:high] if known is not None else [self._rank_of(row) for row in range(low, high)]

    def _rank_of(self, row: int) -> Rank:
        table, index = self._tables[int(self._symbols.table[row])], int(self._symbols.index[row])
        return _rank(bool(self._symbols.bind[row] == STB_LOCAL), table.name(index), table.version(index))

    def named(self, name: str) -> list[int]:
        """Return the rows of the symbols of one exact name, whatever their version."""
        self._asked += 1
        if self._asked > _WORTH_AN_INDEX:
            return self._rows_by_name.get(name, [])
        rows: list[int] = []
        for number, table in enumerate(self._tables):
            offsets = table.offsets_of(name)
            if not offsets:
                continue
            ordered, mine = self._by_offset[number]
            wanted = np.array(offsets, ordered.dtype)  # another type would have all of it converted
            low, high = np.searchsorted(ordered, wanted, side="left"), np.searchsorted(ordered, wanted, side="right")
            rows += sorted(row for pair in zip(low, high, strict=True) for row in mine[slice(*pair)].tolist())
        return rows

    @cached_property
    def _rows_by_name(self) -> dict[str, list[int]]:
        """The rows of each name: a search of all strings for each of thousands of names takes a minute."""
        found: dict[str, list[int]] = {}
        for row in np.argsort(self._symbols.table, kind="stable").tolist():
            found.setdefault(self.plain[row], []).append(row)
        return found

    @cached_property
    def _by_offset(self) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """The places of names in each table's strings, ascending, and the rows that have them."""
        found = []
        for _, mine, places in self._places():
            order = np.argsort(places, kind="stable")
            found.append((places[order], mine[order]))
        return found

    def version(self, row: int) -> str:
        """Return the version of a symbol, ``@@GLIBC_2.14``, or nothing."""
        return self._tables[int(self._symbols.table[row])].version(int(self._symbols.index[row]))

    def is_old(self, row: int) -> bool:
        """Return whether a symbol is there for programs linked long ago only: its version is not the default one."""
        table, index = self._tables[int(self._symbols.table[row])], int(self._symbols.index[row])
        own = table.version(index)
        hidden = table.versym is not None and bool(int(table.versym[index]) & VERSYM_HIDDEN)
        return hidden or (own.startswith("@") and not own.startswith("@@"))


def _rank(local: bool, name: str, version: str) -> Rank:
    return local, len(name) - len(name.lstrip("_")), len(name), name, version
