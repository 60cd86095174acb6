"""Where the compiler has put a function's code into others: the first instructions of all its inlined instances."""

from collections.abc import Iterator

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.debug_info import DebugInfo
from anyprobe.binary.dwarf.forms import ADDR, ADDRESS_INDEX
from anyprobe.binary.dwarf.ranges import ranges_of

INLINED_SUBROUTINE, _LEXICAL_BLOCK = 0x1D, 0x0B
_AT_ENTRY_PC = 0x52
_SCOPES = frozenset({dw.SUBPROGRAM, dw.NAMESPACE, dw.STRUCTURE, dw.CLASS, _LEXICAL_BLOCK, INLINED_SUBROUTINE})
"""What can have instances below it."""


def inlined_instances(info: DebugInfo, name: str) -> list[int]:
    """Return the link-time addresses at which instances of a function begin, lowest first.

    Those of functions that the linker has left out are at 0.
    """
    found = {
        address
        for unit in info.units_naming(name)
        if not unit.split
        for entry in _below(unit.entry)
        if entry.tag == INLINED_SUBROUTINE and entry.name == name and (address := begin_of(entry))
    }
    return sorted(found)


def _below(parent: dw.Entry) -> Iterator[dw.Entry]:
    for entry in parent.children():
        if entry.tag in _SCOPES:
            yield entry
            yield from _below(entry)


def begin_of(entry: dw.Entry) -> int | None:
    """Return where a function, or an instance of one, is entered."""
    form, _ = entry.attributes.get(_AT_ENTRY_PC, (0, b""))
    if form == ADDR or form in ADDRESS_INDEX:
        return entry.address(_AT_ENTRY_PC)
    ranges = ranges_of(entry)
    return ranges[0][0] if ranges else None
