"""One name for each address, which no two symbols share."""

import numpy as np

from anyprobe.binary.objects.symbols import SYMBOL, SymbolTable
from anyprobe.binary.objects.unique_names import unique_names

FUNCTION, OBJECT, FILE = 2, 1, 4
LOCAL, GLOBAL = 0, 16


def test_local_names_are_numbered_by_address_and_global_ones_come_first():
    rows = [
        ("helper", LOCAL | FUNCTION, 0x300),
        ("helper", LOCAL | FUNCTION, 0x100),
        ("main", GLOBAL | FUNCTION, 0x200),
        ("alias", LOCAL | FUNCTION, 0x200),
        ("helper", LOCAL | OBJECT, 0x900),
        ("x.c", LOCAL | FILE, 0),
        ("other", GLOBAL | FUNCTION, 0x200),
    ]
    strings, symbols = b"\0", []
    for name, info, value in rows:
        section = 0xFFF1 if info & 15 == FILE else 1
        symbols.append((len(strings), info, 0, section, value, 8))
        strings += name.encode() + b"\0"
    table = SymbolTable(np.array(symbols, SYMBOL), strings)
    assert unique_names(table) == {0x100: "helper/1", 0x200: "main", 0x300: "helper/2", 0x900: "helper/3"}
