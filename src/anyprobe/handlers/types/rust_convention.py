"""Where the parameters and results of Rust's functions are, as rustc passes them on x86-64 (``rustc_ty_utils::abi``).

What is one or two numbers goes to a register each, whatever structs and enums are around them; what is more, and no
larger than a register, goes there as it lies in memory; of everything else the address is passed.
"""

from collections.abc import Sequence
from itertools import pairwise

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, FloatType
from anyprobe.handlers.types.calling_convention import INTEGER_REGISTERS, VECTOR_REGISTERS, Piece, Pieces
from anyprobe.handlers.types.layouts import ArrayType, OpaqueType, StructType

_IN_REGISTER, _IN_TWO = 8, 16
Part = tuple[int, int, bool]
"""Offset and width in bits, and whether it is a float."""


def rust_places(kinds: Sequence[AnyType], *, hidden: bool) -> list[Pieces]:
    """Return where each parameter is at the entry, or the address of one.

    ``hidden``: the function is given the address at which its result has to be.
    """
    found: list[Pieces] = []
    registers, vectors, stack = list(INTEGER_REGISTERS[hidden:]), 0, 8
    for kind in kinds:
        parts = parts_of(kind)
        pieces = []
        for offset, bits, is_float in [(0, 64, False)] if parts is None else parts:
            if is_float and vectors < VECTOR_REGISTERS:
                pieces.append(Piece(f"xmm{vectors}", offset, bits))
                vectors += 1
            elif not is_float and registers:
                pieces.append(Piece(registers.pop(0), offset, bits))
            else:
                pieces.append(Piece(f"stack+{stack}", offset, bits))
                stack += 8
        found.append(tuple(pieces))
    return found


def rust_result(kind: AnyType) -> Pieces | None:
    """Return where a result is; ``None``: in memory of the caller, and ``rax`` may not have its address."""
    parts = parts_of(kind)
    if parts is None:
        return None
    registers, vectors = ["rax", "rdx"], ["xmm0", "xmm1"]
    return tuple(Piece((vectors if is_float else registers).pop(0), offset, bits) for offset, bits, is_float in parts)


def parts_of(kind: AnyType) -> list[Part] | None:
    """Return the parts of a value that take a register each, ``None`` if its address is passed."""
    found = _numbers(kind, 0)
    if found is not None and len(found) <= 2:
        return [(offset, *found[offset]) for offset in sorted(found)]
    return [(0, 8 * kind.size, False)] if kind.size <= _IN_REGISTER else None


def may_take_two_registers(kind: AnyType) -> bool:
    """Return whether a value, which is passed by its address, may have been in two registers in earlier versions."""
    found = _numbers(kind, 0)
    return _IN_REGISTER < kind.size <= _IN_TWO and (found is None or len(found) > 2)


def _numbers(kind: AnyType, at: int) -> dict[int, tuple[int, bool]] | None:
    """Return the numbers that a value consists of, by their offsets; ``None`` if its variants have different ones."""
    if isinstance(kind, OpaqueType):
        if not kind.size:
            return {}
        raise UnsupportedTarget(f"it is not known how {kind} is passed")
    if isinstance(kind, ArrayType):
        return {} if not kind.size else None
    if not isinstance(kind, StructType):
        return {at: (8 * kind.size, isinstance(kind, FloatType))}
    if not kind.size:
        return {}
    found: dict[int, tuple[int, bool]] = {}
    fields = list(kind.fields)
    if kind.variants is not None:
        numbered = [each.kind for value, each in kind.variants.alternatives.values() if value is not None]
        has_other = len(numbered) < len(kind.variants.alternatives)
        if has_other and any(_numbers(each, 0) != {} for each in numbered):
            return None  # the discriminant is a part of the one without a number, and it is not alone
        fields.append(kind.variants.discriminant)
    for each in fields:
        numbers = _numbers(each.kind, at + each.offset)
        if numbers is None or any(found.get(place, number) != number for place, number in numbers.items()):
            return None
        found |= numbers
    places = sorted(found)
    overlap = any(place + found[place][0] > after for place, after in pairwise(places))
    return None if overlap else found
