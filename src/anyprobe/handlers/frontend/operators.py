"""What operators mean for values of handlers: the typing rules of docs/handlers.md.

Whole numbers are computed in 64 bits: as ``u64`` if an operand is, else as ``i64``. Constants take the type of the
other operand. Comparisons compare numbers, not representations.
"""

import operator
from collections.abc import Callable
from typing import Any

from anyprobe.core.code import Miss
from anyprobe.core.errors import HandlerError
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.values import Literal, Scalar, Value, described
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import ranges
from anyprobe.handlers.ir.arithmetic import COMPARISONS
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
)

Fail = Callable[[str, str], HandlerError]
"""Makes the error for the place in question, from what is wrong and what to write instead."""

_ON_CONSTANTS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, **COMPARISONS,
}  # fmt: skip
_WRAPPING = frozenset(["+", "-", "*", "&", "|", "^"])


def constants(symbol: str, left: Any, right: Any, fail: Fail) -> Literal:  # noqa: ANN401 - as in Python
    """Compute with two constants as Python does."""
    try:
        if symbol in {"<<", "**"} and isinstance(right, int) and abs(right) > 4096:
            raise OverflowError("the result is too large")
        return Literal(_ON_CONSTANTS[symbol](left, right))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise fail(str(error), "") from None


def typed(literal: Any, kind: Type, fail: Fail) -> ir.Const:  # noqa: ANN401 - whatever the constant is
    """Return a constant as a value of a type; raise if it does not fit."""
    if isinstance(kind, FloatType) and isinstance(literal, int | float):
        try:
            return ir.Const(kind(literal), kind)
        except OverflowError:
            raise fail(f"{literal} does not fit {kind}", "") from None
    if kind == boolean and isinstance(literal, bool):
        return ir.Const(int(literal), kind)
    if isinstance(kind, PointerType) and isinstance(literal, int) and u64.wrap(literal) == literal:
        return ir.Const(int(literal), kind)
    if isinstance(kind, IntegerType) and isinstance(literal, int):
        if kind.wrap(literal) == literal:
            return ir.Const(int(literal), kind)
        raise fail(f"{literal} does not fit {kind}", f"{kind}({literal}), which is {kind.wrap(literal)}")
    raise fail(f"{literal!r} is no {kind}", "")


def natural(literal: Any, fail: Fail) -> ir.Const:  # noqa: ANN401 - whatever the constant is
    """Return a constant with the type that it has on its own."""
    if isinstance(literal, bool):
        return ir.Const(int(literal), boolean)
    if isinstance(literal, int):
        return typed(literal, u64 if literal > i64.high else i64, fail)
    if isinstance(literal, float):
        return ir.Const(literal, f64)
    raise fail(f"{literal!r} is no number", "")


def convert(expr: ir.Expr, kind: Type) -> ir.Expr:
    """Return an expression converted to a type, which is not ``bool``."""
    return expr if expr.type == kind else ir.Convert(expr, kind)


def widened(expr: ir.Expr) -> ir.Expr:
    """Return a whole number in the 64 bits in which it is computed with; booleans are 0 and 1, floats stay."""
    if isinstance(expr.type, FloatType):
        return expr
    return convert(expr, u64 if expr.type == u64 or isinstance(expr.type, PointerType) else i64)


def arithmetic(emit: Emitter, symbol: str, left: Value, right: Value, fail: Fail) -> Value:
    """Apply a binary operator."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        return constants(symbol, left.value, right.value, fail)
    if symbol == "**":
        raise fail("powers are computed of constants only", "x * x")
    if symbol not in {"+", "-"}:
        left, right = _numbered(left), _numbered(right)
    kinds = [value.type for value in (left, right) if isinstance(value, Scalar)]
    if any(isinstance(kind, PointerType) for kind in kinds):
        return _pointer(symbol, left, right, fail)
    if any(isinstance(kind, FloatType) for kind in kinds) or float in {_literal_type(left), _literal_type(right)}:
        return _floating(symbol, left, right, fail)
    if symbol == "/":
        raise fail("/ divides floats", "a // b for whole numbers, f64(a) / b for a fraction")
    return _whole(emit, symbol, left, right, fail)


def _numbered(value: Value) -> Value:
    """Return an address of a program that was given as a number as one again, which leads nowhere any more."""
    if isinstance(value, Scalar) and value.type == PointerType(user=True):
        return Scalar(convert(value.expr, u64))
    return value


def _literal_type(value: Value) -> type | None:
    return type(value.value) if isinstance(value, Literal) else None


def _operand(value: Value, kind: Type, fail: Fail) -> ir.Expr:
    """Return an operand as the type in which is computed."""
    if isinstance(value, Literal):
        return typed(int(value.value) if isinstance(value.value, bool) else value.value, kind, fail)
    if isinstance(value, Scalar):
        return convert(value.expr, kind)
    raise fail(f"{described(value)} is no number", "")


def _whole(emit: Emitter, symbol: str, left: Value, right: Value, fail: Fail) -> Value:
    if symbol in {"<<", ">>"}:
        return _shift(symbol, left, right, fail)
    kinds = [widened(value.expr).type for value in (left, right) if isinstance(value, Scalar)]
    kind = u64 if u64 in kinds else i64
    if symbol not in _WRAPPING and kind == u64:
        for value in (left, right):
            if isinstance(value, Scalar) and isinstance(value.type, IntegerType) and value.type.signed:
                raise fail(f"{symbol} of signed and unsigned numbers", "i64(…) or u64(…) around one of them")
    operands = _operand(left, kind, fail), _operand(right, kind, fail)
    if symbol not in {"//", "%"}:
        return Scalar(ir.Binary(symbol, *operands))
    dividend, divisor = emit.keep(operands[0]), emit.keep(operands[1])
    bounds = ranges.of(divisor, emit.flow.known)
    if bounds is None or bounds[0] <= 0 <= bounds[1]:
        with emit.when(ir.Compare("==", divisor, ir.Const(0, kind))):
            emit.add(ir.CountMiss(Miss.DIVISION))
    return Scalar(ir.Binary(symbol, dividend, divisor))


def _shift(symbol: str, left: Value, right: Value, fail: Fail) -> Value:
    value = natural(left.value, fail) if isinstance(left, Literal) else None
    shifted = widened(value if value is not None else _operand(left, left.type, fail))  # type: ignore[union-attr]
    if isinstance(right, Literal):
        if not isinstance(right.value, int) or right.value < 0:
            raise fail(f"a shift by {right.value!r}", "")
        count: ir.Expr = ir.Const(min(right.value, u64.high), u64)
    else:
        count = convert(widened(_operand(right, right.type, fail)), u64)  # type: ignore[union-attr]
    return Scalar(ir.Binary(symbol, shifted, count))


def float_kind(left: Value, right: Value) -> FloatType:
    """Return the type in which two operands, one of which is a float, are computed."""
    kinds = [value.type for value in (left, right) if isinstance(value, Scalar)]
    first = kinds[0]
    return first if isinstance(first, FloatType) and all(kind == first for kind in kinds) else f64


def _floating(symbol: str, left: Value, right: Value, fail: Fail) -> Value:
    if symbol not in {"+", "-", "*", "/"}:
        raise fail(f"{symbol} is not defined on floats", "i64(x) for the whole number")
    kind = float_kind(left, right)
    return Scalar(ir.Binary(symbol, _operand(left, kind, fail), _operand(right, kind, fail)))


def _pointer(symbol: str, left: Value, right: Value, fail: Fail) -> Value:
    base, offset = (left, right) if isinstance(left, Scalar) and isinstance(left.type, PointerType) else (right, left)
    assert isinstance(base, Scalar)
    assert isinstance(base.type, PointerType)
    whole = isinstance(offset, Literal) or (isinstance(offset, Scalar) and isinstance(offset.type, IntegerType))
    if symbol not in {"+", "-"} or not whole or (symbol == "-" and base is right):
        raise fail("of pointers there are only p + n, n + p and p - n", "u64(p) for the address as a number")
    scale = base.type.element.size if base.type.element is not None else 1
    if isinstance(offset, Literal):
        distance: ir.Expr = ir.Const(u64.wrap(int(offset.value) * scale), u64)
    else:
        assert isinstance(offset, Scalar)
        distance = convert(widened(offset.expr), u64)
        if scale > 1:
            distance = ir.Binary("*", distance, ir.Const(scale, u64))
    return Scalar(convert(ir.Binary(symbol, convert(base.expr, u64), distance), base.type))


def compare(symbol: str, left: Value, right: Value, fail: Fail) -> Value:
    """Compare two numbers by value."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        return constants(symbol, left.value, right.value, fail)
    kinds = [value.type for value in (left, right) if isinstance(value, Scalar)]
    if any(isinstance(kind, FloatType) for kind in kinds) or float in {_literal_type(left), _literal_type(right)}:
        kind = float_kind(left, right)
        return Scalar(ir.Compare(symbol, _operand(left, kind, fail), _operand(right, kind, fail)))
    for literal, other, mirrored in ((left, right, True), (right, left, False)):
        if isinstance(literal, Literal) and isinstance(other, Scalar):
            return _compare_constant(symbol, literal.value, other, fail, mirrored=mirrored)
    if not isinstance(left, Scalar) or not isinstance(right, Scalar):
        wrong = left if not isinstance(left, Scalar) else right
        raise fail(f"{described(wrong)} cannot be compared with {symbol}", "")
    return Scalar(_compare_whole(symbol, widened(left.expr), widened(right.expr)))


def _compare_constant(symbol: str, literal: Any, other: Scalar, fail: Fail, *, mirrored: bool) -> Value:  # noqa: ANN401
    if not isinstance(literal, int):
        raise fail(f"{literal!r} cannot be compared with {other.type}", "")
    expr = widened(other.expr)
    assert isinstance(expr.type, IntegerType)
    if expr.type.wrap(int(literal)) != int(literal):
        sides = (literal, expr.type.low) if mirrored else (expr.type.low, literal)
        return Literal(COMPARISONS[symbol](*sides))
    constant = ir.Const(int(literal), expr.type)
    return Scalar(ir.Compare(symbol, constant, expr) if mirrored else ir.Compare(symbol, expr, constant))


def _compare_whole(symbol: str, left: ir.Expr, right: ir.Expr) -> ir.Expr:
    if left.type == right.type:
        return ir.Compare(symbol, left, right)
    signed = left if left.type == i64 else right
    negative = ir.Compare("<", signed, ir.Const(0, i64))
    same = ir.Compare(symbol, convert(left, u64), convert(right, u64))
    # a negative number is below each unsigned one
    if_negative = COMPARISONS[symbol](-1, 0) if signed is left else COMPARISONS[symbol](0, -1)
    if if_negative:
        return ir.Binary("|", negative, same)
    return ir.Binary("&", ir.Unary("not", negative), same)


def truth(value: Value, fail: Fail) -> ir.Expr:
    """Return whether a number is not zero, as a boolean."""
    match value:
        case Literal(constant):
            return ir.TRUE if constant else ir.FALSE
        case Scalar(expr):
            if isinstance(expr.type, BoolType):
                return expr
            zero = ir.Const(0.0 if isinstance(expr.type, FloatType) else 0, expr.type)
            return ir.Compare("!=", expr, zero)
        case _:
            raise fail(f"{described(value)} is neither true nor false", "x is not None, x > 0, len(x) > 0")


def negated(symbol: str, value: Value, fail: Fail) -> Value:
    """Apply ``-``, ``+`` or ``~``."""
    if isinstance(value, Literal):
        signs: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
        try:
            return Literal(signs[symbol](value.value))
        except TypeError as error:
            raise fail(str(error), "") from None
    if not isinstance(value, Scalar) or isinstance(value.type, PointerType):
        raise fail(f"{symbol} of {described(value)}", "")
    if isinstance(value.type, FloatType):
        if symbol == "~":
            raise fail("~ is not defined on floats", "")
        return value if symbol == "+" else Scalar(ir.Unary("-", value.expr))
    expr = widened(value.expr)
    return Scalar(expr if symbol == "+" else ir.Unary(symbol, expr))


def common(left: Value, right: Value, fail: Fail) -> tuple[ir.Expr, ir.Expr]:
    """Return two values as one type: the branches of a conditional expression, the arguments of ``min``."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        first, second = natural(left.value, fail), natural(right.value, fail)
        if first.type == second.type:
            return first, second
        return common(Scalar(first), Scalar(second), fail)
    if isinstance(left, Literal) and isinstance(right, Scalar):
        return _typed_like(left, right.expr, fail), _plain(right.expr)
    if isinstance(right, Literal) and isinstance(left, Scalar):
        return _plain(left.expr), _typed_like(right, left.expr, fail)
    if not isinstance(left, Scalar) or not isinstance(right, Scalar):
        wrong = left if not isinstance(left, Scalar) else right
        raise fail(f"{described(wrong)} is no number", "")
    first_expr, second_expr = left.expr, right.expr
    if first_expr.type == second_expr.type:
        return _plain(first_expr), _plain(second_expr)
    if isinstance(first_expr.type, FloatType) or isinstance(second_expr.type, FloatType):
        return convert(first_expr, f64), convert(second_expr, f64)
    first_expr, second_expr = widened(first_expr), widened(second_expr)
    if first_expr.type != second_expr.type:
        raise fail("one value is signed, the other unsigned", "i64(…) or u64(…) around one of them")
    return first_expr, second_expr


def _plain(expr: ir.Expr) -> ir.Expr:
    """Return a whole number in 64 bits, anything else as it is."""
    return widened(expr) if isinstance(expr.type, IntegerType) else expr


def _typed_like(literal: Literal, other: ir.Expr, fail: Fail) -> ir.Expr:
    kind = _plain(other).type
    if isinstance(literal.value, float) and not isinstance(kind, FloatType):
        raise fail("one value is a float, the other is not", "f64(…) around the other")
    return typed(literal.value, kind, fail)
