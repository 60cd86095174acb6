"""What the debug information of Go's compiler says of functions and types, beyond what that of C says, too."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.locations import FRAME
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, PointerType, u8, u64
from anyprobe.handlers.types.calling_convention import (
    Located,
    PassedOtherwise,
    Piece,
    Pieces,
    Prototype,
    parameter_name,
)
from anyprobe.handlers.types.go_convention import go_places
from anyprobe.handlers.types.layouts import Extent, Field, OpaqueType, StructType, alignment_of

if TYPE_CHECKING:
    from anyprobe.handlers.types.debug_types import DebugTypes, Seen

_SLICE, _STRING = 23, 24
_EXTENTS = {_SLICE: ("array", "len"), _STRING: ("str", "len")}
"""The members of slices and strings that are the address and the number of values."""
_COUNTERS = {"hash<": "count", "map<": "used", "hchan<": "qcount"}
"""What says how many values are in maps (until and since 1.24) and channels, by how their types' names begin."""
_TYPE_WORDS = ("_type", "Type")
"""How the member is called that points at the type, of an interface without methods, and of the table of any other."""
_VERSION = re.compile(r"\bgo1\.(\d+)")
_SINCE = 17
"""Go 1.17 was the first to pass parameters in registers."""
_UNNAMED = re.compile(r"~r\d+|_|")


def go_prototype(types: "DebugTypes", name: str, entry: dw.Entry, seen: "Seen") -> Prototype:
    """Return the prototype of a function; ``PassedOtherwise`` says that its convention is none that is known."""
    _check_version(name, entry)
    if name.endswith(".abi0"):
        raise PassedOtherwise(f"{name} is called as assembly is, with its parameters on the stack")
    described = entry.reference(dw.AT_ABSTRACT_ORIGIN) or entry
    found = [each for each in described.children() if each.tag == dw.PARAMETER]
    given = [each for each in found if not each.number(dw.AT_VARIABLE_PARAMETER)]
    results = [each for each in found if each.number(dw.AT_VARIABLE_PARAMETER)]
    kinds, returned = [_type_of(types, each) for each in given], [_type_of(types, each) for each in results]
    places, result_places = _places(name, kinds, returned, [seen.pieces(each) for each in given])
    names = [each.name if not _UNNAMED.fullmatch(each.name) else f"r{at}" for at, each in enumerate(results)]
    result, result_pieces = _together(names, returned, result_places)
    parameters = tuple(
        (parameter_name(each.name, at), kind) for at, (each, kind) in enumerate(zip(given, kinds, strict=True))
    )
    return Prototype(name, parameters, result, located=Located("Go", tuple(places), result_pieces))


def go_extent(entry: dw.Entry) -> Callable[[StructType], Extent | None] | None:
    """Return what finds the values of a string or slice; nothing for any other struct."""
    members = _EXTENTS.get(entry.number(dw.AT_GO_KIND) or 0)
    if members is None:
        return None

    def find(kind: StructType) -> Extent | None:
        pointer, length = (kind.member(member) for member in members)
        if pointer is None or length is None or not isinstance(pointer.kind, PointerType):
            return None
        return Extent(pointer, length, pointer.kind.element == u8)

    return find


def go_counter(name: str) -> str:
    """Return the member of a struct that says how many values are in a map or channel; empty for any other struct."""
    return next((member for start, member in _COUNTERS.items() if name.startswith(start)), "")


def go_interface(types: "DebugTypes", entry: dw.Entry) -> AnyType:
    """Return an interface under its own name: a struct of two pointers, which tells the type of its value."""
    common = types.of(entry.type)
    if not isinstance(common, StructType):
        return OpaqueType(entry.name, 2 * u64.size, None)
    return StructType(
        entry.name, common.size, lambda: common.fields, alignment=common.alignment, dynamic=_leading_to_type
    )


def _leading_to_type(kind: StructType) -> tuple[Field, ...]:
    """Return the way to the type: the first member, or one of the table that it points at."""
    first = kind.fields[0] if kind.fields else None
    if first is None or not isinstance(first.kind, PointerType) or first.name in _TYPE_WORDS:
        return () if first is None else (first,)
    table = first.kind.element
    members = () if not isinstance(table, StructType) else table.fields
    return next(((first, each) for each in members if each.name in _TYPE_WORDS), ())


def _check_version(name: str, entry: dw.Entry) -> None:
    producer = entry.unit.entry.text(dw.AT_PRODUCER)
    found = _VERSION.search(producer)
    if found is None:
        raise PassedOtherwise(f"it is not known which Go has compiled {name} ({producer or 'nothing is said'})")
    if int(found[1]) < _SINCE:
        raise PassedOtherwise(f"{name} was compiled by Go 1.{found[1]}, which passes parameters on the stack")


def _type_of(types: "DebugTypes", entry: dw.Entry) -> AnyType:
    kind = types.of(entry.type)
    if kind is None:
        raise UnsupportedTarget(f"the debug information has no type of {entry.name}")
    return kind


def _places(
    name: str, kinds: list[AnyType], results: list[AnyType], said: list[list[tuple[str, int]]]
) -> tuple[list[Pieces], list[Pieces]]:
    """Return where everything is, as debug information confirms it; ``said``: what that says of each parameter.

    Instances of generic functions for several types have another parameter, which has no name: their dictionary, first
    or after the receiver.
    """
    disagreeing = ""
    for hidden in (0, 1, None) if "[" in name else (None,):
        passed = list(kinds) if hidden is None else [*kinds[:hidden], u64, *kinds[hidden:]]
        places, returned = go_places(passed, results)
        if hidden is not None:
            del places[hidden : hidden + 1]
        agreeing = [_agree(pieces, each) for pieces, each in zip(places, said, strict=True)]
        if False in agreeing:
            disagreeing = ", ".join(place for place, _ in said[agreeing.index(False)])
        elif True in agreeing or hidden is None or not kinds:
            return places, returned
    raise PassedOtherwise(f"the compiler passes a parameter of {name} in {disagreeing}, not as Go's convention has it")


def _agree(pieces: Pieces, said: list[tuple[str, int]]) -> bool | None:
    """Return whether debug information has a parameter in these registers; ``None`` where it has it in none."""
    places = [place for place, _ in said]
    if len(places) != len(pieces) or any(place.startswith(("*", FRAME)) for place in places) or not any(places):
        return None
    return all(not place or place == piece.place for place, piece in zip(places, pieces, strict=True))


def _together(names: list[str], kinds: list[AnyType], places: list[Pieces]) -> tuple[AnyType | None, Pieces | None]:
    """Return one result of several: a struct of them."""
    if len(kinds) <= 1:
        return (kinds[0], places[0]) if kinds else (None, ())
    fields, pieces, end = [], [], 0
    for name, kind, parts in zip(names, kinds, places, strict=True):
        end += -end % 8 if kind.size else 0
        fields.append(Field(name, kind, 8 * end))
        pieces += [Piece(each.place, each.offset + 8 * end, each.bits) for each in parts]
        end += kind.size
    alignment = max(alignment_of(kind) for kind in kinds)
    shown = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    return StructType(f"({shown})", end, tuple(fields), alignment=alignment), tuple(pieces)
