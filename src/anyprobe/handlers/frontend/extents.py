"""Values in a row that a struct tells of: strings and slices of Go and Rust, by their address and their length."""

import ast
from typing import TYPE_CHECKING

from anyprobe.handlers.frontend import members, operators
from anyprobe.handlers.frontend.buffers import USUAL, new_buffer
from anyprobe.handlers.frontend.values import Literal, Maybe, Packed, Scalar, Text, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import BoolType, Layout, PointerType, boolean, i64, u64
from anyprobe.handlers.types.layouts import Extent, Field, StructType

if TYPE_CHECKING:
    from anyprobe.handlers.frontend.expressions import Expressions


def extent_of(value: Value) -> Extent | None:
    """Return what a value tells of: a struct with an extent, or a pointer to one."""
    here = value.value if isinstance(value, Maybe) else value
    if isinstance(here, Packed):
        return here.kind.extent if isinstance(here.kind, StructType) else None
    if isinstance(here, Scalar) and isinstance(here.type, PointerType):
        element = here.type.element
        return element.extent if isinstance(element, StructType) else None
    return None


def is_text(value: Value) -> bool:
    """Return whether a value tells of text."""
    extent = extent_of(value)
    return extent is not None and extent.is_text


def length_of(expressions: "Expressions", node: ast.AST, value: Value) -> Value:
    """Return how many values there are."""
    extent = extent_of(value)
    assert extent is not None
    found = _member(expressions, node, value, extent.length)
    if isinstance(found, Maybe):
        return Maybe(found.present, Scalar(operators.convert(found.value.expr, i64)))
    assert isinstance(found, Scalar)
    return Scalar(operators.convert(found.expr, i64))


def counter_of(value: Value) -> Field | None:
    """Return the member that says how many values there are, of a pointer that is a map or a channel of Go."""
    here = value.value if isinstance(value, Maybe) else value
    kind = here.type.element if isinstance(here, Scalar) and isinstance(here.type, PointerType) else None
    return kind.member(kind.counter) if isinstance(kind, StructType) and kind.counter else None


def count_of(expressions: "Expressions", node: ast.AST, value: Value) -> Value:
    """Return how many values are in a map or channel, none if it is nil."""
    member = counter_of(value)
    assert member is not None
    emit, pointer = expressions.emit, value.value if isinstance(value, Maybe) else value
    assert isinstance(pointer, Scalar)
    base = emit.keep(operators.convert(pointer.expr, u64))
    present = value.present if isinstance(value, Maybe) else ir.TRUE
    made = emit.keep(ir.Compare("!=", base, ir.Const(0, u64)))
    found = members.read(emit, base, ir.Binary("&", present, made), member, expressions.frame.fail_at(node))
    assert isinstance(found, Maybe)
    number = ir.Select(made, operators.convert(found.value.expr, i64), ir.Const(0, i64))
    return Maybe(ir.Select(made, found.present, present), Scalar(number))


def text_of(
    expressions: "Expressions", node: ast.AST, value: Value, most: int = USUAL, asked: ir.Expr | None = None
) -> Text:
    """Read the first bytes of what a value tells of: as many as there are, at most ``most``, and ``asked`` if given."""
    emit = expressions.emit
    there, pointer, length = _read(expressions, node, value)
    buffer = new_buffer(expressions.emit, expressions.frame.fail_at(node), most)
    limit: ir.Expr = ir.Const(most, u64) if asked is None else asked
    size = emit.keep(ir.Select(ir.Compare("<", length, limit), length, limit))
    present, found = emit.temporary(boolean), emit.length()
    if there == ir.TRUE:
        emit.add(ir.ReadBytes(present, found, buffer, pointer, size, False))
    else:
        emit.add(ir.Assign(present, ir.FALSE))
        emit.add(ir.Assign(found, ir.Const(0, i64)))
        emit.add(ir.FillBuffer(buffer, (ir.Const(0, u64),) * (buffer.size // ir.WORD)))
        with emit.when(there):
            emit.add(ir.ReadBytes(present, found, buffer, pointer, size, False))
    emit.flow.known[found.name] = (0, most)
    return Text(present, buffer, found, False, whole=emit.keep(operators.convert(length, i64)))


def item(expressions: "Expressions", node: ast.AST, value: Value, index: ast.expr) -> Value:
    """Compile ``value[index]``: missing beyond the end."""
    emit = expressions.emit
    extent = extent_of(value)
    assert extent is not None
    assert isinstance(extent.pointer.kind, PointerType)
    element = extent.pointer.kind.element
    if element is None:
        raise expressions.error(node, "it is not known of what type the items are", "")
    at = emit.keep(operators.convert(expressions.number(index), u64))
    there, pointer, length = _read(expressions, node, value)
    inside = emit.keep(ir.Binary("&", there, ir.Compare("<", at, length)))
    address = emit.keep(ir.Binary("+", pointer, ir.Binary("*", at, ir.Const(element.size, u64))))
    if isinstance(element, Layout | BoolType):
        return members.read(emit, address, inside, Field("", element, 0), expressions.frame.fail_at(node))
    present, target = emit.temporary(boolean), emit.temporary(element)
    emit.add(ir.Assign(present, ir.FALSE))
    with emit.when(inside):
        emit.add(ir.Read(present, target, address))
    return Maybe(present, Scalar(target))


def _read(expressions: "Expressions", node: ast.AST, value: Value) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
    """Return whether address and length are known, and both."""
    extent = extent_of(value)
    assert extent is not None
    emit = expressions.emit
    if isinstance(value, Scalar | Maybe):  # it is read twice
        kept = emit.keep((value.value if isinstance(value, Maybe) else value).expr)
        value = Maybe(value.present, Scalar(kept)) if isinstance(value, Maybe) else Scalar(kept)
    there: ir.Expr = ir.TRUE
    found: list[ir.Expr] = []
    for member in (extent.pointer, extent.length):
        part = _member(expressions, node, value, member)
        if isinstance(part, Maybe):
            there = part.present if there == ir.TRUE else ir.Binary("&", there, part.present)
            part = part.value
        assert isinstance(part, Scalar)
        found.append(emit.keep(operators.convert(part.expr, u64)))
    return there if there == ir.TRUE else emit.keep(there), found[0], found[1]


def _member(expressions: "Expressions", node: ast.AST, value: Value, member: Field) -> Value:
    """Return a member of a struct that is in registers, or read it where a pointer points."""
    fail = expressions.frame.fail_at(node)
    if isinstance(value, Packed):
        return members.unpacked(value, member, fail)
    pointer = value.value if isinstance(value, Maybe) else value
    assert isinstance(pointer, Scalar)
    present = value.present if isinstance(value, Maybe) else ir.TRUE
    return members.read(expressions.emit, operators.convert(pointer.expr, u64), present, member, fail)


def is_compared(left: Value, right: Value) -> bool:
    """Return whether a text that a value tells of is compared with a constant."""
    texts = [is_text(each) for each in (left, right)]
    constants = [isinstance(each, Literal) and isinstance(each.value, str | bytes) for each in (left, right)]
    return (texts[0] and constants[1]) or (texts[1] and constants[0])
