"""Variables by address, from symbol tables."""

import numpy as np

from anyprobe.binary.objects.symbols import SYMBOL, SymbolTable
from anyprobe.binary.objects.variables import variable_at

FUNCTION, OBJECT, LOCAL, GLOBAL, UNDEFINED = 2, 1, 0, 16, 0


def table(*symbols):
    strings, rows = b"\0", []
    for name, kind, section, value, size in symbols:
        rows.append((len(strings), kind, 0, section, value, size))
        strings += name.encode() + b"\0"
    return SymbolTable(np.array(rows, SYMBOL), strings)


def test_the_innermost_with_the_name_that_is_seen_outside():
    tables = [
        table(
            ("whole", OBJECT | GLOBAL, 3, 0x1000, 0x100), ("_part", OBJECT | GLOBAL, 3, 0x1040, 8),
            ("part", OBJECT | GLOBAL, 3, 0x1040, 8), ("local", OBJECT | LOCAL, 3, 0x1040, 8),
        ),
        table(("code", FUNCTION | GLOBAL, 1, 0x500, 0x100), ("far", OBJECT | GLOBAL, UNDEFINED, 0, 0x9000)),
    ]  # fmt: skip
    assert variable_at(tables, 0x1000) == ("whole", 0x1000)
    assert variable_at(tables, 0x1047) == ("part", 0x1040)
    assert variable_at(tables, 0x1048) == ("whole", 0x1000)
    assert variable_at(tables, 0x1100) is None
    assert variable_at(tables, 0x510) is None
    assert variable_at(tables, -8) is None


def test_nothing_without_tables():
    assert variable_at([], 0x1000) is None
