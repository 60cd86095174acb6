"""Where the parameters and results of Go's functions are: ABIInternal of Go 1.17 and later (``abi-internal.md``).

A value goes to registers if all of its parts do, strings, slices and members of structs each to one; else to the stack.
"""

from collections.abc import Iterable, Sequence

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, FloatType
from anyprobe.handlers.types.calling_convention import SSE, Piece, Pieces
from anyprobe.handlers.types.layouts import ArrayType, OpaqueType, StructType, alignment_of

INTEGERS = ("rax", "rbx", "rcx", "rdi", "rsi", "r8", "r9", "r10", "r11")
FLOATS = tuple(f"xmm{number}" for number in range(15))
_RETURN_ADDRESS = 8


def go_places(parameters: Sequence[AnyType], results: Sequence[AnyType] = ()) -> tuple[list[Pieces], list[Pieces]]:
    """Return where each parameter is at the entry, and each result at the return."""
    passed, end = _assigned(parameters, 0)
    returned, _ = _assigned(results, end + -end % 8)
    return passed, returned


def _assigned(kinds: Iterable[AnyType], stack: int) -> tuple[list[Pieces], int]:
    """Return where values are, and where the part of the stack ends that they take."""
    found: list[Pieces] = []
    integers = floats = 0
    for kind in kinds:
        parts = list(_parts(kind, 0))
        more_floats = sum(is_float for _, _, is_float in parts)
        more_integers = len(parts) - more_floats
        if _fits(kind) and integers + more_integers <= len(INTEGERS) and floats + more_floats <= len(FLOATS):
            pieces = []
            for offset, bits, is_float in parts:
                pieces.append(Piece(FLOATS[floats] if is_float else INTEGERS[integers], offset, bits))
                floats, integers = floats + is_float, integers + (not is_float)
            found.append(tuple(pieces))
            continue
        stack += -stack % alignment_of(kind)
        found.append(_on_the_stack(stack, kind.size))
        stack += kind.size
    return found, stack


def _on_the_stack(at: int, size: int) -> Pieces:
    return tuple(
        Piece(f"stack+{_RETURN_ADDRESS + at + offset}", 8 * offset, 8 * min(8, size - offset))
        for offset in range(0, size, 8)
    )


def _fits(kind: AnyType) -> bool:
    """Return whether a value may go to registers: no part of it is an array of several values."""
    if isinstance(kind, StructType):
        return all(_fits(each.kind) for each in kind.own_fields())
    if isinstance(kind, ArrayType):
        return kind.count <= 1 and (kind.count == 0 or _fits(kind.element))
    return True


def _parts(kind: AnyType, at: int) -> Iterable[tuple[int, int, bool]]:
    """Yield offset, width in bits, and whether it is a float, of each part that takes a register."""
    if isinstance(kind, StructType):
        for each in kind.own_fields():
            yield from _parts(each.kind, at + each.offset)
    elif isinstance(kind, ArrayType):
        if kind.count == 1:
            yield from _parts(kind.element, at)
    elif isinstance(kind, OpaqueType):
        if kind.classes is None or set(kind.classes) != {SSE}:
            raise UnsupportedTarget(f"it is not known how {kind} is passed")
        half = 4 * kind.size  # a complex number: two floats
        yield at, half, True
        yield at + half, half, True
    else:
        yield at, 8 * kind.size, isinstance(kind, FloatType)
