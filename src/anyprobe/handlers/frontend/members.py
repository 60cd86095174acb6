"""Members of structs: read from the program's memory, or taken out of the registers that a struct was passed in.

A struct in memory, and an array, is known by its address: ``request.client`` is a pointer whether the member is a
pointer or the struct itself. What cannot be read is missing, and so is whatever hangs on it.
"""

from dataclasses import replace

from anyprobe.handlers.frontend import operators
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.operators import Fail
from anyprobe.handlers.frontend.values import Array, Literal, Maybe, Packed, Scalar, Value, described
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import (
    FloatType,
    IntegerType,
    Layout,
    PointerType,
    Type,
    boolean,
    i64,
    u8,
    u64,
)  # fmt: skip
from anyprobe.handlers.types.layouts import ArrayType, Field, OpaqueType, StructType

_LOWER_HALF = (1 << 63) - 1


def is_struct(value: Value) -> bool:
    """Return whether a value is a struct, or points at one."""
    value = value.value if isinstance(value, Maybe) else value
    if isinstance(value, Scalar):
        return isinstance(value.type, PointerType) and isinstance(value.type.element, StructType)
    return isinstance(value, Packed) and isinstance(value.kind, StructType)


def item(value: Packed, index: Value, fail: Fail) -> Value:
    """Compile ``value[index]`` of an array that was passed as part of a struct."""
    if not isinstance(value.kind, ArrayType):
        raise fail(f"{described(value)} has no items", "")
    if not isinstance(index, Literal) or not isinstance(index.value, int) or not 0 <= index.value < value.kind.count:
        raise fail(f"this array was passed by value: it has items 0 to {value.kind.count - 1}, by constants only", "")
    element = value.kind.element
    return unpacked(value, Field("", element, 8 * element.size * index.value), fail)


def reached(pointer: ir.Expr) -> ir.Expr:
    """Return the address at which memory is read that a pointer leads to.

    One that a program has given may be of the kernel's half, which is not to be read for it: without the highest bit it
    is no address of anything, and cannot be read.
    """
    address = operators.convert(pointer, u64)
    if isinstance(pointer.type, PointerType) and pointer.type.user:
        return ir.Binary("&", address, ir.Const(_LOWER_HALF, u64))
    return address


def read(emit: Emitter, base: ir.Expr, present: ir.Expr, member: Field, fail: Fail, *, user: bool = False) -> Value:
    """Read the value at an offset from an address; structs and arrays are their address.

    ``user``: the address is a program's, and so are those that are read there.
    """
    kind = member.kind
    if member.bits:
        assert isinstance(kind, IntegerType) or kind == boolean
        storage, at = _storage(member, fail)
        found = read(emit, base, present, Field("", storage, at), fail, user=user)
        assert isinstance(found, Maybe)
        return Maybe(found.present, Scalar(_bits(operators.convert(found.value.expr, u64), member, member.offset - at)))
    offset = member.offset // 8
    address = ir.Binary("+", base, ir.Const(offset, u64)) if offset else base
    if isinstance(kind, Layout):
        if isinstance(kind, OpaqueType):
            raise fail(f"{kind} cannot be computed with in a handler", "")
        pointer = PointerType(kind.element if isinstance(kind, ArrayType) else kind, user)
        address = operators.convert(address, pointer)
        here = Array(address, kind.count) if isinstance(kind, ArrayType) and kind.count else Scalar(address)
        return here if present == ir.TRUE else Maybe(present, here)
    whole = u8 if kind == boolean else replace(kind, user=True) if user and isinstance(kind, PointerType) else kind
    address = reached(operators.convert(address, PointerType(user=True))) if user else address
    readable, target = emit.temporary(boolean), emit.temporary(whole)
    emit.add(ir.Assign(readable, ir.FALSE))
    with emit.when(present):
        emit.add(ir.Read(readable, target, address))
    is_true = ir.Compare("!=", operators.convert(target, u64), ir.Const(0, u64))
    return Maybe(readable, Scalar(is_true if kind == boolean else target))


def _storage(member: Field, fail: Fail) -> tuple[IntegerType, int]:
    """Return the least whole number that has all of a bit-field, and its place in bits."""
    for size in (1, 2, 4, 8):
        at = member.offset // (8 * size) * 8 * size
        if member.offset + member.bits <= at + 8 * size:
            return IntegerType(8 * size, signed=False), at
    raise fail(f"{member.name} lies across two words", "")


def _bits(word: ir.Expr, member: Field, shift: int) -> ir.Expr:
    """Return the value of a bit-field out of a ``u64``."""
    kind = member.kind
    signed = isinstance(kind, IntegerType) and kind.signed
    wide = i64 if signed else u64
    up = ir.Binary("<<", operators.convert(word, wide), ir.Const(64 - shift - member.bits, u64))
    down = ir.Binary(">>", up, ir.Const(64 - member.bits, u64))
    if kind == boolean:
        return ir.Compare("!=", down, ir.Const(0, u64))
    assert not isinstance(kind, Layout)
    return operators.convert(down, kind)


def member_of(kind: StructType, name: str, fail: Fail) -> Field:
    """Return the member of a name; fail with the nearest names where there is none."""
    found = kind.member(name)
    if found is not None:
        return found
    names = [each.name for each in kind.members()]
    import difflib

    near = difflib.get_close_matches(name, names, 3) or names[:12]
    if not names:
        raise fail(f"nothing is known of what is in {kind}", "ptr[u64](…)[0] for the words at the address")
    raise fail(f"{kind} has no {name}", " or ".join(near))


def unpacked(value: Packed, member: Field, fail: Fail) -> Value:
    """Return a member of a struct that is in words."""
    kind, at = member.kind, value.offset + member.offset
    if isinstance(kind, OpaqueType):
        raise fail(f"{kind} cannot be computed with in a handler", "")
    if isinstance(kind, Layout):
        return Packed(kind, value.words, at)
    size = member.bits or 8 * kind.size
    word = _words_at(value, at, size)
    return Scalar(_bits(word, member, 0) if member.bits else received(word, kind))


def word_at(value: Packed, bit: int, byte: Field) -> ir.Expr:
    """Return a byte of a struct that is in words, as a ``u64``."""
    return ir.Binary("&", _words_at(value, value.offset + bit, 8 * byte.kind.size), ir.Const(0xFF, u64))


def _words_at(value: Packed, at: int, size: int) -> ir.Expr:
    """Return 64 bits that begin with those of a member."""
    index, shift = divmod(at, 64)
    low = value.words[index]
    if shift == 0:
        return low
    expr: ir.Expr = ir.Binary(">>", low, ir.Const(shift, u64))
    if shift + size > 64:
        expr = ir.Binary("|", expr, ir.Binary("<<", value.words[index + 1], ir.Const(64 - shift, u64)))
    return expr


def received(word: ir.Expr, kind: Type) -> ir.Expr:
    """Return what arrives in a 64-bit word as a value of its type; bits above it mean nothing."""
    if kind == boolean:
        low = ir.Binary("&", word, ir.Const(0xFF, u64))
        return ir.Compare("!=", low, ir.Const(0, u64))
    if isinstance(kind, FloatType):
        return ir.Bits(word, kind)
    return operators.convert(word, kind)
