"""What a handler receives of a USDT marker: its arguments by number or position, read when the marker is hit."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.binary.objects.marker_arguments import Constant, Followed, InMemory, InRegister, MarkerArgument
from anyprobe.core.code import InputKind
from anyprobe.handlers import intrinsics
from anyprobe.handlers.frontend import members, operators, texts
from anyprobe.handlers.frontend.frame import annotated, type_of_annotation
from anyprobe.handlers.frontend.operators import Fail
from anyprobe.handlers.frontend.source import Source
from anyprobe.handlers.frontend.values import Maybe, Packed, Scalar, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import (
    AnyType,
    FloatType,
    IntegerType,
    Layout,
    PointerType,
    Type,
    boolean,
    i64,
    u64,
)
from anyprobe.handlers.types.layouts import StructType
from anyprobe.handlers.types.marker import MarkerAt, type_of

if TYPE_CHECKING:
    from anyprobe.handlers.frontend.emitter import Emitter
    from anyprobe.handlers.frontend.expressions import Expressions

_NUMBERED = re.compile(r"arg(\d+)")
_PIECES = {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}
"""Bytes in memory that are read one after the other for numbers of odd sizes."""


@dataclass(frozen=True, slots=True)
class MarkerParameter:
    """A parameter of a handler: which argument it is, and as what it is wanted."""

    node: ast.arg
    argument: MarkerArgument | None
    """None: this place has no such argument, or none that can be read; others have."""
    kind: AnyType
    is_text: bool = False
    """Whether the text at the address is wanted: ``cstr``."""
    is_annotated: bool = False
    """Whether the handler says the type; else it is one that holds the values of all places."""


def marker_parameters(source: Source, nodes: Sequence[ast.arg], marker: MarkerAt) -> list[MarkerParameter]:
    """Return what the parameters of a handler are.

    Those named ``arg0``, ``arg1`` go by number, names of a description by name, others by position.
    """
    found = []
    for node, index in zip(nodes, _indices([node.arg for node in nodes], marker), strict=True):
        if index >= len(marker.kinds):
            there = ", ".join(f"arg{at}" for at in range(len(marker.kinds))) or "a handler without parameters"
            raise source.error(node, f"{marker.name} has {_arguments(len(marker.kinds))}", there)
        argument = marker.arguments[index] if index < len(marker.arguments) else None
        kind = marker.kinds[index]
        if kind is None:
            what = f": {argument.text}: {argument.problem}" if argument is not None else ""
            raise source.error(node, f"arg{index} of {marker.name} cannot be read{what}", _others(marker))
        is_text, wanted = _annotation(source, node)
        if argument is not None and argument.operand is not None:
            is_text |= argument.is_text and wanted is None
        else:
            argument = None
        found.append(MarkerParameter(node, argument, wanted or kind, is_text, wanted is not None))
    return found


def _indices(names: Sequence[str], marker: MarkerAt) -> list[int]:
    """Return which argument each parameter is."""
    named = {argument.name: index for index, argument in enumerate(marker.arguments) if argument.name}
    numbers = [(name, _NUMBERED.fullmatch(name)) for name in names]
    found = [named.get(name) if number is None else int(number[1]) for name, number in numbers]
    known = [index for index in found if index is not None]
    return known if len(known) == len(names) else list(range(len(names)))


def _arguments(count: int) -> str:
    return "no arguments" if not count else "1 argument" if count == 1 else f"{count} arguments"


def _others(marker: MarkerAt) -> str:
    return ", ".join(f"arg{at}" for at, kind in enumerate(marker.kinds) if kind is not None) or "ctx.regs"


def _annotation(source: Source, node: ast.arg) -> tuple[bool, AnyType | None]:
    """Return whether a text is wanted, and else as what type an argument is."""
    if node.annotation is None:
        return False, None
    found = source.function.__annotations__.get(node.arg)
    if not isinstance(found, Type | Layout) and found is not intrinsics.cstr:
        found = annotated(source, node.annotation)
    if found is intrinsics.cstr:
        return True, None
    return False, found if isinstance(found, Type | Layout) else type_of_annotation(source, node.annotation)


def receive(expressions: "Expressions", parameter: MarkerParameter) -> Value:
    """Return the value of an argument; what is in memory that cannot be read is missing."""
    emit, fail = expressions.emit, expressions.frame.fail_at(parameter.node)
    kind, argument = parameter.kind, parameter.argument
    if argument is None:
        return _missing(expressions, parameter, fail)
    if isinstance(kind, Layout):
        return _struct(emit, argument, kind, fail)
    if parameter.is_text:
        if argument.is_float:
            raise fail("a number with a fraction is no address of a text", "f64")
        return _text(expressions, parameter, _value(emit, argument, u64, fail))
    return _value(emit, argument, kind, fail, as_bits=parameter.is_annotated)


def _missing(expressions: "Expressions", parameter: MarkerParameter, fail: Fail) -> Value:
    """Return what an argument is at a place that lacks it."""
    if isinstance(parameter.kind, Layout):
        raise fail(f"not all places pass a {parameter.kind}", "ptr[…]")
    if parameter.is_text:
        return _text(expressions, parameter, Maybe(ir.FALSE, Scalar(ir.Const(0, u64))))
    zero: ir.Expr = ir.Const(0, u64)
    expr = members.received(zero, parameter.kind)
    return Maybe(ir.FALSE, Scalar(expr))


def _value(
    emit: "Emitter", argument: MarkerArgument, kind: Type, fail: Fail, *, as_bits: bool = False
) -> Scalar | Maybe:
    """Return an argument as a value of a type: converted.

    ``as_bits``: or the bits of a float, where the note says only its size.
    """
    own = type_of(argument)
    assert own is not None
    if as_bits and isinstance(kind, FloatType) and not isinstance(own, FloatType):
        if argument.size != kind.size:
            raise fail(f"{argument.text} has {argument.size} bytes, which is no {kind}", str(own))
        own = kind
    present, expr = _read(emit, argument, own)
    if kind == boolean:
        expr = ir.Compare("!=", operators.convert(expr, u64), ir.Const(0, u64))
    elif expr.type != kind:
        expr = operators.convert(expr, kind)
    return Scalar(expr) if present == ir.TRUE else Maybe(present, Scalar(expr))


def _read(emit: "Emitter", argument: MarkerArgument, own: Type) -> tuple[ir.Expr, ir.Expr]:
    """Return whether an argument is there, and its value as its own type."""
    operand = argument.operand
    if isinstance(operand, Constant):
        return ir.TRUE, members.received(ir.Const(u64.wrap(operand.value), u64), own)
    if isinstance(operand, InRegister):
        word = _register(emit, operand)
        if isinstance(own, IntegerType) and argument.size in _PIECES:
            return ir.TRUE, _narrowed(word, argument, own)
        return ir.TRUE, members.received(word, own)
    if isinstance(operand, Followed):
        return _followed(emit, operand, own)
    assert isinstance(operand, InMemory)
    address = _address(emit, operand)
    if argument.is_by_address:
        return ir.TRUE, operators.convert(address, own)
    if argument.size in _PIECES and isinstance(own, IntegerType):
        return _pieces(emit, address, argument, own)
    return _at(emit, address, own)


def _followed(emit: "Emitter", operand: Followed, own: Type) -> tuple[ir.Expr, ir.Expr]:
    """Read addresses one after the other; the value is there if each of them could be read."""
    first, *further = operand.offsets
    address = _address(emit, InMemory(operand.base, displacement=first))
    there: ir.Expr = ir.TRUE
    for offset in further:
        present, target = _at(emit, address, u64)
        there = present if there == ir.TRUE else ir.Binary("&", there, present)
        address = emit.keep(ir.Binary("+", target, ir.Const(u64.wrap(offset), u64)))
    if not operand.is_read:
        return emit.keep(there), operators.convert(address, own)
    present, value = _at(emit, address, own)
    return emit.keep(present if there == ir.TRUE else ir.Binary("&", there, present)), value


def _at(emit: "Emitter", address: ir.Expr, kind: Type) -> tuple[ir.Expr, ir.Local]:
    present, target = emit.temporary(boolean), emit.temporary(kind)
    emit.add(ir.Read(present, target, address))
    return present, target


def _register(emit: "Emitter", operand: InRegister) -> ir.Expr:
    if operand.is_vector:
        return ir.Word(emit.word(InputKind.PARAMETER, operand.name, int(operand.name[3:]), place=operand.name))
    word: ir.Expr = ir.Word(emit.word(InputKind.REGISTER, operand.name))
    return ir.Binary(">>", word, ir.Const(operand.shift, u64)) if operand.shift else word


def _address(emit: "Emitter", operand: InMemory) -> ir.Expr:
    address: ir.Expr = ir.Const(u64.wrap(operand.displacement), u64)
    for name, scale in ((operand.index, operand.scale), (operand.base, 1)):
        if name:
            word: ir.Expr = ir.Word(emit.word(InputKind.REGISTER, name))
            word = ir.Binary("*", word, ir.Const(scale, u64)) if scale > 1 else word
            address = word if address == ir.Const(0, u64) else ir.Binary("+", word, address)
    return emit.keep(address)


def _pieces(emit: "Emitter", address: ir.Expr, argument: MarkerArgument, own: IntegerType) -> tuple[ir.Expr, ir.Expr]:
    """Read a number of an odd size piece by piece: what is after it may not be there."""
    whole: ir.Expr = ir.Const(0, u64)
    there: ir.Expr = ir.TRUE
    at = 0
    for size in _PIECES[argument.size]:
        where = ir.Binary("+", address, ir.Const(at, u64)) if at else address
        present, found = _at(emit, where, IntegerType(8 * size, signed=False))
        part = operators.convert(found, u64)
        whole = ir.Binary("|", whole, ir.Binary("<<", part, ir.Const(8 * at, u64))) if at else part
        there = ir.Binary("&", there, present) if at else present
        at += size
    return emit.keep(there), _narrowed(whole, argument, own)


def _narrowed(word: ir.Expr, argument: MarkerArgument, own: IntegerType) -> ir.Expr:
    """Return the low bytes of a word, extended by the argument's sign."""
    wide, unused = i64 if argument.signed else u64, ir.Const(64 - 8 * argument.size, u64)
    up = ir.Binary("<<", operators.convert(word, wide), unused)
    return operators.convert(ir.Binary(">>", up, unused), own)


def _struct(emit: "Emitter", argument: MarkerArgument, kind: Layout, fail: Fail) -> Value:
    """Return a struct: in memory it is known by its address, in a register by its bytes."""
    if not isinstance(kind, StructType):
        raise fail(f"a marker passes no {kind}", "ptr[…], or a struct")
    if isinstance(argument.operand, InMemory):
        return Scalar(operators.convert(_address(emit, argument.operand), PointerType(kind)))
    if isinstance(argument.operand, InRegister) and kind.size <= argument.size:
        return Packed(kind, (emit.keep(_register(emit, argument.operand)),))
    raise fail(f"{argument.text} holds no {kind}", "u64")


def _text(expressions: "Expressions", parameter: MarkerParameter, pointer: Scalar | Maybe) -> Value:
    """Return the text at an address; where the address is missing it is read at 0, and missing too."""
    emit = expressions.emit
    if isinstance(pointer, Maybe):
        where = emit.temporary(u64)
        emit.add(ir.Assign(where, ir.Const(0, u64)))
        with emit.when(pointer.present):
            emit.add(ir.Assign(where, pointer.value.expr))
        return texts.at_address(expressions, parameter.node, where)
    return texts.at_address(expressions, parameter.node, pointer.expr)
