"""One Python function while it is compiled: its names, and how a value is given to one."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anyprobe.core.errors import HandlerError, UsageError
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.operators import Fail, convert, typed, widened
from anyprobe.handlers.frontend.source import Source
from anyprobe.handlers.frontend.values import Items, Kind, Literal, Maybe, Packed, Scalar, Text, Value, described
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import FloatType, IntegerType, Type, boolean, f64, i64, u64

Notes = dict[tuple[str, int, int], Kind | None]
"""What type a variable or conditional expression has, by file, line and column: for the interpreter.

``None``: a function without annotations is called with arguments of several types.
"""


class RetypeError(Exception):
    """A variable needs another kind than its first values suggested: the compiler begins again, knowing it."""

    def __init__(self, name: str, kind: Kind) -> None:
        """Keep which variable needs what."""
        super().__init__(name)
        self.name, self.kind = name, kind


@dataclass
class Frame:
    """A function: ``prefix`` makes its variables unique in the handler, ``end`` is the label after it."""

    source: Source
    prefix: str
    end: str
    known_kinds: dict[str, Kind]
    """What earlier attempts found out, by unique name."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    aliases: dict[str, tuple[ast.AST, Value]] = field(default_factory=dict)
    """Variables that stand for a text or a tuple, and where they were given it."""
    result: Callable[[Value | None, ast.AST], None] | None = None
    """What a return statement does with its value."""

    def fail_at(self, node: ast.AST) -> Fail:
        """Return what makes errors for a node."""

        def fail(message: str, instead: str) -> HandlerError:
            return self.source.error(node, message, instead)

        return fail

    def is_local(self, name: str) -> bool:
        """Return whether Python takes a name for a local variable."""
        return name in self.source.function.__code__.co_varnames

    def lookup(self, emit: Emitter, node: ast.Name) -> Value | None:
        """Return the value of a local variable, ``None`` for names from outside."""
        name = node.id
        if not self.is_local(name):
            return None
        unique = self.prefix + name
        if unique not in emit.flow.assigned and emit.flow.reachable:
            raise self.source.error(node, f"{name} may have no value here", f"{name} = 0 before it")
        if name in self.aliases:
            return self.aliases[name][1]
        kind = self.kinds.get(name)
        if kind is None:  # where nothing leads to
            return Literal(0)
        scalar = Scalar(ir.Local(unique, kind.type))
        return Maybe(ir.Local(unique + ".present", boolean), scalar) if kind.missing else scalar

    def declare(self, name: str, kind: Kind) -> None:
        """Give a variable its kind, as a parameter or by annotation."""
        self.kinds[name] = self.known_kinds.get(self.prefix + name, kind)

    def assign(self, emit: Emitter, name: str, value: Value, node: ast.AST) -> None:
        """Give a local variable a value."""
        emit.flow.assigned |= {self.prefix + name}
        if isinstance(value, Text | Packed | Items) or (
            isinstance(value, Literal) and isinstance(value.value, str | bytes)
        ):
            self._alias(name, value, node)
            return
        if name in self.aliases:
            raise self.source.error(node, f"{name} already is {described(self.aliases[name][1])}", "another name")
        kind = self._kind_for(name, value, node)
        local = ir.Local(self.prefix + name, kind.type)
        if kind.missing:
            present = ir.Local(self.prefix + name + ".present", boolean)
            known: ir.Expr = value.present if isinstance(value, Maybe) else ir.TRUE
            emit.add(ir.Assign(present, ir.FALSE if value == Literal(None) else known))
        if value != Literal(None):
            emit.add(ir.Assign(local, self._fitted(value, kind, node)))

    def _alias(self, name: str, value: Value, node: ast.AST) -> None:
        if name in self.kinds or self.aliases.get(name, (node,))[0] is not node:
            raise self.source.error(node, f"{name} already has a value of another place", "another name")
        self.aliases[name] = (node, value)

    def _kind_for(self, name: str, value: Value, node: ast.AST) -> Kind:
        """Return the kind of a variable that is given a value, or begin again with a better one."""
        unique = self.prefix + name
        current = self.kinds.get(name) or self.known_kinds.get(unique)
        wanted = self._natural_kind(value, node)
        if current is None:
            self.kinds[name] = wanted
            return wanted
        self.kinds[name] = current
        if wanted.missing and not current.missing:
            raise RetypeError(unique, Kind(current.type, True, current.weak, current.demanded))
        if value == Literal(None) or current.demanded:
            return current
        if current.weak and not wanted.weak:
            self.kinds[name] = Kind(wanted.type, current.missing)
            if current.type != wanted.type:
                raise RetypeError(unique, self.kinds[name])
            return self.kinds[name]
        if current.weak and current.type != wanted.type:  # two constants
            raise RetypeError(unique, Kind(_wider(current.type, wanted.type), current.missing, weak=True))
        return current

    def _natural_kind(self, value: Value, node: ast.AST) -> Kind:
        match value:
            case Literal(None):
                return Kind(i64, missing=True, weak=True)
            case Literal(bool()):
                return Kind(boolean)
            case Literal(int() as number):
                return Kind(u64 if number > i64.high else i64, weak=True)
            case Literal(float()):
                return Kind(f64)
            case Scalar(expr):
                return Kind(_variable(expr.type))
            case Maybe(_, scalar):
                return Kind(_variable(scalar.type), missing=True)
            case _:
                raise self.source.error(node, f"{described(value)} cannot be kept in a variable", "")

    def _fitted(self, value: Value, kind: Kind, node: ast.AST) -> ir.Expr:
        """Return a value as the type of the variable."""
        expr = value.value.expr if isinstance(value, Maybe) else value.expr if isinstance(value, Scalar) else None
        fail = self.fail_at(node)
        if expr is None:
            assert isinstance(value, Literal)
            return typed(value.value, kind.type, fail)
        if isinstance(expr.type, IntegerType) and isinstance(kind.type, IntegerType):
            if kind.demanded or widened(expr).type == kind.type:
                return convert(expr, kind.type)
        elif expr.type == kind.type:
            return expr
        elif kind.demanded and isinstance(kind.type, FloatType) and isinstance(expr.type, FloatType | IntegerType):
            return convert(expr, kind.type)
        raise fail(f"{expr.type} in a variable of type {kind.type}", f"{kind.type}(…), or another name")

    def note(self, notes: Notes, node: ast.AST, kind: Kind) -> None:
        """Keep the kind of a node for the interpreter."""
        place = self.source.file, getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        known = notes.setdefault(place, kind)
        if known is None or known.type != kind.type or known.missing != kind.missing:
            notes[place] = None


def _variable(kind: Type) -> Type:
    """Return the type of an unannotated variable that is given a value: whole numbers have 64 bits."""
    return (u64 if kind == u64 else i64) if isinstance(kind, IntegerType) else kind


def _wider(left: Type, right: Type) -> Type:
    if f64 in {left, right}:
        return f64
    return u64 if u64 in {left, right} else left


def annotated(source: Source, node: ast.expr) -> Any:  # noqa: ANN401 - whatever the annotation evaluates to
    """Return what an annotation means: names, attributes, subscripts, and the same as a string."""
    match node:
        case ast.Constant(str() as text):
            try:
                inner = ast.parse(text, mode="eval").body
            except SyntaxError:
                raise source.error(node, f"{text!r} is no type") from None
            return annotated(source, ast.copy_location(inner, node))
        case ast.Constant(None):
            return None
        case ast.Name(name):
            try:
                return source.captured(name)
            except KeyError:
                raise source.error(node, f"{name} is not defined", "from anyprobe import " + name) from None
        case ast.Attribute(value, attribute):
            return getattr(annotated(source, value), attribute, None)
        case ast.Subscript(value, index):
            for part in ast.walk(index):
                ast.copy_location(part, node)
            base, element = annotated(source, value), annotated(source, index)
            try:
                return base[element]
            except (UsageError, TypeError):
                raise source.error(node, "no such type", "ptr[u8], ptr[ptr]") from None
        case _:
            raise source.error(node, "an annotation has to be a type", "u64, i32, ptr[u8], f64, bool")


def type_of_annotation(source: Source, node: ast.expr) -> Type:
    """Return the type that an annotation names."""
    found = annotated(source, node)
    if found is bool:
        return boolean
    if found is float:
        return f64
    if isinstance(found, Type):
        return found
    instead = "i64 or another of fixed width" if found is int else "u64, i32, ptr[u8], f64, bool"
    raise source.error(node, f"{getattr(found, '__name__', found)} is no type of handlers", instead) from None
