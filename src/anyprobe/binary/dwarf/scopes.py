"""Whose code addresses are: the functions that debug information describes, and those inlined into them."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.debug_info import DebugInfo
from anyprobe.binary.dwarf.inlined import INLINED_SUBROUTINE, begin_of
from anyprobe.binary.dwarf.lines import files_of
from anyprobe.binary.dwarf.ranges import ranges_of

_AT_LINE_PROGRAM, _AT_DECLARED_FILE, _AT_DECLARED_LINE = 0x10, 0x3A, 0x3B
_AT_CALL_FILE, _AT_CALL_LINE = 0x58, 0x59
_LINKAGE_NAMES = (0x6E, 0x2007)


@dataclass(frozen=True, slots=True)
class Scope:
    """The code of one function, out of line or inlined somewhere: one range of it, by link-time addresses.

    gcc has empty ranges where an instruction is another function's, too.
    """

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
    file: str
    """Where the function is declared, and in which line."""
    line: int
    called_in: str = ""
    """Where code is called that was inlined; empty for a function out of line."""
    called_at: int = 0
    """And in which line."""

    def has(self, address: int) -> bool:
        """Return whether what is at an address may be its code."""
        return self.begin <= address < max(self.end, self.begin + 1)


def scopes_of(info: DebugInfo) -> list[Scope]:
    """Return the scopes of an object, in the order of their beginnings, outer ones first.

    Units that are in files of their own (``.dwo``) are left out.
    """
    found = [scope for unit in info.dwarf.units if not unit.split for scope in _scopes_in(unit)]
    return sorted(found, key=lambda each: (each.begin, each.depth))


def _scopes_in(unit: dw.Unit) -> Iterator[Scope]:
    files = files_of(unit.dwarf, unit.entry.number(_AT_LINE_PROGRAM) or 0)
    at, depth = unit.entry.end, int(unit.entry.parent)
    while depth:
        entry = unit.read(at)
        if entry is None:
            at, depth = at + 1, depth - 1
            continue
        if entry.tag in {dw.SUBPROGRAM, INLINED_SUBROUTINE} and (ranges := ranges_of(entry)):
            name, line, entered = _linkage_name(entry), _number(entry, _AT_DECLARED_LINE), begin_of(entry)
            file = files.get(_number(entry, _AT_DECLARED_FILE), "")
            called = files.get(entry.number(_AT_CALL_FILE) or 0, ""), entry.number(_AT_CALL_LINE) or 0
            for begin, end in ranges if name and line and entered is not None else ():
                if begin:  # at 0 are functions that the linker has left out
                    yield Scope(begin, end, depth, entry.offset, entered or begin, name, file, line, *called)
        at, depth = entry.end, depth + entry.parent


def _linkage_name(entry: dw.Entry) -> str:
    names = (each.text(attribute) for each in _with_origins(entry) for attribute in _LINKAGE_NAMES)
    return next(filter(None, names), "") or entry.name


def _number(entry: dw.Entry, attribute: int) -> int:
    """Return an attribute of a function, or of what it completes, 0 if there is none."""
    return next(filter(None, (each.number(attribute) for each in _with_origins(entry))), 0)


def _with_origins(entry: dw.Entry) -> Iterator[dw.Entry]:
    """Yield an entry, what it completes, and so on."""
    following: dw.Entry | None = entry
    while following is not None:
        yield following
        following = following.origin
