"""What an expression of a handler is while it is compiled."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import Layout, Type


class Literal(NamedTuple):
    """A constant of Python; it has no width until it meets a value that has."""

    value: Any


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that fits a register."""

    expr: ir.Expr

    @property
    def type(self) -> Type:
        """Its type."""
        return self.expr.type


@dataclass(frozen=True, slots=True)
class Array(Scalar):
    """The address of an array, where that is known; what is computed with it is an ordinary pointer."""

    count: int
    """How many values there are."""


class Maybe(NamedTuple):
    """A value that may be missing."""

    present: ir.Expr
    value: Scalar


class Text(NamedTuple):
    """Bytes of the program in a buffer, which may be missing; ``terminated``: without the NUL that ended them."""

    present: ir.Expr
    buffer: ir.Buffer
    length: ir.Local
    terminated: bool
    whole: ir.Expr | None = None
    """How long it is in the program, where it says so itself and more of it may not have been read."""


class Packed(NamedTuple):
    """A struct that was passed by value, or a part of it: words, and the bit at which it begins."""

    kind: Layout
    words: tuple[ir.Expr, ...]
    offset: int = 0


class Items(NamedTuple):
    """A tuple."""

    items: "tuple[Value, ...]"


class Thing(NamedTuple):
    """Something of Python that is no number: a type, a function, a module, an aggregation."""

    thing: Any


class Member(NamedTuple):
    """An attribute or item of a storage before it is called: which storage, under which key, which method."""

    storage: object
    key: "Value | None" = None
    method: str = ""


class Context(NamedTuple):
    """``ctx`` or a part of it."""

    part: str = ""


@dataclass(frozen=True, slots=True)
class Alias:
    """What an attribute of a captured class stands for: an attribute of ``ctx``, by its path.

    So a module gives handlers objects with names of its own: ``kprobes``, the kernel's ``pt_regs``.
    """

    path: tuple[str, ...]


Value = Literal | Scalar | Maybe | Text | Packed | Items | Thing | Member | Context


class Kind(NamedTuple):
    """What a local variable can hold.

    ``missing``: also nothing. ``weak``: it has only been given constants yet, so its width can still change.
    ``demanded``: written as an annotation; whole numbers are wrapped to it.
    """

    type: Type
    missing: bool = False
    weak: bool = False
    demanded: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.type}{' or missing' if self.missing else ''}"


def described(value: Value) -> str:
    """Return in a word or two what a value is."""
    match value:
        case Literal(None):
            return "None"
        case Literal(constant):
            return f"the constant {constant!r}"
        case Scalar():
            return str(value.type)
        case Maybe(_, scalar):
            return f"{scalar.type}, or missing"
        case Text(terminated=terminated):
            return "text" if terminated else "bytes"
        case Packed(kind):
            return str(kind)
        case Items():
            return "a tuple"
        case Member():
            return "an aggregation"
        case Context():
            return "ctx"
        case Thing(thing):
            return getattr(thing, "__name__", type(thing).__name__)
