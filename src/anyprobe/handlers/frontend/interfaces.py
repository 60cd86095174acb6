"""Interfaces of Go: as a number, and where they are shown, they are the type of their value, 0 if they are nil."""

from anyprobe.handlers.frontend import members, operators
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.operators import Fail
from anyprobe.handlers.frontend.values import Maybe, Packed, Scalar, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import PointerType, boolean, gotype, u64
from anyprobe.handlers.types.layouts import Field, StructType


def way_to_type(value: Value) -> tuple[Field, ...]:
    """Return the members that lead to the type of an interface's value; nothing for any other value."""
    here = value.value if isinstance(value, Maybe) else value
    kind: object = None
    if isinstance(here, Packed):
        kind = here.kind
    elif isinstance(here, Scalar) and isinstance(here.type, PointerType):
        kind = here.type.element
    return kind.dynamic_type if isinstance(kind, StructType) else ()


def settled(emit: Emitter, value: Value, fail: Fail) -> Value:
    """Return the type of an interface's value, and any other value as it is."""
    way = way_to_type(value)
    if not way:
        return value
    first: Value
    if isinstance(value, Packed):
        first = members.unpacked(value, way[0], fail)
    else:
        pointer = value.value if isinstance(value, Maybe) else value
        assert isinstance(pointer, Scalar)
        present = value.present if isinstance(value, Maybe) else ir.TRUE
        first = members.read(emit, operators.convert(pointer.expr, u64), present, way[0], fail)
    present = first.present if isinstance(first, Maybe) else ir.TRUE
    scalar = first.value if isinstance(first, Maybe) else first
    assert isinstance(scalar, Scalar)
    number = emit.keep(operators.convert(scalar.expr, u64))
    if len(way) == 1:
        return _as_type(present, number)
    there, found = emit.temporary(boolean), emit.temporary(u64)
    emit.add(ir.Assign(there, present))
    emit.add(ir.Assign(found, ir.Const(0, u64)))
    with emit.when(ir.Binary("&", present, ir.Compare("!=", number, ir.Const(0, u64)))):
        address = ir.Binary("+", number, ir.Const(way[1].offset // 8, u64))
        emit.add(ir.Read(there, found, address))
    return _as_type(there, found)


def _as_type(present: ir.Expr, number: ir.Expr) -> Value:
    scalar = Scalar(operators.convert(number, gotype))
    return scalar if present == ir.TRUE else Maybe(present, scalar)
