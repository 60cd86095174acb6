"""Enums of Rust: ``value.Some`` is missing in any other variant, ``value.is_Some`` says which one it is."""

from collections.abc import Callable

from anyprobe.handlers.frontend import members, operators
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.operators import Fail
from anyprobe.handlers.frontend.values import Maybe, Packed, Scalar, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import PointerType, boolean, u64
from anyprobe.handlers.types.layouts import Field, StructType, Variants

Demand = Callable[[Value], object]
"""Ends the handler where a value is missing."""
_IS = "is_"
_ALONE = "__0"
"""The member of a variant with one value, as debug information calls it."""


def attribute(emit: Emitter, value: Value, kind: StructType, name: str, fail: Fail, demand: Demand) -> Value | None:
    """Compile ``value.name`` of an enum; ``None`` if there is no variant of the name."""
    variants = kind.variants
    asked = name.removeprefix(_IS)
    if variants is None or asked not in variants.alternatives or (name != asked and name in variants.alternatives):
        return None
    present, matches = _matches(emit, value, variants, asked, fail)
    if name != asked:
        return Scalar(matches) if present == ir.TRUE else Maybe(present, Scalar(matches))
    there = emit.keep(matches if present == ir.TRUE else ir.Binary("&", present, matches))
    field = _inner(variants.alternatives[asked][1])
    if not isinstance(value, Packed):
        pointer = value.value if isinstance(value, Maybe) else value
        assert isinstance(pointer, Scalar)
        return members.read(emit, operators.convert(pointer.expr, u64), there, field, fail)
    found = members.unpacked(value, field, fail)
    if isinstance(found, Scalar):
        return Maybe(there, found)
    # what is left of a handler after this has the struct: elsewhere it ends here, or the field is missing
    demand(Maybe(there, Scalar(ir.TRUE)))
    return found


def _inner(field: Field) -> Field:
    """Return the one value of a variant that has one, else its struct."""
    kind = field.kind
    alone = kind.fields[0] if isinstance(kind, StructType) and len(kind.fields) == 1 else None
    return Field("", alone.kind, field.offset + alone.offset) if alone is not None and alone.name == _ALONE else field


def _matches(emit: Emitter, value: Value, variants: Variants, name: str, fail: Fail) -> tuple[ir.Expr, ir.Expr]:
    """Return whether it is known which variant a value is, and whether it is the one."""
    discriminant = variants.discriminant
    if isinstance(value, Packed):
        found = members.unpacked(value, discriminant, fail)
    else:
        pointer = value.value if isinstance(value, Maybe) else value
        assert isinstance(pointer, Scalar)
        assert isinstance(pointer.type, PointerType)
        present = value.present if isinstance(value, Maybe) else ir.TRUE
        found = members.read(emit, operators.convert(pointer.expr, u64), present, discriminant, fail)
    known = found.present if isinstance(found, Maybe) else ir.TRUE
    scalar = found.value if isinstance(found, Maybe) else found
    assert isinstance(scalar, Scalar)
    number = emit.keep(operators.convert(scalar.expr, u64))
    wanted, _ = variants.alternatives[name]
    if wanted is not None:
        return known, ir.Compare("==", number, ir.Const(wanted, u64))
    others: ir.Expr = ir.TRUE
    for value_of_other, _ in variants.alternatives.values():
        if value_of_other is not None:
            differs = ir.Compare("!=", number, ir.Const(value_of_other, u64))
            others = differs if others == ir.TRUE else ir.Binary("&", others, differs)
    result = emit.temporary(boolean)
    emit.add(ir.Assign(result, others))
    return known, result
