"""What the operations of handlers mean, on Python numbers: the table of docs/handlers.md as code.

Constant folding and the interpreter use it; the code generators are tested against it.
"""

import math
import operator
from collections.abc import Callable

from anyprobe.handlers.types.annotations import FloatType, IntegerType

Number = int | float


def shift_left(kind: IntegerType, value: int, count: int) -> int:
    """Return ``value << count``; a count that is negative or not below the width shifts everything out."""
    return kind.wrap(value << count) if 0 <= count < kind.bits else 0


def shift_right(kind: IntegerType, value: int, count: int) -> int:
    """Return ``value >> count``, with copies of the sign; counts as for ``shift_left``."""
    if not 0 <= count < kind.bits:
        return -1 if value < 0 else 0
    return kind.wrap(value >> count)


def divide(kind: IntegerType, left: int, right: int) -> int:
    """Return the quotient rounded down, as in Python; by zero it is 0."""
    return kind.wrap(left // right) if right else 0


def remainder(kind: IntegerType, left: int, right: int) -> int:
    """Return the remainder, which has the divisor's sign, as in Python; by zero it is 0."""
    return kind.wrap(left % right) if right else 0


def _divide_floats(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left) or math.isnan(right):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def float_to_integer(kind: IntegerType, value: float) -> int:
    """Return a float without its fraction; what does not fit becomes the nearest that does, no number becomes 0."""
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return kind.high if value > 0 else kind.low
    return min(max(math.trunc(value), kind.low), kind.high)


_WRAPPING: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_OWN: dict[str, Callable[[IntegerType, int, int], int]] = {
    "<<": shift_left,
    ">>": shift_right,
    "//": divide,
    "%": remainder,
}
_FLOATING: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide_floats,
}


def integer(symbol: str, kind: IntegerType, left: int, right: int) -> int:
    """Return the result of an operation on two integers of one type."""
    if symbol in _OWN:
        return _OWN[symbol](kind, left, right)
    return kind.wrap(_WRAPPING[symbol](left, right))


def floating(symbol: str, kind: FloatType, left: float, right: float) -> float:
    """Return the result of an operation on two floats of one type.

    Sums, differences, products and quotients of two 32-bit numbers are the same whether rounded once or, as here,
    first to 64 bits.
    """
    return kind.rounded(_FLOATING[symbol](left, right))


COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""By symbol; integers compare by value, whatever their signedness."""
