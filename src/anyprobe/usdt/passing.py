"""How arguments of markers go from Python to where their notes say that they are.

Floating-point numbers go as their bits, in general purpose registers: with an operand in a vector register gdb 13 and
bpftrace 0.17 read no argument of the marker at all.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from anyprobe.core.errors import UsageError
from anyprobe.handlers.intrinsics import cstr
from anyprobe.handlers.types.annotations import BoolType, FloatType, IntegerType, PointerType, boolean, f64, i64, ptr
from anyprobe.handlers.types.calling_convention import places
from anyprobe.usdt.limits import MOST_ARGUMENTS

_IN_PYTHON = {bool: boolean, int: i64, float: f64, str: cstr, bytes: cstr}
"""Python's types that may stand for those of handlers."""
_INTEGERS = {
    (8, True): ctypes.c_int8, (16, True): ctypes.c_int16, (32, True): ctypes.c_int32, (64, True): ctypes.c_int64,
    (8, False): ctypes.c_uint8, (16, False): ctypes.c_uint16, (32, False): ctypes.c_uint32,
    (64, False): ctypes.c_uint64,
}  # fmt: skip
_DOUBLE, _SINGLE, _U64, _U32 = (struct.Struct(f"<{each}") for each in "dfQI")
_BITS = {64: lambda value: _U64.unpack(_DOUBLE.pack(value))[0], 32: lambda value: _U32.unpack(_SINGLE.pack(value))[0]}
_NO_TYPE = "write u8 to u64, i8 to i64, f32, f64, ptr, cstr, bool, int, float, str or bytes"


class Passed:
    """One argument: its place in the note, its type for the call, and what converts a value to it."""

    def __init__(self, place: str, convert: Callable[[Any], Any], c_type: Any, size: str) -> None:  # noqa: ANN401 - types of ctypes have no common name
        """Keep the parts."""
        self.c_type, self.convert = c_type, convert
        self.otherwise = 0 if c_type not in (ctypes.c_char_p, ctypes.c_void_p) else None
        """What is passed in the place of a value that cannot be."""
        self.operand = f"{size}@{_operand(place)}"


def passed(where: str, kinds: Sequence[Any]) -> list[Passed]:
    """Return how arguments of some types are passed; ``where`` names the marker in errors."""
    if len(kinds) > MOST_ARGUMENTS:
        raise UsageError(f"{where} has {len(kinds)} arguments, and tools read {MOST_ARGUMENTS} at most")
    found = [_typed(where, index, kind) for index, kind in enumerate(kinds)]
    spots = places([each[0] for each in found])
    return [Passed(spot[0], *rest) for (_, *rest), spot in zip(found, spots, strict=True)]


def _typed(where: str, index: int, given: Any) -> tuple[Any, Callable[[Any], Any], Any, str]:  # noqa: ANN401
    """Return the type, the conversion, the type of the call and the note's size of one argument."""
    kind = _IN_PYTHON.get(given, given) if isinstance(given, type) else given
    if kind is cstr:
        return ptr, _text, ctypes.c_char_p, "8"
    if isinstance(kind, PointerType):
        return kind, _address, ctypes.c_void_p, "8"
    if isinstance(kind, BoolType):
        return kind, bool, ctypes.c_uint8, "1"
    if isinstance(kind, FloatType):
        bits = IntegerType(kind.bits, signed=False)
        return bits, _BITS[kind.bits], _INTEGERS[kind.bits, False], f"{kind.size}"
    if isinstance(kind, IntegerType):
        sign = "-" if kind.signed else ""
        return kind, _whole, _INTEGERS[kind.bits, kind.signed], f"{sign}{kind.size}"
    shown = getattr(given, "__name__", None) or repr(given)
    raise UsageError(f"argument {index} of {where} is of no type that a marker can pass: {shown}; {_NO_TYPE}")


def _whole(value: Any) -> int:  # noqa: ANN401 - checked here
    """Return a whole number; what is too large for its type loses its upper bits, as in C."""
    if isinstance(value, int):
        return value
    if hasattr(value, "__index__"):
        return int(value.__index__())
    raise TypeError(f"{type(value).__name__} is no whole number")


def _text(value: Any) -> bytes | None:  # noqa: ANN401 - checked here
    """Return a text's bytes, which end at its first NUL for who reads them; ``None`` has no address."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")  # as Python has names of files that are no UTF-8
        except UnicodeEncodeError:
            return value.encode("utf-8", "replace")
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is no text")


def _address(value: Any) -> Any:  # noqa: ANN401 - what ctypes takes
    """Return an address: a number, that of ``bytes``, or none."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)
    raise TypeError(f"{type(value).__name__} is neither an address nor bytes")


def _operand(place: str) -> str:
    """Return a place as notes have it; a register by its whole name, since tools differ in those of its parts."""
    stack = place.removeprefix("stack+")
    return f"{stack}(%rsp)" if stack != place else f"%{place}"
