"""What a handler receives of the probed function: its parameters, by position or by name, and its result."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anyprobe.core.code import InputKind
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.frame import annotated, type_of_annotation
from anyprobe.handlers.frontend.members import received
from anyprobe.handlers.frontend.operators import Fail
from anyprobe.handlers.frontend.source import Source
from anyprobe.handlers.frontend.values import Array, Packed, Scalar
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import AnyType, Layout, PointerType, Type, u64
from anyprobe.handlers.types.calling_convention import (
    KnownPrototype,
    PassedOtherwise,
    Prototype,
    places,
    result_places,
    windows_places,
)
from anyprobe.handlers.types.layouts import ArrayType, OpaqueType, StructType

IN_A_RECORD = "record"
"""How the places of parameters begin that are fields of a tracepoint's record: arrays are passed by their address."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a handler: which one of the function's it is, and where that is."""

    node: ast.arg
    kind: AnyType
    index: int
    places: tuple[str, ...]


def parameters_of(source: Source, nodes: Sequence[ast.arg], known: KnownPrototype | None) -> list[Parameter]:
    """Return what the parameters of a handler are.

    If all have annotations they are the function's by position. Else they are its by name, as debug information has
    it, and an annotation only changes the type. A lambda's may do without both: ``u64`` by position.
    """
    kinds = [_annotation(source, node) if node.annotation is not None else None for node in nodes]
    given = [kind for kind in kinds if kind is not None]
    if len(given) == len(nodes):
        return _by_position(source, nodes, given, known)
    bare = next(node for node, kind in zip(nodes, kinds, strict=True) if kind is None)
    prototype = _prototype(source, bare, known)
    names = [name for name, _ in prototype.parameters] if prototype is not None else []
    if isinstance(source.tree, ast.Lambda) and any(node.arg not in names for node in nodes):
        return _by_position(source, nodes, [kind or u64 for kind in kinds], known)
    assert prototype is not None
    types = dict(prototype.parameters)
    for node, kind in zip(nodes, kinds, strict=True):
        if node.arg not in types:
            raise source.error(node, f"{prototype.function} has no parameter {node.arg}", nearest(node.arg, names))
        types[node.arg] = kind or types[node.arg]
    changed = replace(prototype, parameters=tuple(types.items()))
    where = _placed(source, bare, changed)
    indexes = [names.index(node.arg) for node in nodes]
    return [Parameter(node, types[node.arg], at, where[at]) for node, at in zip(nodes, indexes, strict=True)]


def _by_position(
    source: Source, nodes: Sequence[ast.arg], kinds: Sequence[AnyType], known: KnownPrototype | None
) -> list[Parameter]:
    if not nodes:
        return []
    try:
        where = windows_places(kinds) if _is_windows(known) else places(kinds)
    except PassedOtherwise as error:
        raise source.error(nodes[0], f"{error}, so positions mean nothing", "ctx.regs") from None
    except UnsupportedTarget as error:
        raise source.error(nodes[0], str(error)) from None
    return [Parameter(node, kind, at, where[at]) for at, (node, kind) in enumerate(zip(nodes, kinds, strict=True))]


def _is_windows(known: KnownPrototype | None) -> bool:
    """Return whether it is known that a function is called as Windows does; ``PassedOtherwise``: in some other way."""
    try:
        return known is not None and known().windows
    except PassedOtherwise:
        raise
    except UnsupportedTarget:
        return False


def _annotation(source: Source, node: ast.arg) -> AnyType:
    assert node.annotation is not None
    # names that only annotations use are no part of the function's closure; Python has evaluated them already
    found = source.function.__annotations__.get(node.arg)
    if not isinstance(found, Type | Layout):
        found = annotated(source, node.annotation)
    if isinstance(found, ArrayType):
        raise source.error(node.annotation, "arrays are passed by their address", f"ptr[{found.element}]")
    return found if isinstance(found, Type | Layout) else type_of_annotation(source, node.annotation)


def _prototype(source: Source, node: ast.arg, known: KnownPrototype | None) -> Prototype | None:
    """Return what is known of the function; without it a handler's parameter must have an annotation."""
    reason = ""
    if known is not None:
        try:
            return known()
        except UnsupportedTarget as error:
            reason = f": {error}"
    if isinstance(source.tree, ast.Lambda):
        return None
    instead = f"{node.arg}: u64, or another type"
    raise source.error(node, f"the type of {node.arg} is not known{reason}", instead)


def _placed(source: Source, node: ast.arg, prototype: Prototype) -> list[tuple[str, ...]]:
    try:
        return prototype.places
    except UnsupportedTarget as error:
        raise source.error(node, f"{prototype.function}: {error}", f"{node.arg}: u64, by position") from None


def nearest(name: str, names: Sequence[str]) -> str:
    """Return which parameters may have been meant."""
    import difflib

    return ", ".join(difflib.get_close_matches(name, names, 3) or names) or "a handler without parameters"


def receive(emit: Emitter, parameter: Parameter, fail: Fail) -> Scalar | Packed:
    """Return a parameter's value at the function's entry."""
    kind, where = parameter.kind, parameter.places
    words = tuple(
        ir.Word(emit.word(InputKind.PARAMETER, f"{kind}@{8 * at}" if at else str(kind), parameter.index, place=place))
        if place
        else ir.Const(0, u64)
        for at, place in enumerate(where)
    )
    if isinstance(kind, ArrayType) and where[0].startswith(IN_A_RECORD):
        return Array(received(words[0], PointerType(kind.element)), kind.count)
    if isinstance(kind, StructType) and kind.by_reference:
        return Scalar(received(words[0], PointerType(kind)))
    if isinstance(kind, OpaqueType | ArrayType):
        raise fail(f"{parameter.node.arg} is a {kind}, which handlers cannot compute with", "")
    if isinstance(kind, Layout):
        return Packed(kind, words)
    return Scalar(received(words[0], kind))


def returned(emit: Emitter, kind: AnyType, fail: Fail) -> Scalar | Packed:
    """Return a function's result where it returns."""
    try:
        where = result_places(kind)
    except UnsupportedTarget as error:
        raise fail(str(error), "ctx.regs") from None
    if isinstance(kind, OpaqueType) or "st0" in (where or ()):
        raise fail(f"the function returns a {kind}, which handlers cannot compute with", "ctx.regs")
    if where is None:
        rax = ir.Word(emit.word(InputKind.CONTEXT, "retval"))
        return Scalar(received(rax, PointerType(kind) if isinstance(kind, Layout) else kind))
    words = tuple(_result_word(emit, place) for place in where)
    return Packed(kind, words) if isinstance(kind, Layout) else Scalar(received(words[0], kind))


def _result_word(emit: Emitter, place: str) -> ir.Expr:
    if not place:
        return ir.Const(0, u64)
    kind, name = (InputKind.CONTEXT, "retval") if place == "rax" else (InputKind.REGISTER, place)
    return ir.Word(emit.word(kind, name))
