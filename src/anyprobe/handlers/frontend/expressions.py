"""Expressions of handlers: from the syntax tree to pure expressions; code with effects is emitted before them."""

import ast
import types
from dataclasses import replace
from typing import Any, Protocol

from anyprobe.handlers.frontend import extents, interfaces, member_access, members, operators
from anyprobe.handlers.frontend.context import ContextAccess
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.frame import Frame, Notes
from anyprobe.handlers.frontend.values import (
    Alias,
    Array,
    Context,
    Items,
    Kind,
    Literal,
    Maybe,
    Member,
    Packed,
    Scalar,
    Text,
    Thing,
    Value,
    described,
)  # fmt: skip
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import ranges
from anyprobe.handlers.types.annotations import (
    BoolType,
    IntegerType,
    Layout,
    PointerType,
    Type,
    boolean,
    func,
    gotype,
    i64,
    stack,
    u64,
)
from anyprobe.handlers.types.layouts import Field
from anyprobe.handlers.types.storages import is_storage

_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_UNARY = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}
_NOT_ALLOWED = {
    ast.Lambda: ("a function inside of a handler", "a function of its own, outside"),
    ast.ListComp: ("a list", "a for loop"),
    ast.List: ("a list", "a tuple, or a Map"),
    ast.Dict: ("a dictionary", "a Map outside of the handler"),
    ast.Set: ("a set", "a Map outside of the handler"),
    ast.GeneratorExp: ("a generator", "a for loop"),
    ast.Await: ("await", ""),
    ast.Yield: ("yield", ""),
    ast.NamedExpr: (":=", "an assignment of its own"),
    ast.JoinedStr: ("an f-string", "emit(name=value), and the formatting where it is read"),
}


class Expressions:
    """Compiles the expressions of one function."""

    def __init__(
        self, emit: Emitter, frame: Frame, notes: Notes, context: ContextAccess, calls: "CallCompiler"
    ) -> None:
        """Emit into ``emit``; calls are compiled by ``calls``."""
        self.emit, self.frame, self.notes, self.context, self.calls = emit, frame, notes, context, calls

    def value(self, node: ast.expr) -> Value:
        """Compile an expression."""
        match node:
            case ast.Constant(constant):
                if isinstance(constant, complex) or constant is Ellipsis:
                    raise self.error(node, f"{constant!r} is no value of handlers")
                return Literal(constant)
            case ast.Name():
                return self._name(node)
            case ast.Attribute(inner, attribute):
                return self._attribute(node, self.value(inner), attribute)
            case ast.Subscript(inner, index):
                return self._subscript(node, self.value(inner), index)
            case ast.Tuple(items):
                return Items(tuple(self.value(item) for item in items))
            case ast.BinOp(left, symbol, right):
                if type(symbol) not in _BINARY:
                    raise self.error(node, "matrices are not possible in a handler")
                sides = self.both(left, right)
                return operators.arithmetic(self.emit, _BINARY[type(symbol)], *sides, self.frame.fail_at(node))
            case ast.UnaryOp(ast.Not(), inner):
                return truth_of(_not(self.condition(inner)))
            case ast.UnaryOp(symbol, inner):
                return operators.negated(_UNARY[type(symbol)], self.operand(inner), self.frame.fail_at(node))
            case ast.Compare():
                return self._comparison(node)
            case ast.BoolOp():
                for part in node.values:
                    self._require_boolean(node, part)
                return truth_of(self.condition(node))
            case ast.IfExp():
                return self._conditional(node)
            case ast.Call():
                return self.calls.call(self, node)
            case _:
                return self._refuse(node)

    def error(self, node: ast.AST, message: str, instead: str = "") -> Exception:
        """Return the error for a node."""
        return self.frame.source.error(node, message, instead)

    def _refuse(self, node: ast.AST) -> Value:
        what, instead = _NOT_ALLOWED.get(type(node), (type(node).__name__, ""))
        raise self.error(node, f"{what} is not possible in a handler", instead)

    # -- names

    def _name(self, node: ast.Name) -> Value:
        local = self.frame.lookup(self.emit, node)
        if local is not None:
            return local
        try:
            return self._thing(self.frame.source.captured(node.id))
        except KeyError:
            raise self.error(node, f"{node.id} is not defined", f"from anyprobe import {node.id}") from None

    def _thing(self, thing: Any) -> Value:  # noqa: ANN401 - anything that Python code can name
        """Return what an object from outside of the handler is inside."""
        if thing is None or isinstance(thing, bool | int | float | str | bytes):
            return Literal(int(thing) if isinstance(thing, int) and type(thing) not in {bool, int} else thing)
        if isinstance(thing, tuple):
            return Items(tuple(self._thing(each) for each in thing))
        return Member(thing) if is_storage(thing) else Thing(thing)

    def _attribute(self, node: ast.Attribute, value: Value, attribute: str) -> Value:
        match value:
            case Context(part):
                return self.context.read(self.emit, part, attribute, self.frame.fail_at(node))
            case Member(storage, key, ""):
                return Member(storage, key, attribute)
            case Thing(types.ModuleType() | type() as thing):
                if not hasattr(thing, attribute):
                    from difflib import get_close_matches

                    near = get_close_matches(attribute, [each for each in dir(thing) if not each.startswith("_")])
                    raise self.error(node, f"{thing.__name__} has no {attribute}", " or ".join(near))
                found = getattr(thing, attribute)
                return self._aliased(node, found) if isinstance(found, Alias) else self._thing(found)
            case _:
                return member_access.attribute(self, node, value, attribute)

    def _aliased(self, node: ast.Attribute, alias: Alias) -> Value:
        value: Value = Context()
        for name in alias.path:
            value = self._attribute(node, value, name)
        return value

    # -- values that may be missing

    def operand(self, node: ast.expr) -> Value:
        """Compile an expression whose value is computed with: where it is missing, the handler ends."""
        return self.present(self._settled(node), node)

    def _settled(self, node: ast.expr) -> Value:
        return interfaces.settled(self.emit, self.value(node), self.frame.fail_at(node))

    def present(self, value: Value, node: ast.AST) -> Value:
        """Return a value that is there; where it is missing, the handler ends and that is counted."""
        if value == Literal(None):
            raise self.error(node, "None is no number", "x is None, x is not None")
        if isinstance(value, Thing) and value.thing is func:
            return self.present(self.context.read(self.emit, "", "func", self.frame.fail_at(node)), node)
        if isinstance(value, Thing) and value.thing is stack:
            return self.calls.stack(self)
        if not isinstance(value, Maybe | Text):
            return value
        self.emit.demand(value.present, self.frame.source.shown(node))
        return value.value if isinstance(value, Maybe) else value

    def both(self, left: ast.expr, right: ast.expr) -> tuple[Value, Value]:
        """Compile two operands; as in Python, both are evaluated before anything is done with either."""
        first = self._settled(left)
        second = self._settled(right)
        return self.present(first, left), self.present(second, right)

    def number(self, node: ast.expr, kind: Type | None = None) -> ir.Expr:
        """Compile an expression to a number, converted to ``kind`` if that is given."""
        return self.as_number(self.operand(node), node, kind)

    def as_number(self, value: Value, node: ast.AST, kind: Type | None = None) -> ir.Expr:
        """Return a value as a number."""
        fail = self.frame.fail_at(node)
        if isinstance(value, Literal):
            return operators.natural(value.value, fail) if kind is None else operators.typed(value.value, kind, fail)
        if not isinstance(value, Scalar):
            raise fail(f"{described(value)} is no number", "")
        return value.expr if kind is None else operators.convert(value.expr, kind)

    # -- conditions

    def condition(self, node: ast.expr) -> ir.Expr:
        """Compile an expression to whether it is true."""
        if isinstance(node, ast.BoolOp):
            return self._logic(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _not(self.condition(node.operand))
        return operators.truth(self.operand(node), self.frame.fail_at(node))

    def _logic(self, node: ast.BoolOp) -> ir.Expr:
        """Compile ``and`` and ``or``: what stands further right is evaluated only if it decides."""
        conjunction = isinstance(node.op, ast.And)
        total = self.condition(node.values[0])
        for part in node.values[1:]:
            total = self._both(total, part) if conjunction else _not(self._both(_not(total), part, negate=True))
        return total

    def _both(self, left: ir.Expr, right: ast.expr, *, negate: bool = False) -> ir.Expr:
        """Compile ``left and right``; with ``negate``, ``left and not right``."""
        if left == ir.FALSE:
            return ir.FALSE
        before = self.emit.flow.copy()
        ranges.refine(left, truth=True, known=self.emit.flow.known)
        with self.emit.collected() as statements:
            expr = self.condition(right)
            expr = _not(expr) if negate else expr
        if left == ir.TRUE:
            for each in statements:
                self.emit.splice(each)
            return expr
        if not statements:
            self.emit.flow = before
            return ir.Binary("&", left, expr)
        result = self.emit.temporary(boolean)
        inner = self.emit.flow
        with self.emit.collected() as assign:
            self.emit.add(ir.Assign(result, expr))
        self.emit.flow = before.copy()
        test = self.emit.keep(left)
        self.emit.add(ir.Assign(result, ir.FALSE))
        self.emit.splice(ir.If(test, (*statements, *assign)))
        self.emit.flow.become([inner, before])
        return result

    def _require_boolean(self, node: ast.AST, part: ast.expr) -> None:
        """Refuse ``a or b`` of numbers as a value: Python yields one of them, a condition yields whether."""
        boolean_syntax = isinstance(part, ast.Compare | ast.BoolOp) or (
            isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not)
        )
        if boolean_syntax:
            return
        before = self.emit.flow.copy()
        with self.emit.collected():
            value = self.value(part)
        self.emit.flow = before
        if isinstance(value, Literal) and isinstance(value.value, bool):
            return
        if not isinstance(value, Scalar) or value.type != boolean:
            raise self.error(node, "and, or: of conditions only", "a if a else b, or: x != 0 and y != 0")

    def _conditional(self, node: ast.IfExp) -> Value:
        test = self.condition(node.test)
        test = test if test in {ir.TRUE, ir.FALSE} else self.emit.keep(test)
        before = self.emit.flow.copy()
        ranges.refine(test, truth=True, known=self.emit.flow.known)
        with self.emit.collected() as then:
            first = self.operand(node.body)
        then_flow, self.emit.flow = self.emit.flow, before.copy()
        ranges.refine(test, truth=False, known=self.emit.flow.known)
        with self.emit.collected() as orelse:
            second = self.operand(node.orelse)
        orelse_flow, self.emit.flow = self.emit.flow, before
        exprs = operators.common(first, second, self.frame.fail_at(node))
        self.frame.note(self.notes, node, Kind(exprs[0].type))
        if not then and not orelse:
            return Scalar(ir.Select(test, *exprs))
        result = self.emit.temporary(exprs[0].type)
        ways = []
        for flow, statements, expr in ((then_flow, then, exprs[0]), (orelse_flow, orelse, exprs[1])):
            self.emit.flow = flow
            with self.emit.collected() as assign:
                self.emit.add(ir.Assign(result, expr))
            statements.extend(assign)
            ways.append(self.emit.flow)
        self.emit.flow = before
        self.emit.splice(ir.If(test, tuple(then), tuple(orelse)))
        self.emit.flow.become(ways)
        return Scalar(result)

    def _comparison(self, node: ast.Compare) -> Value:
        """Compile a comparison, or a chain of them: each operand is computed once, all of them."""
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot):
            return self._is_none(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            return self._contained(node)
        operands = [*self.both(node.left, node.comparators[0])]
        for each in node.comparators[1:]:
            with self.emit.collected() as statements:
                operands.append(self.operand(each))
            if statements:
                raise self.error(each, "evaluated only if what stands left of it is true", "a < b and b < c")
        total: ir.Expr = ir.TRUE
        for left, symbol, right in zip(operands, node.ops, operands[1:], strict=False):
            if type(symbol) not in _COMPARE:
                raise self.error(node, "in, is: not in chains", "a and b")
            found = self._compare(_COMPARE[type(symbol)], left, right, node)
            expr = operators.truth(found, self.frame.fail_at(node))
            if len(node.ops) == 1:
                return found
            total = expr if total == ir.TRUE else ir.Binary("&", total, expr)
        return truth_of(total)

    def _compare(self, symbol: str, left: Value, right: Value, node: ast.AST) -> Value:
        left, right = self._text(left, right, node), self._text(right, left, node)
        if extents.is_compared(left, right):
            left, right = (
                self.present(extents.text_of(self, node, each), node) if extents.is_text(each) else each
                for each in (left, right)
            )
        if isinstance(left, Text) or isinstance(right, Text):
            return self._compare_text(symbol, left, right, node)
        if all(isinstance(each, Scalar) and each.type == gotype for each in (left, right)):
            raise self.error(node, "what is in interfaces is not compared", "u64(a) == u64(b), of their types")
        return operators.compare(symbol, left, right, self.frame.fail_at(node))

    def _text(self, value: Value, other: Value, node: ast.AST) -> Value:
        """Return the text of an array of characters that is compared with a constant text, any other value as it is."""
        if not isinstance(other, Literal) or not isinstance(other.value, str | bytes):
            return value
        here = value.value if isinstance(value, Maybe) else value
        found = self.calls.shown(self, node, value) if isinstance(here, Array | Packed) else value
        return found if isinstance(found, Text) else value

    def _compare_text(self, symbol: str, left: Value, right: Value, node: ast.AST) -> Value:
        text, other = (left, right) if isinstance(left, Text) else (right, left)
        assert isinstance(text, Text)
        if symbol not in {"==", "!="} or not isinstance(other, Literal) or not isinstance(other.value, str | bytes):
            raise self.error(node, "text is compared with constants only, by == and !=", 'name == "GET"')
        wanted = other.value.encode() if isinstance(other.value, str) else other.value
        if len(wanted) > text.buffer.size or (text.terminated and 0 in wanted):
            return Literal(symbol == "!=")
        size = min(text.buffer.size, -(-(len(wanted) + 1) // ir.WORD) * ir.WORD)
        padded = wanted.ljust(size, b"\0")
        words = tuple(int.from_bytes(padded[at : at + 8], "little") for at in range(0, size, 8))
        equal = self.emit.temporary(boolean)
        self.emit.add(ir.BufferEquals(equal, text.buffer, words))
        # zeros after the end look like zeros that were read
        length = text.length if text.whole is None else text.whole
        same = ir.Binary("&", equal, ir.Compare("==", length, ir.Const(len(wanted), i64)))
        return Scalar(same if symbol == "==" else _not(same))

    def _contained(self, node: ast.Compare) -> Value:
        left, items = self.operand(node.left), self.value(node.comparators[0])
        if not isinstance(items, Items):
            raise self.error(node, "in: of tuples only", "x in (1, 2, 3)")
        total: ir.Expr = ir.FALSE
        fail = self.frame.fail_at(node)
        for item in items.items:
            if isinstance(item, Maybe | Text):
                raise self.error(node, f"in a tuple with what is {described(item)}", "x == a or x == b")
            expr = operators.truth(self._compare("==", left, item, node), fail)
            total = expr if total == ir.FALSE else ir.Binary("|", total, expr)
        return truth_of(total if isinstance(node.ops[0], ast.In) else _not(total))

    def _is_none(self, node: ast.Compare) -> Value:
        left, right = self.value(node.left), self.value(node.comparators[0])
        if right != Literal(None):
            raise self.error(node, "is, is not: with None only", "==")
        if interfaces.way_to_type(left):
            raise self.error(node, "an interface is nil, not missing", "err == 0, err != 0")
        if not isinstance(left, Maybe | Text):
            raise self.error(node, f"{described(left)} is never missing", "p == 0 for a null pointer")
        return Scalar(_not(left.present) if isinstance(node.ops[0], ast.Is) else left.present)

    # -- items

    def _subscript(self, node: ast.Subscript, value: Value, index: ast.expr) -> Value:
        match value:
            case Member(storage, None, ""):
                return self.calls.item(self, node, storage, self._spilled(self.value(index)))
            case Text():
                return self._byte(self.present(value, node), index)
            case Items(items):
                at = self.value(index)
                if (
                    not isinstance(at, Literal)
                    or not isinstance(at.value, int)
                    or not -len(items) <= at.value < len(items)
                ):
                    raise self.error(index, "tuples are indexed by constants only")
                return items[at.value]
            case Thing(PointerType() as kind):
                element = self.value(index)
                if isinstance(element, Thing) and (isinstance(element.thing, Type | Layout) or element.thing is bool):
                    return Thing(kind[element.thing])
                raise self.error(index, "no such type", "ptr[u8]")
            case _ if extents.extent_of(value) is not None and not _is_name(index):
                return extents.item(self, node, value, index)
            case Packed() if not members.is_struct(value):
                return members.item(value, self.value(index), self.frame.fail_at(node))
            case _:
                if members.is_struct(value) and isinstance(index, ast.Constant) and isinstance(index.value, str):
                    return member_access.attribute(self, node, value, index.value)
                value = self.present(value, node)
                if isinstance(value, Scalar) and isinstance(value.type, PointerType):
                    return self.read(value, index, node)
                raise self.error(node, f"{described(value)} has no items")

    def _spilled(self, key: Value) -> Value:
        if isinstance(key, Items):
            return Items(tuple(self._spilled(item) for item in key.items))
        return replace(key, expr=self.emit.keep(key.expr)) if isinstance(key, Scalar) else key

    def read(self, pointer: Scalar, index: ast.expr, node: ast.AST) -> Value:
        """Read what a pointer points at."""
        assert isinstance(pointer.type, PointerType)
        element = pointer.type.element
        if element is None:
            raise self.error(node, "it is not known what this points at", "ptr[u32](p)[0], or ptr[u32] as annotation")
        moved = operators.arithmetic(self.emit, "+", pointer, self.operand(index), self.frame.fail_at(node))
        assert isinstance(moved, Scalar)
        address, user = operators.convert(moved.expr, u64), pointer.type.user
        if user or isinstance(element, Layout | BoolType):
            return members.read(self.emit, address, ir.TRUE, Field("", element, 0), self.frame.fail_at(node), user=user)
        present, target = self.emit.temporary(boolean), self.emit.temporary(element)
        self.emit.add(ir.Read(present, target, address))
        return Maybe(present, Scalar(target))

    def _byte(self, text: Value, index: ast.expr) -> Value:
        """Read one byte of a text; beyond its end it is missing."""
        assert isinstance(text, Text)
        at = self.emit.keep(operators.widened(self.number(index)))
        if not isinstance(at.type, IntegerType):
            raise self.error(index, f"an index of type {at.type}")
        target = self.emit.temporary(i64)
        self.emit.add(ir.BufferByte(target, text.buffer, operators.convert(at, u64)))
        below = ir.Compare("<", operators.convert(at, u64), operators.convert(text.length, u64))
        return Maybe(self.emit.keep(below), Scalar(target))


class CallCompiler(Protocol):
    """What compiles calls; ``calls.Calls`` is the one there is."""

    def call(self, expressions: Expressions, node: ast.Call) -> Value:
        """Compile a call."""

    def stack(self, expressions: Expressions) -> Value:
        """Compile ``stack`` without an argument."""

    def item(self, expressions: Expressions, node: ast.AST, storage: object, key: Value) -> Value:
        """Compile an item of a storage."""

    def set_item(self, expressions: Expressions, node: ast.AST, storage: object, key: Value, value: Value) -> None:
        """Compile an assignment to an item of a storage."""

    def shown(self, expressions: Expressions, node: ast.AST, value: Value) -> Value:
        """Return what a value is where it is text, as an array of characters is."""


def _not(expr: ir.Expr) -> ir.Expr:
    match expr:
        case ir.Const(value, _):
            return ir.FALSE if value else ir.TRUE
        case ir.Unary("not", operand):
            return operand
        case _:
            return ir.Unary("not", expr)


def _is_name(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and isinstance(index.value, str)


def truth_of(expr: ir.Expr) -> Value:
    """Return the value of a condition, as a literal where it is known."""
    return Literal(bool(expr.value)) if isinstance(expr, ir.Const) else Scalar(expr)
