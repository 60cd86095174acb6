"""What an object wants from others, and what it has for them, by its dynamic symbols."""

from collections.abc import Collection

import numpy as np

from anyprobe.binary.objects.symbols import SHN_UNDEF, STB_GLOBAL, STB_LOCAL, SymbolTable


def undefined(table: SymbolTable | None) -> set[str]:
    """Return the names that others have to define; weak ones need not be."""
    if table is None:
        return set()
    symbols = table.symbols
    wanted = (symbols["shndx"] == SHN_UNDEF) & (symbols["info"] >> 4 == STB_GLOBAL)
    return {name for name in table.names(np.flatnonzero(wanted)) if name}


def defined(table: SymbolTable | None, names: Collection[str]) -> set[str]:
    """Return those of some names that an object defines for others."""
    if table is None:
        return set()
    rows = np.flatnonzero((table.symbols["shndx"] != SHN_UNDEF) & (table.symbols["info"] >> 4 != STB_LOCAL))
    return set(names).intersection(table.names(rows))
