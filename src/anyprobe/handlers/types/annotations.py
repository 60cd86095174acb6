"""The types of handlers: annotations of parameters and locals, and conversions, as ``u8(x)``, ``ptr[u32](address)``.

Called outside of a handler, an integer type wraps a Python integer as the handler would.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any, Literal

from anyprobe.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class IntegerType:
    """A two's complement integer of 8, 16, 32 or 64 bits."""

    bits: int
    signed: bool

    @property
    def name(self) -> str:
        """The name it is written by."""
        return f"{'i' if self.signed else 'u'}{self.bits}"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.bits // 8

    @property
    def low(self) -> int:
        """The least value."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def high(self) -> int:
        """The greatest value."""
        return (1 << self.bits - self.signed) - 1

    def wrap(self, value: int) -> int:
        """Return the value of this type that equals ``value`` modulo two to the number of bits."""
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> self.bits - 1 else value

    def __call__(self, value: Any) -> int:  # noqa: ANN401 - whatever int() takes
        """Convert outside of a handler."""
        return self.wrap(int(value))

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class FloatType:
    """An IEEE 754 number of 32 or 64 bits."""

    bits: int

    @property
    def name(self) -> str:
        """The name it is written by."""
        return f"f{self.bits}"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.bits // 8

    def rounded(self, value: float) -> float:
        """Return ``value`` as this type can hold it; what is too large becomes infinite."""
        if self.bits == 64:
            return value
        try:
            return float(struct.unpack("<f", struct.pack("<f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)

    def __call__(self, value: Any) -> float:  # noqa: ANN401 - whatever float() takes
        """Convert outside of a handler."""
        return self.rounded(float(value))

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class BoolType:
    """True or false: what comparisons yield."""

    name: str = "bool"
    size: int = 1

    def __str__(self) -> str:
        """Return the name."""
        return self.name


class Layout:
    """The type of what lies in memory and is no number: structs, unions, arrays; see ``layouts``."""

    name: str
    size: int
    alignment: int

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class PointerType:
    """An address of the target; ``ptr[T]`` points at values of type ``T`` and can be indexed."""

    element: "IntegerType | FloatType | BoolType | PointerType | Layout | None" = None
    user: bool = False
    """In the kernel: whether a program has given it, so that it leads to the program's memory, or to nothing."""

    @property
    def name(self) -> str:
        """The name it is written by."""
        return f"ptr[{self.element}]" if self.element is not None else "ptr"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return 8

    def __getitem__(self, element: Any) -> "PointerType":  # noqa: ANN401 - checked here
        """Return the pointer to values of a type."""
        element = boolean if element is bool else element
        if self.element is not None or not isinstance(element, Type | Layout):
            raise UsageError(f"{self}[{element}] is no type; write ptr[u8], ptr[f64], ptr[ptr] and the like")
        return PointerType(element)

    def __call__(self, value: Any) -> int:  # noqa: ANN401 - whatever int() takes
        """Convert outside of a handler."""
        return u64.wrap(int(value))

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class ShownType(PointerType):
    """An address of code, the id of a stack, or the address of a type of Go: a number that results show by name."""

    label: Literal["func", "stack", "gotype"] = "func"

    @property
    def name(self) -> str:
        """The name it is written by."""
        return self.label

    def __getitem__(self, element: Any) -> PointerType:  # noqa: ANN401 - whatever it is
        """Refuse: nothing is known of what is there."""
        raise UsageError(f"{self}[{element}] is no type; write ptr[u8], ptr[f64], ptr[ptr] and the like")

    def __str__(self) -> str:
        """Return the name."""
        return self.label


Type = IntegerType | FloatType | BoolType | PointerType
"""The type of a value that fits a register."""
AnyType = Type | Layout
"""The type of a parameter, a result or a member."""

i8, i16, i32, i64 = (IntegerType(bits, signed=True) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (IntegerType(bits, signed=False) for bits in (8, 16, 32, 64))
f32, f64 = FloatType(32), FloatType(64)
boolean = BoolType()
ptr = PointerType()
func, stack, gotype = ShownType(), ShownType(label="stack"), ShownType(label="gotype")

NAMED: dict[str, Type] = {
    each.name: each for each in (i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, boolean, ptr, func, stack, gotype)
}  # fmt: skip
"""The types by name."""


def named(name: str) -> Type:
    """Return the type that is printed as ``name``."""
    if name.startswith("ptr["):
        element = named(name[4:-1])
        return ptr[element]
    return NAMED[name]
