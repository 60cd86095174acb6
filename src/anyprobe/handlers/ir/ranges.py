"""Between which bounds integers lie: what proves that loops end."""

from collections.abc import Iterable

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import IntegerType, PointerType, Type, boolean

Range = tuple[int, int]
"""The least and the greatest value."""
Known = dict[str, Range]
"""What is known of local variables at one place, by name."""

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def of_type(kind: Type) -> Range | None:
    """Return the range of a type, ``None`` for floats."""
    if isinstance(kind, IntegerType):
        return kind.low, kind.high
    if isinstance(kind, PointerType):
        return 0, (1 << 64) - 1
    return (0, 1) if kind == boolean else None


def of(expr: ir.Expr, known: Known) -> Range | None:
    """Return bounds of an expression, ``None`` for floats."""
    limits = of_type(expr.type)
    if limits is None:
        return None
    found: Range | None = None
    match expr:
        case ir.Const(value, _):
            found = (int(value), int(value))
        case ir.Local(name, _):
            found = known.get(name)
        case ir.Convert(operand, _):
            found = of(operand, known)
        case ir.Select():
            found = _select(expr, known)
        case ir.Binary(symbol, left, right):
            sides = of(left, known), of(right, known)
            if sides[0] is not None and sides[1] is not None:
                found = _binary(symbol, sides[0], sides[1])
        case _:
            pass
    # a result outside of the type wraps: nothing is known then
    return found if found is not None and limits[0] <= found[0] and found[1] <= limits[1] else limits


def _select(expr: ir.Select, known: Known) -> Range | None:
    then, orelse = of(expr.then, known), of(expr.orelse, known)
    if then is None or orelse is None:
        return None
    condition = expr.condition
    if isinstance(condition, ir.Compare) and condition.symbol in {"<", ">"}:
        sides = (condition.left, condition.right)
        if sides in {(expr.then, expr.orelse), (expr.orelse, expr.then)}:
            least = (condition.symbol == "<") == (sides[0] == expr.then)
            pick = min if least else max
            return pick(then[0], orelse[0]), pick(then[1], orelse[1])
    return min(then[0], orelse[0]), max(then[1], orelse[1])


def _binary(symbol: str, left: Range, right: Range) -> Range | None:
    match symbol:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "*":
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        case "&":
            positive = [side[1] for side in (left, right) if side[0] >= 0]
            return (0, min(positive)) if positive else None
        case "|" | "^" if left[0] >= 0 and right[0] >= 0:
            return 0, (1 << max(left[1], right[1]).bit_length()) - 1
        case "//" if right[0] > 0:
            corners = [a // b for a in left for b in right]
            return min(corners), max(corners)
        case "%" if right[0] > 0:
            return 0, min(right[1] - 1, left[1]) if left[0] >= 0 else right[1] - 1
        case ">>" if left[0] >= 0 and right[0] >= 0 and right[1] < 64:
            return left[0] >> right[1], left[1] >> right[0]
        case "<<" if left[0] >= 0 and right[0] >= 0 and right[1] < 64:
            return left[0] << right[0], left[1] << right[1]
    return None


def refine(condition: ir.Expr, truth: bool, known: Known) -> None:
    """Note what follows for local variables if a condition is true (or false)."""
    match condition:
        case ir.Unary("not", operand):
            refine(operand, not truth, known)
        case ir.Binary("&", left, right) if truth:
            refine(left, truth, known)
            refine(right, truth, known)
        case ir.Binary("|", left, right) if not truth:
            refine(left, truth, known)
            refine(right, truth, known)
        case ir.Compare(symbol, left, right):
            symbol = symbol if truth else _OPPOSITE[symbol]
            _narrow(left, symbol, of(right, known), known)
            _narrow(right, _MIRRORED[symbol], of(left, known), known)
        case _:
            pass


def _narrow(expr: ir.Expr, symbol: str, other: Range | None, known: Known) -> None:
    if isinstance(expr, ir.Convert) and of(expr.operand, known) == of(expr, known):
        expr = expr.operand  # the conversion changes no value
    current = of(expr, known)
    if not isinstance(expr, ir.Local) or other is None or current is None:
        return
    low, high = current
    match symbol:
        case "<":
            high = min(high, other[1] - 1)
        case "<=":
            high = min(high, other[1])
        case ">":
            low = max(low, other[0] + 1)
        case ">=":
            low = max(low, other[0])
        case "==":
            low, high = max(low, other[0]), min(high, other[1])
        case "!=" if other[0] == other[1]:
            low += low == other[0]
            high -= high == other[0]
    if low <= high:
        known[expr.name] = (low, high)


def joined(states: Iterable[Known]) -> Known:
    """Return what is known where several ways meet."""
    first, *rest = states
    return {
        name: (min(low, *(each[name][0] for each in rest)), max(high, *(each[name][1] for each in rest)))
        if rest
        else (low, high)
        for name, (low, high) in first.items()
        if all(name in each for each in rest)
    }
