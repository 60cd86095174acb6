"""The kernel's types as BTF has them, one value each; types are referred to by their numbers."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Tag(IntEnum):
    """The kinds of records (``BTF_KIND_*``)."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


QUALIFIERS = frozenset({Tag.TYPEDEF, Tag.VOLATILE, Tag.CONST, Tag.RESTRICT, Tag.TYPE_TAG})
"""What stands before a type and changes nothing of how its values lie in memory."""


class Void(NamedTuple):
    """No value."""

    name: str = "void"


class Int(NamedTuple):
    """An integer of ``size`` bytes."""

    name: str
    size: int
    signed: bool
    is_bool: bool = False
    is_char: bool = False


class Float(NamedTuple):
    """A floating-point number of ``size`` bytes."""

    name: str
    size: int


class Pointer(NamedTuple):
    """A pointer to a type."""

    target: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Array:
    """``count`` elements of a type."""

    element: int
    count: int
    name: str = ""


class Member(NamedTuple):
    """A member: where it begins, in bits from the beginning of its structure; ``bits`` is 0 but for bit-fields."""

    name: str
    type: int
    bit_offset: int
    bits: int = 0

    @property
    def offset(self) -> int:
        """The byte in which it begins."""
        return self.bit_offset // 8


class Struct(NamedTuple):
    """A structure or union of ``size`` bytes."""

    name: str
    size: int
    members: tuple[Member, ...]
    is_union: bool = False


class Enum(NamedTuple):
    """Named numbers in ``size`` bytes."""

    name: str
    size: int
    values: tuple[tuple[str, int], ...]
    signed: bool = False


class Forward(NamedTuple):
    """A structure or union of which only the name is known."""

    name: str
    is_union: bool


class Qualified(NamedTuple):
    """A typedef, ``const``, ``volatile``, ``restrict`` or tag before another type."""

    name: str
    tag: Tag
    target: int


class Prototype(NamedTuple):
    """A function's result and parameters, each with its name and type; ``variadic``: more may follow."""

    result: int
    parameters: tuple[tuple[str, int], ...]
    variadic: bool = False
    name: str = ""


class Function(NamedTuple):
    """A function of a name with a prototype."""

    name: str
    prototype: int


class Other(NamedTuple):
    """What no expression refers to: variables, sections, tags of declarations."""

    name: str
    tag: Tag
    target: int


Type = Void | Int | Float | Pointer | Array | Struct | Enum | Forward | Qualified | Prototype | Function | Other
