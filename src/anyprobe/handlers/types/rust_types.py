"""What the debug information of Rust's compiler says of functions and types, beyond what that of C says, too."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.locations import FRAME
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, IntegerType, PointerType, u8
from anyprobe.handlers.types.calling_convention import (
    Located,
    PassedOtherwise,
    Piece,
    Pieces,
    Prototype,
    parameter_name,
)
from anyprobe.handlers.types.layouts import Extent, Field, OpaqueType, StructType, Variants
from anyprobe.handlers.types.rust_convention import may_take_two_registers, parts_of, rust_places, rust_result

if TYPE_CHECKING:
    from anyprobe.handlers.types.debug_types import DebugTypes, Seen

_VERSION = re.compile(r"\brustc version 1\.(\d+)")
_SINCE = 95
"""Before, what is larger than one register and no larger than two was passed in one way or another."""
_OF_ITS_OWN = 3
"""The convention of a function that LLVM has changed, since all of its callers are known."""
_ELSEWHERE = [(FRAME, 0)]
"""Said of a parameter that is kept in the function's frame, as all are without optimisation: then none is left out."""
_DEPTH_LIMIT = 8
_IN_REGISTERS = 16
"""Bytes of the largest result that is not in memory of the caller: ``u128``."""


def rust_prototype(types: "DebugTypes", name: str, entry: dw.Entry, seen: "Seen") -> Prototype:
    """Return the prototype of a function: where debug information has its parameters, else where rustc passes them.

    LLVM leaves out parameters of functions whose callers it knows. Then the former alone counts, and of the result
    nothing is known.
    """
    described = entry.reference(dw.AT_ABSTRACT_ORIGIN) or entry
    found = [each for each in described.children() if each.tag == dw.PARAMETER]
    kinds = []
    for each in found:
        kind = types.of(each.type)
        if kind is None:
            raise UnsupportedTarget(f"the debug information has no type of {each.name}")
        kinds.append(kind)
    result = types.of(described.type)
    if not _is_recent(entry) and any(may_take_two_registers(kind) for kind in (*kinds, result) if kind is not None):
        raise PassedOtherwise(f"this version of Rust passes some values of {name} in ways of its own")
    changed = _OF_ITS_OWN in (entry.number(dw.AT_CALLING_CONVENTION), described.number(dw.AT_CALLING_CONVENTION))
    said = [seen.pieces(each) for each in found]
    usual: list[Pieces | None] = [None] * len(kinds)
    returned = _returned(result)
    if not changed:
        usual[:] = rust_places(kinds, hidden=returned is None)
        changed = any(_differs(kind, pieces, parts) for kind, pieces, parts in zip(kinds, usual, said, strict=True))
    places, passed = [], []
    kept = _ELSEWHERE in said and all(parts in (_ELSEWHERE, []) for parts in said) and not changed
    for kind, pieces, parts in zip(kinds, usual, said, strict=True):
        places.append(pieces if kept else _places(kind, parts))
        passed.append(PointerType(kind) if _is_passed_by_address(kind, parts) else kind)
    if result is not None and changed:
        result, returned = OpaqueType(f"{result} in a way of LLVM's own", result.size, None), ()
    names = [parameter_name(each.name, at) for at, each in enumerate(found)]
    return Prototype(
        name, tuple(zip(names, passed, strict=True)), result, located=Located("Rust", tuple(places), returned)
    )


def _returned(result: AnyType | None) -> Pieces | None:
    """Return the parts in which a result is returned, none of one that handlers cannot compute with, as ``u128``.

    ``None``: it is in memory of the caller.
    """
    if result is None or not result.size:
        return ()
    try:
        return rust_result(result)
    except UnsupportedTarget:
        return () if result.size <= _IN_REGISTERS else None


def _is_recent(entry: dw.Entry) -> bool:
    """Return whether rustc passes the address of what lies in memory and is larger than a register."""
    found = _VERSION.search(entry.unit.entry.text(dw.AT_PRODUCER))
    return found is not None and int(found[1]) >= _SINCE


def _is_passed_by_address(kind: AnyType, said: list[tuple[str, int]]) -> bool:
    if said and all(place and not place.startswith(("*", FRAME)) for place, _ in said):
        return False
    if len(said) == 1 and said[0][0].startswith("*"):
        return True
    return parts_of(kind) is None


def _places(kind: AnyType, said: list[tuple[str, int]]) -> Pieces | None:
    """Return where debug information has a parameter; ``None`` if that is not said of all of it."""
    if not said or not all(place and place != FRAME for place, _ in said):
        return None
    if any(place.startswith("*") for place, _ in said):
        return (Piece(said[0][0].removeprefix("*"), 0, 64),) if len(said) == 1 else None
    pieces, at = [], 0
    for place, size in said:
        pieces.append(Piece(place, 8 * at, 8 * (size or kind.size)))
        at += size
    return tuple(pieces) if all(each.bits <= 64 for each in pieces) else None


def _differs(kind: AnyType, pieces: Pieces | None, said: list[tuple[str, int]]) -> bool:
    """Return whether debug information has a part of a parameter in another place than rustc passes it."""
    at = 0
    usual = {each.offset: each.place for each in pieces or ()}
    by_address = parts_of(kind) is None
    for place, size in said:
        is_address = place.startswith("*")
        if place not in ("", FRAME) and (is_address != by_address or usual.get(at) != place.removeprefix("*")):
            return True
        at += 8 * size
    return False


# -- types


def rust_extent(types: "DebugTypes", entry: dw.Entry) -> Callable[[StructType], Extent | None]:
    """Return what finds the values that a struct tells of: slices, ``Vec``, and what has one of these alone."""

    def find(kind: StructType) -> Extent | None:
        pointer, length = kind.member("data_ptr"), kind.member("length")
        if pointer is not None and length is not None and isinstance(pointer.kind, PointerType):
            return Extent(pointer, length, pointer.kind.element == u8)
        if kind.name.startswith("Vec<"):
            return _extent_of_vector(types, entry, kind)
        fields = [each for each in kind.fields if each.kind.size]
        inner = fields[0].kind if len(fields) == 1 and kind.variants is None else None
        if not isinstance(inner, StructType) or inner.extent is None:
            return None
        return Extent(
            _moved(inner.extent.pointer, fields[0]), _moved(inner.extent.length, fields[0]), inner.extent.is_text
        )

    return find


def _moved(field: Field, outer: Field) -> Field:
    return Field(field.name, field.kind, field.offset + outer.offset)


def _extent_of_vector(types: "DebugTypes", entry: dw.Entry, kind: StructType) -> Extent | None:
    parameter = next((each for each in entry.children() if each.tag == dw.TYPE_PARAMETER), None)
    element = types.of(parameter.type) if parameter is not None else None
    length = kind.member("len")
    at = next((found for each in kind.fields if (found := _pointer_in(each, 0)) is not None), None)
    if element is None or length is None or at is None:
        return None
    return Extent(Field("", PointerType(element), at), length, element == u8)


def _pointer_in(field: Field, depth: int) -> int | None:
    """Return at which bit the first pointer is in a member."""
    if isinstance(field.kind, PointerType):
        return field.offset
    if not isinstance(field.kind, StructType) or depth > _DEPTH_LIMIT:
        return None
    inner = (_pointer_in(each, depth + 1) for each in field.kind.fields)
    at = next((found for found in inner if found is not None), None)
    return None if at is None else field.offset + at


def variants_of(types: "DebugTypes", entry: dw.Entry) -> Variants | None:
    """Return which members of an enum are alternatives, and by what; nothing of any other struct."""
    part = next((each for each in entry.children() if each.tag == dw.VARIANT_PART), None)
    discriminant = part.reference(dw.AT_DISCR) if part is not None else None
    if part is None or discriminant is None:
        return None
    kind, at = types.of(discriminant.type), discriminant.number(dw.AT_MEMBER_LOCATION)
    if not isinstance(kind, IntegerType) or at is None:
        return None
    alternatives: dict[str, tuple[int | None, Field]] = {}
    for variant in part.children():
        member = next((each for each in variant.children() if each.tag == dw.MEMBER), None)
        inner = types.of(member.type) if member is not None else None
        place = member.number(dw.AT_MEMBER_LOCATION) if member is not None else None
        if variant.tag != dw.VARIANT or member is None or inner is None or place is None:
            continue
        value = variant.number(dw.AT_DISCR_VALUE)
        name = inner.name if member.name.isdigit() else member.name  # states of futures have numbers
        whole = None if value is None else value & ((1 << kind.bits) - 1)
        alternatives[name] = whole, Field(name, inner, 8 * place)
    return Variants(Field("", IntegerType(kind.bits, signed=False), 8 * at), alternatives)
