"""Members as handlers write them: ``p.name`` is read, ``p.name = value`` changes the program's memory."""

import ast
from typing import TYPE_CHECKING

from anyprobe.handlers.frontend import operators, variants
from anyprobe.handlers.frontend.context import UNCHANGED
from anyprobe.handlers.frontend.members import member_of, read, unpacked
from anyprobe.handlers.frontend.values import Maybe, Packed, Scalar, Value, described
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import Layout, PointerType, boolean, u8, u64
from anyprobe.handlers.types.layouts import StructType

if TYPE_CHECKING:
    from anyprobe.handlers.frontend.expressions import Expressions


def attribute(expressions: "Expressions", node: ast.AST, value: Value, name: str) -> Value:
    """Compile ``value.name``, or ``value["name"]``."""
    emit, fail = expressions.emit, expressions.frame.fail_at(node)

    def demand(each: Value) -> object:
        return expressions.present(each, node)

    if isinstance(value, Packed) and isinstance(value.kind, StructType):
        if found := variants.attribute(emit, value, value.kind, name, fail, demand):
            return found
        return unpacked(value, member_of(value.kind, name, fail), fail)
    pointer = value.value if isinstance(value, Maybe) else value
    if not isinstance(pointer, Scalar) or not isinstance(pointer.type, PointerType):
        raise fail(unknown_result(expressions, node) or f"{described(value)} has no {name} in a handler", "")
    kind = pointer.type.element
    if not isinstance(kind, StructType):
        raise fail(f"{pointer.type} points at no struct, so it has no {name}", 'ptr[Struct("name", member=u32)]')
    if found := variants.attribute(emit, value, kind, name, fail, demand):
        return found
    member = member_of(kind, name, fail)
    base = operators.convert(pointer.expr, u64)
    present = value.present if isinstance(value, Maybe) else ir.TRUE
    return read(emit, base, present, member, fail, user=pointer.type.user)


def unknown_result(expressions: "Expressions", node: ast.AST) -> str:
    """Return why nothing is known of what ``ctx.retval`` in an expression is, if that is what the expression uses."""
    used = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in ast.walk(node)}
    return expressions.context.unknown_result() if "retval" in used else ""


def change(expressions: "Expressions", node: ast.AST, value: Value, name: str, new: Value) -> None:
    """Compile ``value.name = new``, which changes the program's memory."""
    fail = expressions.frame.fail_at(node)
    if isinstance(value, Packed):
        raise fail("a struct that was passed by value cannot be changed", "ctx.regs")
    if expressions.context.kernel is not None:
        raise fail(UNCHANGED, "")
    if not expressions.context.unsafe:
        raise fail("this changes what the program computes", "unsafe=True, where the session is opened")
    pointer = expressions.present(value, node)
    assert isinstance(pointer, Scalar)
    assert isinstance(pointer.type, PointerType)
    assert isinstance(pointer.type.element, StructType)
    member = member_of(pointer.type.element, name, fail)
    if member.bits or isinstance(member.kind, Layout):
        raise fail(f"{name} is a {'bit-field' if member.bits else member.kind}, which cannot be changed at once", "")
    given = expressions.present(new, node)
    if member.kind == boolean:
        number = ir.Select(operators.truth(given, fail), ir.Const(1, u8), ir.Const(0, u8))
        expr: ir.Expr = number
    else:
        expr = expressions.as_number(given, node, member.kind)
    address = ir.Binary("+", operators.convert(pointer.expr, u64), ir.Const(member.offset // 8, u64))
    expressions.emit.add(ir.Write(address, expr))
