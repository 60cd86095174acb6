"""Which variable an address of an object lies in, by its symbol tables."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anyprobe.binary.objects.symbols import SHN_ABS, SHN_UNDEF, STB_LOCAL, SymbolTable

_STT_OBJECT = 1


class Variable(NamedTuple):
    """A variable with static storage: its name in the symbol table, and its link-time address."""

    name: str
    start: int


def variable_at(tables: Sequence[SymbolTable], address: int) -> Variable | None:
    """Return the variable that a link-time address lies in, None where no table lists one.

    Of several the innermost and smallest counts, and of aliases one that is seen outside, with the fewest leading
    underscores.
    """
    if address < 0:
        return None
    best: tuple[int, int, bool, int, str] | None = None
    for table in tables:
        symbols = table.symbols
        start, size = symbols["value"].astype(np.uint64), symbols["size"].astype(np.uint64)
        defined = (symbols["shndx"] != SHN_UNDEF) & (symbols["shndx"] != SHN_ABS)
        around = (start <= np.uint64(address)) & (np.uint64(address) - start < size)
        for index in np.flatnonzero(((symbols["info"] & 15) == _STT_OBJECT) & defined & around).tolist():
            name = table.name(index)
            local = int(symbols["info"][index]) >> 4 == STB_LOCAL
            underscores = len(name) - len(name.lstrip("_"))
            rank = (-int(symbols["value"][index]), int(symbols["size"][index]), local, underscores, name)
            if name and (best is None or rank < best):
                best = rank
    return None if best is None else Variable(best[-1], -best[0])


class Sized(NamedTuple):
    """A variable with its size, 0 where no table says it."""

    start: int
    size: int


def variables_named(tables: Sequence[SymbolTable], name: str) -> list[Sized]:
    """Return the variables with static storage that have a name, each once."""
    found: dict[int, Sized] = {}
    for table in tables:
        symbols = table.symbols
        defined = (symbols["shndx"] != SHN_UNDEF) & (symbols["shndx"] != SHN_ABS)
        for index in np.flatnonzero(((symbols["info"] & 15) == _STT_OBJECT) & defined).tolist():
            if table.name(index) == name:
                start, size = int(symbols["value"][index]), int(symbols["size"][index])
                found.setdefault(start, Sized(start, size))
    return [found[start] for start in sorted(found)]
