"""Whose code addresses are: the functions that debug information describes, and those inlined into them."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.debug_info import DebugInfo
from anyprobe.binary.dwarf.inlined import INLINED_SUBROUTINE, begin_of
from anyprobe.binary.dwarf.ranges import ranges_of

_AT_DECLARED_LINE = 0x3B
_LINKAGE_NAMES = (0x6E, 0x2007)


@dataclass(frozen=True, slots=True)
class Scope:
    """The code of one function, out of line or inlined somewhere: one range of it, by link-time addresses."""

    begin: int
    end: int
    depth: int
    """How many scopes it is in: of two that have an address, the deeper one is the function's own."""
    instance: int
    """What all ranges of the same code have in common, and no other."""
    entered: int
    """Where control comes into it first."""
    name: str
    """What the linker calls the function."""
    line: int
    """Where the function is declared in its file."""


def scopes_of(info: DebugInfo) -> list[Scope]:
    """Return the scopes of an object, in the order of their beginnings, outer ones first.

    Units that are in files of their own (``.dwo``) are left out.
    """
    found = [scope for unit in info.dwarf.units if not unit.split for scope in _scopes_in(unit)]
    return sorted(found, key=lambda each: (each.begin, each.depth))


def _scopes_in(unit: dw.Unit) -> Iterator[Scope]:
    at, depth = unit.entry.end, int(unit.entry.parent)
    while depth:
        entry = unit.read(at)
        if entry is None:
            at, depth = at + 1, depth - 1
            continue
        if entry.tag in {dw.SUBPROGRAM, INLINED_SUBROUTINE} and (ranges := ranges_of(entry)):
            name, line, entered = _linkage_name(entry), _declared(entry), begin_of(entry)
            for begin, end in ranges if name and line and entered is not None else ():
                if begin:  # at 0 are functions that the linker has left out
                    yield Scope(begin, end, depth, entry.offset, entered or begin, name, line)
        at, depth = entry.end, depth + entry.parent


def _linkage_name(entry: dw.Entry) -> str:
    below: dw.Entry | None = entry
    while below is not None:
        found = next((text for attribute in _LINKAGE_NAMES if (text := below.text(attribute))), "")
        if found:
            return found
        below = below.origin
    return entry.name


def _declared(entry: dw.Entry) -> int:
    below: dw.Entry | None = entry
    while below is not None:
        line = below.number(_AT_DECLARED_LINE)
        if line:
            return line
        below = below.origin
    return 0
