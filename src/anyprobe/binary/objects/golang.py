"""Go objects: recognised, and the functions of the runtime's own table, which stripping leaves in place."""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.symbols import STT_FUNC, SYMBOL, SymbolTable

if TYPE_CHECKING:
    from anyprobe.binary.objects.go_functions import GoFunctions
    from anyprobe.binary.objects.goroutines import ParkingPlaces

TABLE_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
"""As Go's own linker names the functions' table."""
TABLE_HEADER = struct.Struct("<IBBBBQQQQQQQQ")
"""Header of the table of functions: magic, two zeros, instruction quantum, pointer size, functions, files, text
start, then offsets of the parts: names, compilation units, files, pc values, function table."""
_DEFER_RETURN = 12
"""Where a function's record says how far after its start that is."""

T = TypeVar("T")


def is_go(elf: ElfFile) -> bool:
    """Return whether the Go toolchain made the object."""
    if any(owner == "Go" for owner, _, _ in elf.notes):
        return True
    return any(each.name in (*TABLE_SECTIONS, ".go.buildinfo", ".note.go.buildid") for each in elf.sections)


def go_symbols(elf: ElfFile) -> SymbolTable | None:
    """Return the functions of ``pclntab`` as a symbol table; nothing for a version that we do not know."""
    return _from_table(elf, _read)


def parking_places(elf: ElfFile) -> "ParkingPlaces | None":
    """Return where goroutines may be parked; nothing for a version that we do not know."""
    from anyprobe.binary.objects.goroutines import ParkingPlaces

    return _from_table(elf, ParkingPlaces)


def go_functions(elf: ElfFile) -> "GoFunctions | None":
    """Return what is known of the functions' calls; nothing for a version whose tables we do not know."""
    from anyprobe.binary.objects.go_functions import GoFunctions, go_version

    found = _from_table(elf, GoFunctions)
    if found is not None:
        found.version = go_version(elf)
    return found


def recovery_entries(elf: ElfFile) -> list[int]:
    """Return where functions go on whose callees' panics they have recovered from: nothing branches there."""
    return _from_table(elf, _read_recoveries) or []


def _from_table(elf: ElfFile, read: Callable[[bytes, int], T]) -> T | None:
    """Return what ``read`` makes of the runtime's table and the address that its offsets count from."""
    from anyprobe.binary.objects.pclntab import function_table  # not needed for other programs

    found = function_table(elf)
    try:
        return None if found is None else read(*found)
    except (ValueError, IndexError, struct.error):
        return None


def _read(content: bytes, text: int) -> SymbolTable:
    head = TABLE_HEADER.unpack_from(content)
    count, names_at, table_at = head[5], head[8], head[12]
    names = content[names_at:]
    table: NDArray[Any] = np.frombuffer(content, "<u4", 2 * count + 1, table_at)
    symbols = np.zeros(count, SYMBOL)
    symbols["value"] = text + table[0:-1:2].astype(np.uint64)
    symbols["size"] = table[2::2].astype(np.int64) - table[0:-1:2]
    symbols["info"] = 1 << 4 | STT_FUNC
    symbols["shndx"] = 1
    words: NDArray[Any] = np.ndarray((len(content) - 3,), "<u4", content, strides=(1,))
    symbols["name"] = words[table_at + table[1::2].astype(np.int64) + 4]  # the second word of a function's record
    return SymbolTable(symbols, names)


def _read_recoveries(content: bytes, text: int) -> list[int]:
    head = TABLE_HEADER.unpack_from(content)
    count, table_at = head[5], head[12]
    table: NDArray[Any] = np.frombuffer(content, "<u4", 2 * count + 1, table_at)
    words: NDArray[Any] = np.ndarray((len(content) - 3,), "<u4", content, strides=(1,))
    into = words[table_at + table[1::2].astype(np.int64) + _DEFER_RETURN]
    places = text + table[0:-1:2].astype(np.int64) + into
    return [int(place) for place in places[into != 0]]
