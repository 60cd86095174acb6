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
from anyprobe.handlers.types.annotations import AnyType, Layout, PointerType, Type, boolean, u64
from anyprobe.handlers.types.calling_convention import (
    KnownPrototype,
    PassedAsGo,
    PassedOtherwise,
    Piece,
    Pieces,
    Prototype,
    places,
    result_places,
    windows_places,
)
from anyprobe.handlers.types.go_convention import go_places
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
    pieces: Pieces | None = None
    """The parts that it is in, where these are not its eight bytes one after another."""


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
        return _by_position(source, nodes, [kind or _bare(known, at) for at, kind in enumerate(kinds)], known)
    assert prototype is not None
    types = dict(prototype.parameters)
    for node, kind in zip(nodes, kinds, strict=True):
        if node.arg not in types:
            raise source.error(node, f"{prototype.function} has no parameter {node.arg}", nearest(node.arg, names))
        types[node.arg] = _as_declared(kind or types[node.arg], types[node.arg])
    changed = replace(prototype, parameters=tuple(types.items()))
    where = _placed(source, bare, changed)
    indexes = [names.index(node.arg) for node in nodes]
    pieces = prototype.located.parameters if prototype.located is not None else (None,) * len(names)
    for node, at in zip(nodes, indexes, strict=True):
        if prototype.located is not None and pieces[at] is None:
            raise source.error(node, f"it is not known where the compiler passes {node.arg} of {prototype.function}")
    return [
        Parameter(node, types[node.arg], at, where[at], pieces[at]) for node, at in zip(nodes, indexes, strict=True)
    ]


def _as_declared(kind: AnyType, declared: AnyType) -> AnyType:
    """Return the type of a parameter; an address of a program is one by any annotation, as a number, too."""
    if not isinstance(declared, PointerType) or not declared.user:
        return kind
    kind = PointerType() if kind == u64 else kind
    return replace(kind, user=True) if isinstance(kind, PointerType) else kind


def _declared(known: KnownPrototype | None, at: int) -> AnyType:
    """Return what is known of the type of a parameter; ``u64`` where that is nothing."""
    try:
        prototype = known() if known is not None else None
    except UnsupportedTarget:
        return u64
    return prototype.parameters[at][1] if prototype is not None and at < len(prototype.parameters) else u64


def _bare(known: KnownPrototype | None, at: int) -> AnyType:
    """Return the type of a parameter by position without an annotation: a number, but for addresses of programs."""
    return _as_declared(u64, _declared(known, at))


def _by_position(
    source: Source, nodes: Sequence[ast.arg], kinds: Sequence[AnyType], known: KnownPrototype | None
) -> list[Parameter]:
    if not nodes:
        return []
    kinds = [
        _as_declared(kind, _declared(known, at)) if isinstance(kind, PointerType) or kind == u64 else kind
        for at, kind in enumerate(kinds)
    ]
    try:
        convention = _convention(known)
        if convention == "Go":
            pieces, _ = go_places(kinds)
            return [
                Parameter(node, kind, at, (), pieces[at])
                for at, (node, kind) in enumerate(zip(nodes, kinds, strict=True))
            ]
        where = windows_places(kinds) if convention == "Windows" else places(kinds)
    except PassedOtherwise as error:
        raise source.error(nodes[0], f"{error}, so positions mean nothing", "ctx.regs") from None
    except UnsupportedTarget as error:
        raise source.error(nodes[0], str(error)) from None
    return [Parameter(node, kind, at, where[at]) for at, (node, kind) in enumerate(zip(nodes, kinds, strict=True))]


def _convention(known: KnownPrototype | None) -> str:
    """Return how a function is known to be called, empty: as all are on this system; ``PassedOtherwise``: otherwise."""
    try:
        prototype = known() if known is not None else None
    except PassedOtherwise:
        raise
    except PassedAsGo:
        return "Go"
    except UnsupportedTarget:
        return ""
    if prototype is None:
        return ""
    if prototype.located is not None and None in prototype.located.parameters:
        raise PassedOtherwise(f"the compiler has changed how {prototype.function} is called")
    return prototype.located.language if prototype.located is not None else "Windows" if prototype.windows else ""


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
    if parameter.pieces is not None:
        return _assembled(emit, parameter, parameter.pieces, fail)
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


def _assembled(emit: Emitter, parameter: Parameter, pieces: Pieces, fail: Fail) -> Scalar | Packed:
    """Return a parameter that is in parts."""
    kind = parameter.kind
    if isinstance(kind, OpaqueType):
        raise fail(f"{parameter.node.arg} is a {kind}, which handlers cannot compute with", "")

    def load(piece: Piece) -> ir.Expr:
        name = f"{kind}@{piece.offset}" if piece.offset else str(kind)
        return ir.Word(emit.word(InputKind.PARAMETER, name, parameter.index, place=piece.place))

    return value_of(emit, kind, [(piece, load(piece)) for piece in pieces])


def value_of(emit: Emitter, kind: AnyType, parts: Sequence[tuple[Piece, ir.Expr]]) -> Scalar | Packed:
    """Return a value out of its parts."""
    words: list[ir.Expr] = [ir.Const(0, u64)] * max(1, -(-kind.size // ir.WORD))
    for piece, part in parts:
        index, shift = divmod(piece.offset, 64)
        word = part if piece.bits >= 64 else ir.Binary("&", part, ir.Const((1 << piece.bits) - 1, u64))
        word = ir.Binary("<<", word, ir.Const(shift, u64)) if shift else word
        known = words[index]
        words[index] = word if known == ir.Const(0, u64) else ir.Binary("|", known, word)
    if isinstance(kind, Layout):
        return Packed(kind, tuple(emit.keep(word) for word in words))
    return Scalar(received(words[0], kind))


def returned_in_parts(emit: Emitter, kind: AnyType, pieces: Pieces, fail: Fail) -> Scalar | Packed:
    """Return a function's result that is in parts where it returns; those on the stack are read there."""
    if isinstance(kind, OpaqueType):
        raise fail(f"the function returns a {kind}, which handlers cannot compute with", "ctx.regs")
    return value_of(emit, kind, [(piece, _part_returned(emit, piece.place)) for piece in pieces])


def _part_returned(emit: Emitter, place: str) -> ir.Expr:
    if not place.startswith("stack"):
        return _result_word(emit, place)
    readable, target = emit.temporary(boolean), emit.temporary(u64)
    stack = ir.Word(emit.word(InputKind.REGISTER, "rsp"))
    emit.add(ir.Read(readable, target, ir.Binary("+", stack, ir.Const(int(place.removeprefix("stack+")), u64))))
    return target


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
