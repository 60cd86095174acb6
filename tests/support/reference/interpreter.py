"""Handlers run by CPython under the rules of docs/handlers.md: what compiled handlers are compared with in tests.

The handler's own source is executed, on values that know their width. What Python does differently is put into the
syntax tree before: variables keep the type that the compiler has found for them, and a value that is missing ends the
handler where it is used. Nothing here knows the intermediate language.
"""

import ast
import builtins
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from anyprobe.core.code import Miss
from anyprobe.handlers import intrinsics
from anyprobe.handlers.frontend.frame import Notes
from anyprobe.handlers.frontend.source import source_of
from anyprobe.handlers.ir import arithmetic
from anyprobe.handlers.types.annotations import (
    BoolType,
    FloatType,
    IntegerType,
    PointerType,
    Type,
    boolean,
    f64,
    i64,
    u64,
)  # fmt: skip
from anyprobe.handlers.types.storages import is_storage
from support.reference.typed_values import MISSING, Abandoned, Fixed, Record, keep, merged, truth


class Memory(Protocol):
    """The program's memory."""

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes, ``None`` if they cannot be read."""


class Interpreter:
    """Runs one handler; ``counts`` and ``updates`` tell afterwards what it did."""

    def __init__(self, function: Callable[..., Any], notes: Notes, memory: Memory) -> None:
        """Prepare a function whose types the front end has found."""
        self._notes, self._memory = notes, memory
        self._source = source_of(function)
        self._made: dict[types.FunctionType, Callable[..., Any]] = {}
        self.record = Record(dict.fromkeys(Miss, 0), memory)
        self._run = self._prepared(self._source.function)

    def run(self, *arguments: Any) -> Fixed | None:
        """Run the handler on plain numbers."""
        try:
            found = self._run(*arguments)
        except Abandoned:
            self.record.counts[Miss.ABANDONED] += 1
            return None
        return None if found is None or found is MISSING else found

    def _prepared(self, function: types.FunctionType) -> Callable[..., Any]:
        """Return the function with the compiler's types put into it."""
        if function not in self._made:
            source = source_of(function)
            tree = _Typed(source.file, self._notes).visit(copy.deepcopy(source.tree))
            if isinstance(tree, ast.Lambda):
                tree = ast.FunctionDef(source.name, tree.args, [ast.Return(tree.body)], [])
                tree.name = "lambda_"
            tree.decorator_list = []
            for each in (*tree.args.args, *tree.args.posonlyargs):
                each.annotation = None
            tree.returns = None
            module = ast.fix_missing_locations(ast.Module([tree], []))
            space = self._names(function)
            exec(compile(module, source.file, "exec"), space)  # noqa: S102 - the handler itself
            self._made[function] = space[tree.name]
        return self._made[function]

    def _names(self, function: types.FunctionType) -> dict[str, Any]:
        """Return what the names of a function mean here."""
        code = function.__code__
        source = source_of(function)
        space: dict[str, Any] = {}
        for name in (*code.co_names, *code.co_freevars):
            try:
                space[name] = self._meaning(source.captured(name))
            except KeyError:
                continue  # the name of an attribute
        record = self.record
        space |= {
            "_keep": lambda value, place: keep(value, self._notes[place], record),
            "_missing": lambda value: value is MISSING,
            "_not": lambda value: Fixed(boolean, int(not truth(value)), record),
            "_truth": truth,
            "_receive": self._receive,
            "_range": self._range,
        }
        return space

    def _receive(self, value: Any, place: tuple[str, int, int]) -> Any:
        """Return a parameter: a plain number of the test becomes a value of its type."""
        kind = self._notes[place]
        if kind is not None and isinstance(value, int | float) and not isinstance(kind.type, BoolType):
            return _Converter(kind.type, self.record)(value)
        return keep(bool(value) if isinstance(value, int) else value, kind, self.record)

    def _meaning(self, thing: Any) -> Any:
        if isinstance(thing, Type):
            return _Converter(thing, self.record)
        if thing is intrinsics.cstr:
            return lambda address, limit: self.record.text(address, limit, terminated=True)
        if thing is intrinsics.buf:
            return lambda address, size: self.record.text(address, size, terminated=False)
        own = {
            builtins.min: lambda *values: self._extreme("<", values),
            builtins.max: lambda *values: self._extreme(">", values),
            builtins.abs: self._abs,
            builtins.bool: lambda value: Fixed(boolean, int(truth(value)), self.record),
            builtins.float: _Converter(f64, self.record),
        }
        if isinstance(thing, types.BuiltinFunctionType | type) and thing in own:
            return own[thing]
        if isinstance(thing, types.FunctionType):
            return self._prepared(thing)
        if is_storage(thing):
            return _Updates(thing, self.record)
        return thing

    def _extreme(self, symbol: str, values: tuple[Any, ...]) -> Any:
        best = values[0]
        for each in values[1:]:
            first, second = merged(best, each, self.record)
            best = second if arithmetic.COMPARISONS[symbol](_plain(second), _plain(first)) else first
        return best

    def _abs(self, value: Any) -> Any:
        return -value if value < 0 or (_is_float(value) and str(value.value).startswith("-")) else +value

    def _range(self, *bounds: Any) -> Iterator[Any]:
        step = bounds[2] if len(bounds) == 3 else 1
        first, last = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
        start, stop = merged(first, last, self.record)
        kind = u64 if isinstance(start, Fixed) and start.kind == u64 else i64
        for each in range(int(_plain(start)), int(_plain(stop)), step):
            yield Fixed(kind, each, self.record)


def _plain(value: Any) -> int | float:
    if value is MISSING:
        raise Abandoned
    return value.value if isinstance(value, Fixed) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, Fixed) and isinstance(value.kind, FloatType)


class _Converter:
    """A type as it is called in a handler."""

    def __init__(self, kind: Type, record: Record) -> None:
        self.kind, self._record = kind, record

    def __getitem__(self, element: "_Converter") -> "_Converter":
        assert isinstance(self.kind, PointerType)
        return _Converter(self.kind[element.kind], self._record)

    def __call__(self, value: Any) -> Fixed:
        kind, plain = self.kind, _plain(value)
        if kind == boolean:
            return Fixed(boolean, int(plain != 0), self._record)
        if isinstance(kind, FloatType):
            return Fixed(kind, kind(plain), self._record)
        target = kind if isinstance(kind, IntegerType) else u64
        whole = arithmetic.float_to_integer(target, plain) if isinstance(plain, float) else target.wrap(plain)
        return Fixed(kind, whole, self._record)


class _Updates:
    """An aggregation: notes what is added to it."""

    def __init__(self, aggregation: Any, record: Record, key: Any = None) -> None:
        self._aggregation, self._record, self._key = aggregation, record, key

    def __getitem__(self, key: Any) -> "_Updates":
        return _Updates(self._aggregation, self._record, key)

    def add(self, value: Any = None, key: Any = None) -> None:
        """Note an update."""
        key = self._key if key is None else key
        parts = key if isinstance(key, tuple) else () if key is None else (key,)
        plain = tuple(part.key() if hasattr(part, "key") else part for part in parts)
        self._record.updates.append((self._aggregation, None if value is None else _plain(value), plain))


class _Typed(ast.NodeTransformer):
    """Puts the compiler's types into a function, and what Python does differently."""

    def __init__(self, file: str, notes: Notes) -> None:
        self._file, self._notes = file, notes

    def _kept(self, value: ast.expr, node: ast.AST, function: str = "_keep") -> ast.expr:
        place = (self._file, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        if place not in self._notes:
            return value
        constants: list[ast.expr] = [ast.Constant(part) for part in place]
        return _call(function, value, ast.Tuple(constants, ast.Load()))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Type the parameters first."""
        receive: list[ast.stmt] = [
            ast.Assign([ast.Name(each.arg, ast.Store())], kept)
            for each in node.args.args
            if (kept := self._kept(ast.Name(each.arg, ast.Load()), each, "_receive")) and isinstance(kept, ast.Call)
        ]
        self.generic_visit(node)
        node.body = [*receive, *node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Keep the type of a variable."""
        target = node.targets[0]
        self.generic_visit(node)
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(node.value.elts, target.elts, strict=True)
            node.value = ast.Tuple([self._kept(value, part) for value, part in pairs], ast.Load())
        else:
            node.value = self._kept(node.value, target)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Keep the type of a variable."""
        if node.value is None:
            return ast.Pass()
        return self.visit_Assign(ast.Assign([node.target], node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Make it an assignment."""
        reading = copy.deepcopy(node.target)
        reading.ctx = ast.Load()
        return self.visit_Assign(ast.Assign([node.target], ast.BinOp(reading, node.op, node.value)))

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Keep the type of the result."""
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._kept(node.value, node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Give both branches one type."""
        place = copy.copy(node)
        self.generic_visit(node)
        return self._kept(node, place)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Have ``not`` yield a boolean."""
        self.generic_visit(node)
        return _call("_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Have ``is None`` ask whether a value is missing."""
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.Is):
            return _call("_missing", node.left)
        return _call("_not", _call("_missing", node.left)) if isinstance(node.ops[0], ast.IsNot) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Have ``range`` count in the loop's type."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            node.func = ast.Name("_range", ast.Load())
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
