"""Numbers of fixed width for CPython: the typing rules of docs/handlers.md, decided when an operation is executed."""

import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

from anyprobe.core.code import Miss
from anyprobe.handlers.frontend.values import Kind
from anyprobe.handlers.ir import arithmetic
from anyprobe.handlers.types.annotations import (
    BoolType,
    FloatType,
    IntegerType,
    Layout,
    PointerType,
    Type,
    boolean,
    f64,
    i64,
    u64,
)
from anyprobe.handlers.types.layouts import ArrayType, Field, StructType

Plain = int | float


class Abandoned(Exception):  # noqa: N818 - an event, not a mistake
    """A value that was missing has been used."""


class _Missing:
    """A value that could not be read; whatever is done with it ends the handler."""

    def _ends(self, *_: object) -> NoReturn:
        raise Abandoned

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = _ends
    __rmod__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = _ends
    __rshift__ = __rrshift__ = __truediv__ = __rtruediv__ = __neg__ = __pos__ = __invert__ = __bool__ = _ends
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __len__ = _ends
    __eq__ = __ne__ = _ends
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> "_Missing":
        """Return that it is missing: what hangs on a missing pointer is."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self


MISSING = _Missing()


@dataclass
class Record:
    """What a run does: misses, updates, and the memory it reads."""

    counts: dict[Miss, int]
    memory: Any
    updates: list[tuple[Any, Plain | None, tuple[Any, ...]]] = field(default_factory=list)

    def read(self, address: int, kind: Type) -> Any:
        """Read a value."""
        raw = self.memory.read(address, kind.size)
        if raw is None:
            self.counts[Miss.FAULT] += 1
            return MISSING
        if isinstance(kind, FloatType):
            return Fixed(kind, struct.unpack("<d" if kind.bits == 64 else "<f", raw)[0], self)
        signed = isinstance(kind, IntegerType) and kind.signed
        return Fixed(kind, int.from_bytes(raw, "little", signed=signed), self)

    def member(self, address: int, member: Field) -> Any:
        """Read a member of the struct at an address; structs and arrays are their address."""
        kind, at = member.kind, address + member.offset // 8
        if member.bits:
            size = -(-(member.offset % 8 + member.bits) // 8)
            raw = self.memory.read(at, size)
            if raw is None:
                self.counts[Miss.FAULT] += 1
                return MISSING
            value = int.from_bytes(raw, "little") >> member.offset % 8 & (1 << member.bits) - 1
            signed = isinstance(kind, IntegerType) and kind.signed and value >> member.bits - 1
            return Fixed(kind, value - (1 << member.bits) if signed else value, self)  # type: ignore[arg-type]
        if isinstance(kind, Layout):
            return Fixed(PointerType(kind.element if isinstance(kind, ArrayType) else kind), at, self)
        found = self.read(at, kind)
        return Fixed(kind, int(found.value != 0), self) if kind == boolean and found is not MISSING else found

    def text(self, address: "Fixed", limit: Any, *, terminated: bool) -> Any:
        """Read a text or bytes."""
        size = int(limit.value if isinstance(limit, Fixed) else limit)
        raw = self.memory.text(int(address.value), size) if terminated else self.memory.read(int(address.value), size)
        if raw is None:
            self.counts[Miss.FAULT] += 1
            return MISSING
        return TextValue(raw, self)


@dataclass(frozen=True, eq=False)
class TextValue:
    """Bytes that were read."""

    raw: bytes
    record: Record

    def __eq__(self, other: object) -> bool:
        """Compare with a constant."""
        return self.raw == (other.encode() if isinstance(other, str) else other)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        """Return the number of bytes."""
        return len(self.raw)

    def __getitem__(self, index: Any) -> Any:
        """Return one byte; beyond the end it is missing."""
        at = u64.wrap(int(index.value if isinstance(index, Fixed) else index))
        return Fixed(i64, self.raw[at], self.record) if at < len(self.raw) else MISSING

    def key(self) -> str:
        """Return it as part of a key."""
        return self.raw.decode(errors="backslashreplace")


@dataclass(frozen=True, eq=False)
class Fixed:
    """A number and its type."""

    kind: Type
    value: Plain
    record: Record

    def key(self) -> Plain:
        """Return it as part of a key."""
        return self.value

    def __bool__(self) -> bool:
        """Return whether it is not zero."""
        return self.value != 0

    def __index__(self) -> int:
        """Return it where Python wants a whole number."""
        return int(self.value)

    def __getattr__(self, name: str) -> Any:
        """Read a member of the struct that this points at."""
        element = self.kind.element if isinstance(self.kind, PointerType) else None
        member = element.member(name) if isinstance(element, StructType) else None
        if member is None:
            raise AttributeError(name)
        return self.record.member(int(self.value), member)

    def _made(self, kind: Type, value: Plain) -> "Fixed":
        return Fixed(kind, value, self.record)

    def _binary(self, symbol: str, left: Any, right: Any) -> Any:
        if left is MISSING or right is MISSING:
            raise Abandoned
        kinds = [each.kind for each in (left, right) if isinstance(each, Fixed)]
        values = [each.value if isinstance(each, Fixed) else each for each in (left, right)]
        if any(isinstance(kind, PointerType) for kind in kinds):
            return self._pointer(symbol, left, right)
        if any(isinstance(kind, FloatType) for kind in kinds) or any(isinstance(each, float) for each in values):
            kind = kinds[0] if all(each == kinds[0] for each in kinds) and isinstance(kinds[0], FloatType) else f64
            return self._made(kind, arithmetic.floating(symbol, kind, kind(values[0]), kind(values[1])))
        if symbol in {"<<", ">>"}:
            whole = _computed(kinds[0]) if isinstance(left, Fixed) else i64
            return self._made(whole, arithmetic.integer(symbol, whole, int(values[0]), int(values[1])))
        whole = u64 if any(_computed(kind) == u64 for kind in kinds) else i64
        first, second = (whole.wrap(int(each)) for each in values)
        if symbol in {"//", "%"} and not second:
            self.record.counts[Miss.DIVISION] += 1
        return self._made(whole, arithmetic.integer(symbol, whole, first, second))

    def _pointer(self, symbol: str, left: Any, right: Any) -> "Fixed":
        base, offset = (left, right) if _is_pointer(left) else (right, left)
        scale = base.kind.element.size if base.kind.element is not None else 1
        distance = int(offset.value if isinstance(offset, Fixed) else offset) * scale
        return self._made(base.kind, u64.wrap(base.value + (distance if symbol == "+" else -distance)))

    def _compare(self, symbol: str, other: Any) -> "Fixed":
        if other is MISSING:
            raise Abandoned
        values = [self.value, other.value if isinstance(other, Fixed) else other]
        kinds = [self.kind, *([other.kind] if isinstance(other, Fixed) else [])]
        if any(isinstance(kind, FloatType) for kind in kinds) or any(isinstance(each, float) for each in values):
            kind = kinds[0] if all(each == kinds[0] for each in kinds) and isinstance(kinds[0], FloatType) else f64
            values = [kind(each) for each in values]
        return self._made(boolean, int(arithmetic.COMPARISONS[symbol](values[0], values[1])))

    def __neg__(self) -> "Fixed":
        """Return the negative number, wrapped."""
        if isinstance(self.kind, FloatType):
            return self._made(self.kind, -self.value)
        return self._made(_computed(self.kind), _computed(self.kind).wrap(-int(self.value)))

    def __pos__(self) -> "Fixed":
        """Return the number in the width in which is computed."""
        return self if isinstance(self.kind, FloatType) else self._made(_computed(self.kind), self.value)

    def __invert__(self) -> "Fixed":
        """Return the number with all bits inverted."""
        return self._made(_computed(self.kind), _computed(self.kind).wrap(~int(self.value)))

    def __getitem__(self, index: Any) -> Any:
        """Read what a pointer points at, or a member by its name."""
        if isinstance(index, str):
            return getattr(self, index)
        assert isinstance(self.kind, PointerType)
        assert self.kind.element is not None
        return self.record.member(int((self + index).value), Field("", self.kind.element, 0))

    def __hash__(self) -> int:
        """Hash by value."""
        return hash(self.value)


def _operators() -> None:
    """Give ``Fixed`` Python's operators."""
    names = {
        "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "&": "and", "|": "or",
        "^": "xor", "<<": "lshift", ">>": "rshift",
    }  # fmt: skip
    for symbol, name in names.items():
        setattr(Fixed, f"__{name}__", lambda self, other, s=symbol: self._binary(s, self, other))
        setattr(Fixed, f"__r{name}__", lambda self, other, s=symbol: self._binary(s, other, self))
    for symbol, name in {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}.items():
        setattr(Fixed, f"__{name}__", lambda self, other, s=symbol: self._compare(s, other))


_operators()


def _computed(kind: Type) -> IntegerType:
    """Return the type in which whole numbers of a type are computed."""
    return u64 if kind == u64 or isinstance(kind, PointerType) else i64


def _is_pointer(value: Any) -> bool:
    return isinstance(value, Fixed) and isinstance(value.kind, PointerType)


def truth(value: Any) -> bool:
    """Return whether a value is true; a missing one ends the handler."""
    return bool(value)


def keep(value: Any, kind: Kind | None, record: Record) -> Any:
    """Return a value as a variable of a kind holds it; without one, as a variable without annotation."""
    if kind is None:
        whole = isinstance(value, Fixed) and isinstance(value.kind, IntegerType)
        return Fixed(_computed(value.kind), value.value, record) if whole else value
    if value is None or value is MISSING:
        if not kind.missing:
            raise Abandoned
        return MISSING
    if isinstance(value, TextValue | tuple | str | bytes):
        return value
    plain = value.value if isinstance(value, Fixed) else value
    target = kind.type
    if isinstance(target, FloatType):
        return Fixed(target, target(plain), record)
    if isinstance(target, BoolType):
        return Fixed(target, int(plain), record)
    wrapped = target.wrap(int(plain)) if isinstance(target, IntegerType) else u64.wrap(int(plain))
    return Fixed(target, wrapped, record)


def merged(left: Any, right: Any, record: Record) -> tuple[Any, Any]:
    """Return two values as one type."""
    if left is MISSING or right is MISSING:
        raise Abandoned
    kinds = [each.kind for each in (left, right) if isinstance(each, Fixed)]
    if not kinds:
        return left, right
    if any(isinstance(kind, FloatType) for kind in kinds) or any(isinstance(each, float) for each in (left, right)):
        target: Type = kinds[0] if all(kind == kinds[0] for kind in kinds) else f64
    elif all(kind == kinds[0] for kind in kinds) and not isinstance(kinds[0], IntegerType):
        target = kinds[0]
    else:
        target = u64 if any(_computed(kind) == u64 for kind in kinds) else i64
    return keep(left, Kind(target), record), keep(right, Kind(target), record)
