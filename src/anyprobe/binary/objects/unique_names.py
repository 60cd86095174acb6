"""Names that no two symbols of a file share: those of local symbols numbered, as BOLT and ``perf2bolt`` do."""

from collections import Counter

import numpy as np

from anyprobe.binary.objects.symbols import SHN_ABS, SHN_UNDEF, STB_LOCAL, STT_TLS, SymbolTable

_SECTION, _FILE = 3, 4


def unique_names(table: SymbolTable) -> dict[int, str]:
    """Return a name for each address: a global symbol's, else a local one's with its number among those of its name.

    Numbers are given in the order of addresses, from 1: ``parse/1``, ``parse/2``.
    """
    symbols = table.symbols
    kinds, places = symbols["info"] & 15, symbols["shndx"]
    chosen = (kinds != _SECTION) & (kinds != _FILE) & (kinds != STT_TLS) & (places != SHN_UNDEF) & (places != SHN_ABS)
    rows = np.flatnonzero(chosen & (symbols["name"] != 0))
    rows = rows[np.argsort(symbols["value"][rows], kind="stable")]
    found: dict[int, str] = {}
    locals_: dict[int, str] = {}
    seen: Counter[str] = Counter()
    texts = table.texts(symbols["name"][rows].tolist())
    for text, address, info in zip(texts, symbols["value"][rows].tolist(), symbols["info"][rows].tolist(), strict=True):
        if info >> 4 == STB_LOCAL:
            seen[text] += 1
            locals_.setdefault(address, f"{text}/{seen[text]}")
        else:
            found.setdefault(address, text)
    return locals_ | found
