"""Statements of handlers: assignments, conditions, loops, returns."""

import ast

from anyprobe.handlers.frontend import interfaces, loops, member_access, members, operators
from anyprobe.handlers.frontend.context import UNCHANGED
from anyprobe.handlers.frontend.expressions import Expressions
from anyprobe.handlers.frontend.frame import Frame, type_of_annotation
from anyprobe.handlers.frontend.values import (
    Alias,
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
from anyprobe.handlers.ir import ranges, walk
from anyprobe.handlers.types.annotations import BoolType, FloatType, IntegerType, Layout, PointerType, u64

_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
_INSTEAD = {
    ast.Try: ("try", "a test: x is None"),
    ast.With: ("with", ""),
    ast.Raise: ("raise", "return"),
    ast.Assert: ("assert", "if"),
    ast.Global: ("global", "an aggregation, a Map, or ctx.data"),
    ast.Nonlocal: ("nonlocal", "an aggregation, a Map, or ctx.data"),
    ast.Import: ("import", "the import outside of the handler"),
    ast.ImportFrom: ("import", "the import outside of the handler"),
    ast.FunctionDef: ("a function inside of a handler", "a function of its own, outside"),
    ast.ClassDef: ("a class", ""),
    ast.Delete: ("del", "the method delete of a Map"),
    ast.Match: ("match", "if and elif"),
}


class Statements:
    """Compiles the statements of one function."""

    def __init__(self, expressions: Expressions) -> None:
        """Compile with the expressions of the same function."""
        self._expressions, self._emit = expressions, expressions.emit
        self._loops: list[tuple[str, str]] = []
        """Labels after the loop and after its body, innermost last."""

    @property
    def _frame(self) -> Frame:
        return self._expressions.frame

    def run(self, body: list[ast.stmt]) -> None:
        """Compile statements; those after a return are left out."""
        for each in body:
            if self._emit.flow.reachable:
                self._emit.mark(self._frame.source, each)
                before = len(self._emit.here)
                self._statement(each)
                if self._expressions.context.kernel is not None:
                    self._see_no_floats(each, self._emit.here[before:])

    def _see_no_floats(self, node: ast.stmt, made: list[ir.Stmt]) -> None:
        """Refuse floats in the kernel, whose machine has none."""
        if any(isinstance(part.type, FloatType) for part in walk.expressions(tuple(made))):
            raise self._expressions.error(node, "there are no floats in the kernel", "whole numbers: x * 1000 // y")

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Pass() | ast.Expr(ast.Constant()):
                pass
            case ast.Expr(inner):
                self._expressions.value(inner)
            case ast.Assign(targets, value):
                self._assign(targets, self._expressions.value(value))
            case ast.AnnAssign(target, annotation, value):
                self._annotated(target, annotation, value)
            case ast.AugAssign(target, symbol, value):
                self._augmented(node, target, symbol, value)
            case ast.If():
                self._if(node)
            case ast.While():
                self._while(node)
            case ast.For():
                self._for(node)
            case ast.Return(value):
                self._return(node, value)
            case ast.Break() | ast.Continue():
                after, next_round = self._loops[-1]
                self._emit.add(ir.Leave(after if isinstance(node, ast.Break) else next_round))
            case _:
                what, instead = _INSTEAD.get(type(node), (type(node).__name__, ""))
                raise self._expressions.error(node, f"{what} is not possible in a handler", instead)

    # -- assignments

    def _assign(self, targets: list[ast.expr], value: Value) -> None:
        if len(targets) > 1 and isinstance(value, Scalar):
            value = Scalar(self._emit.keep(value.expr))
        for target in targets:
            self._assign_one(target, value)

    def _assign_one(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(name):
                value = self._settled(value) if isinstance(value, Items) else value
                self._frame.assign(self._emit, name, value, target)
                kind = self._frame.kinds.get(name)
                if kind is not None:
                    self._frame.note(self._expressions.notes, target, kind)
            case ast.Tuple(parts):
                if not isinstance(value, Items) or len(value.items) != len(parts):
                    raise self._expressions.error(target, f"{described(value)} has not {len(parts)} parts")
                # a, b = b, a: all values first
                for part, item in zip(parts, [self._settled(item) for item in value.items], strict=True):
                    self._assign_one(part, item)
            case ast.Attribute(inner, name):
                self._assign_attribute(target, self._expressions.value(inner), name, value)
            case ast.Subscript(inner, index):
                self._assign_item(target, inner, index, value)
            case _:
                raise self._expressions.error(target, "nothing can be assigned to this")

    def _settled(self, value: Value) -> Value:
        """Return a value that later assignments do not change."""
        if isinstance(value, Scalar):
            return Scalar(self._emit.keep(value.expr))
        if isinstance(value, Maybe):
            return Maybe(self._emit.keep(value.present), Scalar(self._emit.keep(value.value.expr)))
        if isinstance(value, Items):
            return Items(tuple(self._settled(item) for item in value.items))
        return value

    def _annotated(self, target: ast.expr, annotation: ast.expr, value: ast.expr | None) -> None:
        if not isinstance(target, ast.Name):
            raise self._expressions.error(target, "only variables are annotated")
        kind = Kind(type_of_annotation(self._frame.source, annotation), demanded=True)
        known = self._frame.kinds.get(target.id)
        if known is not None and known.type != kind.type:
            raise self._expressions.error(target, f"{target.id} is {known} already", "another name")
        self._frame.declare(target.id, kind)
        if value is not None:
            self._assign_one(target, self._expressions.value(value))

    def _augmented(self, node: ast.stmt, target: ast.expr, symbol: ast.operator, value: ast.expr) -> None:
        source = ast.parse(ast.unparse(target), mode="eval").body
        for each in ast.walk(source):
            ast.copy_location(each, target)
        if type(symbol) not in _OPERATORS:
            raise self._expressions.error(node, "matrices are not possible in a handler")
        sides = self._expressions.both(source, value)
        fail = self._frame.fail_at(node)
        self._assign_one(target, operators.arithmetic(self._emit, _OPERATORS[type(symbol)], *sides, fail))

    def _assign_attribute(self, node: ast.Attribute, inner: Value, name: str, value: Value) -> None:
        if isinstance(inner, Thing) and isinstance(alias := getattr(inner.thing, name, None), Alias):
            *path, name = alias.path
            inner = Context(".".join(path))
        if members.is_struct(inner):
            member_access.change(self._expressions, node, inner, name, value)
            return
        if not isinstance(inner, Context):
            what = f"{described(inner)}.{name}"
            raise self._expressions.error(node, f"{what} cannot be changed", "ctx.data, an aggregation")
        if inner.part == "data" and isinstance(value, Text):
            self._expressions.context.keep_text(self._emit, name, value, self._frame.fail_at(node))
            return
        if inner.part == "data" and isinstance(value, Maybe):
            # what is missing stays so: nothing is stored
            with self._emit.when(value.present):
                self._assign_attribute(node, inner, name, value.value)
            return
        settled = self._settled_and_present(value, node)
        if inner.part == "data" and isinstance(settled, Packed):
            self._expressions.context.keep(self._emit, name, settled, self._frame.fail_at(node))
            return
        expr = self._expressions.as_number(settled, node)
        self._expressions.context.write(self._emit, inner.part, name, expr, self._frame.fail_at(node))

    def _settled_and_present(self, value: Value, node: ast.AST) -> Value:
        return self._expressions.present(interfaces.settled(self._emit, value, self._frame.fail_at(node)), node)

    def _assign_item(self, target: ast.Subscript, inner: ast.expr, index: ast.expr, value: Value) -> None:
        base = self._expressions.value(inner)
        if isinstance(base, Member) and base.key is None:
            present = self._settled_and_present(value, target)
            key = self._expressions.value(index)
            self._expressions.calls.set_item(self._expressions, target, base.storage, key, present)
        else:
            self._write(target, self._expressions.present(base, inner), index, value)

    def _write(self, node: ast.Subscript, pointer: Value, index: ast.expr, value: Value) -> None:
        if not isinstance(pointer, Scalar) or not isinstance(pointer.type, PointerType):
            raise self._expressions.error(node, f"{described(pointer)} cannot be changed")
        if self._expressions.context.kernel is not None:
            raise self._expressions.error(node, UNCHANGED)
        if not self._expressions.context.unsafe:
            instead = "unsafe=True, where the session is opened"
            raise self._expressions.error(node, "this changes what the program computes", instead)
        element = pointer.type.element
        if element is None or isinstance(element, Layout | BoolType):
            raise self._expressions.error(node, "it is not known what this points at", "ptr[u32](p)[0] = x")
        expr = self._expressions.as_number(self._expressions.present(value, node), node, element)
        place = self._expressions.operand(index)
        moved = operators.arithmetic(self._emit, "+", pointer, place, self._frame.fail_at(node))
        assert isinstance(moved, Scalar)
        self._emit.add(ir.Write(operators.convert(moved.expr, u64), expr))

    def _return(self, node: ast.Return, value: ast.expr | None) -> None:
        found = self._expressions.value(value) if value is not None else None
        assert self._frame.result is not None
        self._frame.result(None if found == Literal(None) else found, node)

    # -- conditions

    def _if(self, node: ast.If) -> None:
        emit = self._emit
        test = self._expressions.condition(node.test)
        if test in {ir.TRUE, ir.FALSE}:
            self.run(node.body if test == ir.TRUE else node.orelse)
            return
        before = emit.flow.copy()
        ranges.refine(test, truth=True, known=emit.flow.known)
        with emit.collected() as then:
            self.run(node.body)
        then_flow, emit.flow = emit.flow, before.copy()
        ranges.refine(test, truth=False, known=emit.flow.known)
        with emit.collected() as orelse:
            self.run(node.orelse)
        ways = [then_flow, emit.flow]
        emit.flow = before
        emit.splice(ir.If(test, tuple(then), tuple(orelse)))
        emit.flow.become(ways)

    # -- loops

    def _forget(self, body: list[ast.stmt]) -> None:
        """Forget what is known of variables that change in a loop."""
        for name in loops.stored_names(body):
            for suffix in ("", ".present"):
                self._emit.flow.known.pop(self._frame.prefix + name + suffix, None)

    def _while(self, node: ast.While) -> None:
        emit, frame = self._emit, self._frame
        if node.orelse:
            raise self._expressions.error(node.orelse[0], "else of a loop is not possible in a handler", "a variable")
        candidates = []
        for step in loops.steps(node.body):
            kind = frame.kinds.get(step.name)
            if kind is not None and not kind.missing and frame.prefix + step.name in emit.flow.assigned:
                local = ir.Local(frame.prefix + step.name, kind.type)
                start = ranges.of(local, emit.flow.known)
                if start is not None:
                    candidates.append((step, local, start))
        self._forget(node.body)
        after, next_round = emit.fresh("break"), emit.fresh("continue")
        with emit.loop(after, 0):
            test = self._expressions.condition(node.test)
            with emit.when(ir.Unary("not", test)):
                emit.add(ir.Leave(after))
            ranges.refine(test, truth=True, known=emit.flow.known)
            found = [
                bound
                for step, local, start in candidates
                if (inside := ranges.of(local, emit.flow.known)) is not None
                and (bound := loops.rounds(step, start, local.type, inside)) is not None
            ]
            if not found or min(found) > loops.ROUNDS_LIMIT:
                instead = "for i in range(LIMIT): with a break, or a counter: while i < LIMIT: … i += 1"
                raise self._expressions.error(node, "it cannot be proved that this loop ends", instead)
            self._round(node.body, after, next_round)
        emit.bound_last_loop(min(found) + 1)

    def _round(self, body: list[ast.stmt], after: str, next_round: str) -> None:
        self._loops.append((after, next_round))
        with self._emit.block(next_round):
            self.run(body)
        self._loops.pop()

    def _for(self, node: ast.For) -> None:
        if node.orelse:
            raise self._expressions.error(node.orelse[0], "else of a loop is not possible in a handler", "a variable")
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            self._for_range(node, call)
            return
        items = self._expressions.value(node.iter)
        if not isinstance(items, Items):
            raise self._expressions.error(call, f"a loop over {described(items)}", "for i in range(n)")
        after = self._emit.fresh("break")
        with self._emit.block(after):
            for item in items.items:
                if self._emit.flow.reachable:
                    self._assign_one(node.target, item)
                    self._round(node.body, after, self._emit.fresh("continue"))

    def _for_range(self, node: ast.For, call: ast.Call) -> None:
        emit = self._emit
        if not 1 <= len(call.args) <= 3 or call.keywords:
            raise self._expressions.error(call, "range takes one to three arguments")
        values = [self._expressions.operand(each) for each in call.args]
        by = values[2] if len(values) == 3 else Literal(1)
        if not isinstance(by, Literal) or not isinstance(by.value, int) or by.value == 0:
            raise self._expressions.error(call, "the step of range has to be a constant other than 0")
        first, last = (Literal(0), values[0]) if len(values) == 1 else values[:2]
        start, stop = operators.common(first, last, self._frame.fail_at(call))
        start, stop = operators.widened(start), operators.widened(stop)
        kind = start.type
        if not isinstance(kind, IntegerType):
            raise self._expressions.error(call, f"range of {kind}", "i64(…)")
        stop = emit.keep(stop)
        bound = self._rounds(call, start, stop, by.value, kind)
        counter = ir.Local(emit.fresh("i"), kind)
        emit.add(ir.Assign(counter, start))
        self._forget([node])
        between = _span(ranges.of(start, emit.flow.known), ranges.of(stop, emit.flow.known), by.value)
        emit.flow.known.pop(counter.name, None)
        after = emit.fresh("break")
        with emit.loop(after, bound + 1):
            reached = ir.Compare(">=" if by.value > 0 else "<=", counter, stop)
            with emit.when(reached):
                emit.add(ir.Leave(after))
            if between is not None:
                emit.flow.known[counter.name] = between
            self._assign_one(node.target, Scalar(counter))
            self._round(node.body, after, emit.fresh("continue"))
            step = ir.Const(abs(by.value), kind)
            emit.add(ir.Assign(counter, ir.Binary("+" if by.value > 0 else "-", counter, step)))

    def _rounds(self, call: ast.Call, start: ir.Expr, stop: ir.Expr, by: int, kind: IntegerType) -> int:
        bounds = ranges.of(start, self._emit.flow.known), ranges.of(stop, self._emit.flow.known)
        assert bounds[0] is not None
        assert bounds[1] is not None
        found = loops.range_rounds(bounds[0], bounds[1], by, kind)
        if found is None:
            raise self._expressions.error(call, "it cannot be proved that this loop ends", "range(min(n, 64))")
        return found


def _span(start: ranges.Range | None, stop: ranges.Range | None, by: int) -> ranges.Range | None:
    """Return the range of the counter inside of the loop."""
    if start is None or stop is None:
        return None
    low, high = (start[0], stop[1] - 1) if by > 0 else (stop[0] + 1, start[1])
    return (low, high) if low <= high else None
