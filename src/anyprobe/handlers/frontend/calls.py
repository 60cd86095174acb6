"""Calls in handlers: conversions, the few functions that there are, aggregations, and other handler functions."""

import ast
import builtins
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from anyprobe.data.layouts.stacks import DEPTH_LIMIT
from anyprobe.data.readers.maps import Map
from anyprobe.handlers import intrinsics
from anyprobe.handlers.frontend import extents, operators, texts
from anyprobe.handlers.frontend.collecting import Collecting
from anyprobe.handlers.frontend.context import SPECULATING
from anyprobe.handlers.frontend.expressions import Expressions, truth_of
from anyprobe.handlers.frontend.member_access import unknown_result
from anyprobe.handlers.frontend.values import Context, Items, Literal, Member, Scalar, Text, Thing, Value, described
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import FloatType, IntegerType, PointerType, Type, boolean, f64, u64

Inline = Callable[[Expressions, ast.Call, types.FunctionType, list[Value]], Value]
"""Compiles a call of another Python function in place."""
DEPTH = Literal(20)
"""How many addresses a stack has if that is not said."""


class Calls:
    """Compiles calls of one handler."""

    def __init__(self, inline: Inline, collecting: Collecting) -> None:
        """Compile calls of other functions by ``inline``, those of aggregations by ``collecting``."""
        self._inline, self._collecting = inline, collecting

    def call(self, expressions: Expressions, node: ast.Call) -> Value:
        """Compile a call."""
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            raise expressions.error(node, "print is not possible in a handler", "emit(name=value)")
        callee = expressions.value(node.func)
        match callee:
            case Member():
                return self._collecting.call(expressions, node, callee)
            case Thing(thing):
                return self._thing(expressions, node, thing)
            case Context("skip"):
                return self._skip(expressions, node)
            case Context(str() as name) if name in SPECULATING:
                return self._speculate(expressions, node, name)
            case Context("ustack" | "kstack" as which):
                return self._stack(expressions, node, which)
            case _:
                raise expressions.error(node, f"{described(callee)} cannot be called")

    def stack(self, expressions: Expressions) -> Value:
        """Compile ``stack`` without an argument: ``ctx.ustack()``."""
        return expressions.context.stack(expressions.emit, self._collecting.storages, DEPTH.value)

    def item(self, expressions: Expressions, node: ast.AST, storage: object, key: Value) -> Value:
        """Compile an item of a storage: the value of a map, or the part of an aggregation that ``add`` is called of."""
        if isinstance(storage, Map):
            return self._collecting.get_item(expressions, node, storage, key)
        return Member(storage, key)

    def set_item(self, expressions: Expressions, node: ast.AST, storage: object, key: Value, value: Value) -> None:
        """Compile an assignment to an item of a storage."""
        if not isinstance(storage, Map):
            raise expressions.error(node, f"{type(storage).__name__} has no items", ".add(value, key=(…,))")
        self._collecting.set_item(expressions, node, storage, key, value)

    def shown(self, expressions: Expressions, node: ast.AST, value: Value) -> Value:
        """Return what a value is where it is text, as an array of characters is."""
        return texts.shown(expressions, node, value)

    def _skip(self, expressions: Expressions, node: ast.Call) -> Value:
        """Compile ``ctx.skip(value, errno=n)``."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if len(node.args) > 1 or keywords.keys() - {"errno"}:
            raise expressions.error(node, "this takes the value that is returned, and errno", "ctx.skip(-1, errno=2)")
        value = expressions.number(node.args[0]) if node.args else None
        errno = expressions.number(keywords["errno"]) if keywords else None
        expressions.context.skip(expressions.emit, value, errno, expressions.frame.fail_at(node))
        return Literal(None)

    def _speculate(self, expressions: Expressions, node: ast.Call, name: str) -> Value:
        """Compile ``ctx.speculate()``, ``ctx.commit()`` and ``ctx.discard()``."""
        if node.args or node.keywords:
            raise expressions.error(node, f"ctx.{name}() takes nothing")
        self._collecting.mark(expressions, node, SPECULATING.index(name))
        return Literal(None)

    def _stack(self, expressions: Expressions, node: ast.Call, which: str) -> Value:
        """Compile ``ctx.ustack(depth, python=True)`` and ``ctx.kstack(depth)``."""
        python = bool(node.keywords) and node.keywords[-1].arg == "python"
        if python:
            chosen = expressions.value(node.keywords[-1].value)
            if which != "ustack" or expressions.context.kernel is not None or chosen != Literal(True):
                raise expressions.error(
                    node, "Python's functions are on stacks of processes", "ctx.ustack(python=True)"
                )
            node = ast.copy_location(ast.Call(node.func, node.args, node.keywords[:-1]), node)
        (inner,) = self._arguments(expressions, node, "depth") if node.args or node.keywords else (None,)
        depth = DEPTH if inner is None else expressions.value(inner)
        if not isinstance(depth, Literal) or not isinstance(depth.value, int) or not 0 < depth.value <= DEPTH_LIMIT:
            instead = f"ctx.{which}(n) with n from 1 to {DEPTH_LIMIT}"
            raise expressions.error(node, "how deep a stack is has to be constant", instead)
        return expressions.context.stack(
            expressions.emit, self._collecting.storages, depth.value, of_kernel=which == "kstack", python=python
        )

    def _thing(self, expressions: Expressions, node: ast.Call, thing: Any) -> Value:  # noqa: ANN401 - anything callable
        if isinstance(thing, Type):
            return self._convert(expressions, node, thing)
        simple = {
            builtins.bool: self._bool, builtins.float: self._float, builtins.int: self._int, builtins.abs: self._abs,
            builtins.len: self._len, builtins.min: self._extreme, builtins.max: self._extreme,
            intrinsics.cstr: self._text, intrinsics.buf: self._text, intrinsics.shown: self._shown,
        }  # fmt: skip
        if thing is range:
            raise expressions.error(node, "range is for loops", "for i in range(n)")
        if thing in {intrinsics.emit, intrinsics.emit_partial, intrinsics.printf}:
            return self._collecting.record(expressions, node, thing)
        if thing in simple:
            return simple[thing](expressions, node, thing)
        thing = getattr(thing, "__wrapped__", thing)
        if isinstance(thing, types.FunctionType):
            if any(keyword.arg is None for keyword in node.keywords):
                raise expressions.error(node, "** is not possible in a handler")
            return self._inline(expressions, node, thing, [expressions.value(each) for each in node.args])
        name = getattr(thing, "__name__", repr(thing))
        raise expressions.error(node, f"{name} cannot be called in a handler", "a Python function of your own")

    def _arguments(self, expressions: Expressions, node: ast.Call, names: str) -> list[ast.expr]:
        """Return the arguments, of which there have to be as many as names."""
        wanted = names.split()
        found = [*node.args, *(keyword.value for keyword in node.keywords)]
        order = [keyword.arg for keyword in node.keywords] == wanted[len(node.args) :]
        if len(found) != len(wanted) or not order:
            raise expressions.error(node, f"this takes {len(wanted)} argument{'s' * (len(wanted) > 1)}: {names}")
        return found

    # -- conversions

    def _convert(self, expressions: Expressions, node: ast.Call, kind: Type) -> Value:
        (inner,) = self._arguments(expressions, node, "value")
        if kind == boolean:
            return truth_of(expressions.condition(inner))
        value = expressions.operand(inner)
        fail = expressions.frame.fail_at(node)
        if isinstance(value, Literal):
            if not isinstance(value.value, int | float):
                raise fail(f"{value.value!r} is no number", "")
            return Scalar(_constant(value.value, kind))
        expr = expressions.as_number(value, inner)
        if isinstance(expr.type, FloatType) and isinstance(kind, PointerType):
            raise fail(f"a {expr.type} is no address", "u64(…) first")
        if isinstance(kind, PointerType) and isinstance(expr.type, PointerType) and expr.type.user:
            kind = replace(kind, user=True)
        return Scalar(operators.convert(expr, kind))

    def _bool(self, expressions: Expressions, node: ast.Call, _thing: object) -> Value:
        return self._convert(expressions, node, boolean)

    def _float(self, expressions: Expressions, node: ast.Call, _thing: object) -> Value:
        return self._convert(expressions, node, f64)

    def _int(self, expressions: Expressions, node: ast.Call, _thing: object) -> Value:
        raise expressions.error(node, "int has no width", "i64(…), u64(…) or another of fixed width")

    # -- numbers

    def _abs(self, expressions: Expressions, node: ast.Call, _thing: object) -> Value:
        (inner,) = self._arguments(expressions, node, "value")
        value = expressions.operand(inner)
        if isinstance(value, Literal) and isinstance(value.value, int | float):
            return Literal(abs(value.value))
        expr = expressions.as_number(value, inner)
        if isinstance(expr.type, PointerType):
            raise expressions.error(node, "abs of a pointer")
        expr = expressions.emit.keep(expr if isinstance(expr.type, FloatType) else operators.widened(expr))
        if expr.type == u64:
            return Scalar(expr)
        if isinstance(expr.type, FloatType):
            return Scalar(ir.Unary("abs", expr))
        negative = ir.Compare("<", expr, ir.Const(0, expr.type))
        return Scalar(ir.Select(negative, ir.Unary("-", expr), expr))

    def _len(self, expressions: Expressions, node: ast.Call, _thing: object) -> Value:
        (inner,) = self._arguments(expressions, node, "value")
        value = expressions.operand(inner)
        if extents.extent_of(value) is not None:
            return extents.length_of(expressions, node, value)
        if extents.counter_of(value) is not None:
            return extents.count_of(expressions, node, value)
        match value:
            case Text(whole=ir.Local() as whole):
                return Scalar(whole)
            case Text(length=length):
                return Scalar(length)
            case Items(items):
                return Literal(len(items))
            case Literal(str() | bytes() as constant):
                return Literal(len(constant))
            case _:
                unknown = unknown_result(expressions, inner)
                raise expressions.error(node, unknown or f"{described(value)} has no length")

    def _extreme(self, expressions: Expressions, node: ast.Call, thing: object) -> Value:
        """Compile ``min`` and ``max``: like Python's, the first of equal ones."""
        if len(node.args) < 2 or node.keywords:
            raise expressions.error(node, "min and max of two or more values")
        symbol = "<" if thing is builtins.min else ">"
        fail = expressions.frame.fail_at(node)
        values = [expressions.value(each) for each in node.args]
        total, *others = [expressions.present(value, each) for value, each in zip(values, node.args, strict=True)]
        for value in others:
            if isinstance(total, Literal) and isinstance(value, Literal):
                better = operators.constants(symbol, value.value, total.value, fail).value
                total = value if better else total
                continue
            left, right = (expressions.emit.keep(expr) for expr in operators.common(total, value, fail))
            total = Scalar(ir.Select(ir.Compare(symbol, right, left), right, left))
        return total

    # -- memory

    def _text(self, expressions: Expressions, node: ast.Call, thing: object) -> Value:
        """Compile ``cstr`` and ``buf``."""
        terminated = thing is intrinsics.cstr
        most = 2 if terminated else 3
        if len(node.args) + len(node.keywords) in {1, 2}:
            wanted = "address limit" if terminated else "address size"
            wanted = wanted if len(node.args) + len(node.keywords) == 2 else "address"
        else:
            wanted = "address limit" if most == 2 else "address size limit"
        given = self._arguments(expressions, node, wanted)
        return texts.read(expressions, node, given, terminated=terminated)

    def _shown(self, expressions: Expressions, node: ast.Call, thing: object) -> Value:  # noqa: ARG002 - as the others
        """Compile ``shown``."""
        (inner,) = self._arguments(expressions, node, "value")
        return texts.shown(expressions, node, expressions.value(inner))


def _constant(value: float, kind: Type) -> ir.Const:
    """Return a constant converted as a value would be."""
    if isinstance(kind, FloatType):
        return ir.Const(kind(value), kind)
    if isinstance(value, float):
        from anyprobe.handlers.ir.arithmetic import float_to_integer

        return ir.Const(float_to_integer(kind, value) if isinstance(kind, IntegerType) else 0, kind)
    return ir.Const(kind.wrap(value) if isinstance(kind, IntegerType) else u64.wrap(value), kind)
