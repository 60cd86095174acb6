"""Texts and bytes of the program: read by an address, or taken out of the registers that a struct was passed in."""

import ast
from typing import TYPE_CHECKING

from anyprobe.handlers.frontend import extents, interfaces, members, operators
from anyprobe.handlers.frontend.buffers import USUAL, new_buffer
from anyprobe.handlers.frontend.values import Array, Literal, Maybe, Packed, Scalar, Text, Thing, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import ranges
from anyprobe.handlers.types.annotations import PointerType, boolean, func, gotype, i8, i64, stack, u64
from anyprobe.handlers.types.layouts import ArrayType, Field

if TYPE_CHECKING:
    from anyprobe.handlers.frontend.expressions import Expressions

LIMIT = 128
"""Bytes that one text may have."""
_PACKED_LIMIT = 64
"""The most bytes of a text that is in registers, or in a struct that was passed on the stack."""


def read(expressions: "Expressions", node: ast.Call, given: list[ast.expr], *, terminated: bool) -> Value:
    """Compile ``cstr(address)``, ``cstr(address, most)``, ``buf(address, size)`` and ``buf(address, size, most)``.

    Of an array no more is read than it has. A size that is not known is cut to what may be read at once.
    """
    value = expressions.operand(given[0])
    if extents.extent_of(value) is not None:
        asked, most = _length(expressions, given, LIMIT, terminated=terminated)
        return extents.text_of(expressions, node, value, most, asked)
    if isinstance(value, Packed) and isinstance(value.kind, ArrayType) and value.kind.element.size == 1:
        return _packed(expressions, node, value, given, terminated=terminated)
    pointer = expressions.as_number(value, given[0])
    if pointer.type == gotype or (pointer.type != u64 and not isinstance(pointer.type, PointerType)):
        raise expressions.error(given[0], f"{pointer.type} is no address", "a parameter of type ptr, or ptr(…)")
    room = _room(value)
    length, most = _length(expressions, given, room, terminated=terminated)
    return _read(expressions, node, pointer, length, most, terminated=terminated)


def shown(expressions: "Expressions", node: ast.AST, value: Value) -> Value:
    """Return what a value is where values are shown, or are keys: an array of characters is its text.

    Strings of Go and Rust are their text, as long as they say, and interfaces of Go the type of their value. ``func``
    without an argument is the probed function, ``ctx.func``, and ``stack`` is ``ctx.ustack()``.
    """
    here = value.value if isinstance(value, Maybe) else value
    if isinstance(value, Thing) and value.thing in (func, stack):
        return expressions.present(value, node)
    if interfaces.way_to_type(value):
        return interfaces.settled(expressions.emit, value, expressions.frame.fail_at(node))
    if extents.is_text(value):
        return extents.text_of(expressions, node, value, USUAL)
    if isinstance(here, Packed) and isinstance(here.kind, ArrayType) and here.kind.element == i8 and here.kind.count:
        return _packed(expressions, node, here, [], terminated=True)
    if not isinstance(here, Array) or not isinstance(here.type, PointerType) or here.type.element != i8:
        return value
    present = expressions.present(value, node)
    assert isinstance(present, Scalar)
    most = min(here.count, LIMIT)
    return _read(expressions, node, present.expr, ir.Const(most, u64), most, terminated=True)


def at_address(expressions: "Expressions", node: ast.AST, pointer: ir.Expr) -> Text:
    """Return the text at an address, of usual length."""
    return _read(expressions, node, pointer, ir.Const(USUAL, u64), USUAL, terminated=True)


def _room(value: Value) -> int:
    """Return how many bytes there are at an address, as far as that is known."""
    if isinstance(value, Array) and isinstance(value.type, PointerType) and value.type.element is not None:
        return min(value.count * value.type.element.size, LIMIT)
    return LIMIT


def _length(expressions: "Expressions", given: list[ast.expr], room: int, *, terminated: bool) -> tuple[ir.Expr, int]:
    """Return how many bytes are read, and a constant that this does not exceed."""
    emit = expressions.emit
    bound = _bound(expressions, given[2]) if len(given) > 2 else LIMIT
    if len(given) < 2:
        most = room if room < LIMIT or not terminated else USUAL
        return ir.Const(most, u64), most
    asked = expressions.operand(given[1])
    if isinstance(asked, Literal):
        most = min(_checked(expressions, given[1], asked.value), bound, room)
        return ir.Const(most, u64), most
    size = emit.keep(operators.widened(expressions.as_number(asked, given[1])))
    known = ranges.of(size, emit.flow.known)
    most = min(bound, room, int(known[1]) if known is not None and known[1] > 0 else LIMIT)
    if known is not None and known[0] >= 0 and 0 < known[1] <= most:
        return operators.convert(size, u64), int(known[1])
    limit = ir.Const(most, u64)
    length = operators.convert(size, u64)
    if size.type != u64:  # what is negative is nothing
        length = ir.Select(ir.Compare("<", size, ir.Const(0, size.type)), ir.Const(0, u64), length)
    length = emit.keep(length)
    return ir.Select(ir.Compare("<", length, limit), length, limit), most


def _bound(expressions: "Expressions", node: ast.expr) -> int:
    value = expressions.operand(node)
    if not isinstance(value, Literal):
        raise expressions.error(node, "the bound has to be constant", "buf(p, n, 64)")
    return _checked(expressions, node, value.value)


def _checked(expressions: "Expressions", node: ast.expr, size: object) -> int:
    if not isinstance(size, int) or not 0 < size <= LIMIT:
        what = f"at most {LIMIT} bytes can be read at once"
        raise expressions.error(node, what, f"several: cstr(p, {LIMIT}), cstr(p + {LIMIT}, {LIMIT})")
    return size


def _read(
    expressions: "Expressions", node: ast.AST, pointer: ir.Expr, length: ir.Expr, most: int, *, terminated: bool
) -> Text:
    emit, buffer = expressions.emit, new_buffer(expressions.emit, expressions.frame.fail_at(node), most)
    present, found = emit.temporary(boolean), emit.length()
    emit.add(ir.ReadBytes(present, found, buffer, members.reached(pointer), length, terminated))
    emit.flow.known[found.name] = (0, most)
    return Text(present, buffer, found, terminated)


def _packed(
    expressions: "Expressions", node: ast.AST, value: Packed, given: list[ast.expr], *, terminated: bool
) -> Text:
    """Return bytes that are in words already: those after the end are zeros, as they are when they are read."""
    assert isinstance(value.kind, ArrayType)
    emit, count = expressions.emit, min(value.kind.count, _PACKED_LIMIT)
    if len(given) > 1:
        asked = expressions.operand(given[1])
        if not isinstance(asked, Literal):
            raise expressions.error(given[1], "of an array that was passed by value a constant number is read", "16")
        count = min(count, _checked(expressions, given[1], asked.value))
    buffer = new_buffer(expressions.emit, expressions.frame.fail_at(node), count)
    byte = Field("", value.kind.element, 0)
    parts = [members.word_at(value, 8 * at, byte) for at in range(count)]
    length: ir.Expr = ir.Const(count, i64)
    if terminated:
        for at in reversed(range(count)):
            ends = ir.Compare("==", parts[at], ir.Const(0, u64))
            length = ir.Select(ends, ir.Const(at, i64), length)
    found = emit.length()
    emit.add(ir.Assign(found, length))
    emit.flow.known[found.name] = (0, count)
    zero, words = ir.Const(0, u64), []
    for start in range(0, count, ir.WORD):
        word: ir.Expr = zero
        for at in range(start, min(start + ir.WORD, count)):
            moved = ir.Binary("<<", parts[at], ir.Const(8 * (at - start), u64))
            inside = ir.Select(ir.Compare("<", ir.Const(at, i64), found), moved, zero)
            word = inside if word == zero else ir.Binary("|", word, inside)
        words.append(word)
    emit.add(ir.FillBuffer(buffer, tuple(words)))
    return Text(ir.TRUE, buffer, found, terminated)
