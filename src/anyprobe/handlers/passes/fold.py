"""Constant folding: expressions of constants become constants, conditions that are known choose their branch."""

from anyprobe.handlers.ir import arithmetic, walk
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import FloatType, IntegerType, PointerType, u64


def fold(handler: ir.Function) -> ir.Function:
    """Return the handler with its constants folded."""
    return handler._replace(body=_body(handler.body))


def _body(statements: ir.Body) -> ir.Body:
    folded: list[ir.Stmt] = []
    for each in statements:
        folded += _statement(each)
    return tuple(folded)


def _statement(each: ir.Stmt) -> ir.Body:
    folded = walk.rebuilt(each, expression, _body)
    if isinstance(folded, ir.If) and isinstance(folded.condition, ir.Const):
        return folded.then if folded.condition.value else folded.orelse
    return (folded,)


def expression(expr: ir.Expr) -> ir.Expr:
    """Return an expression with its constants folded."""
    match expr:
        case ir.Unary(symbol, operand):
            return _unary(ir.Unary(symbol, expression(operand)))
        case ir.Binary(symbol, left, right):
            return _binary(ir.Binary(symbol, expression(left), expression(right)))
        case ir.Compare(symbol, left, right):
            left, right = expression(left), expression(right)
            if isinstance(left, ir.Const) and isinstance(right, ir.Const):
                return ir.TRUE if arithmetic.COMPARISONS[symbol](left.value, right.value) else ir.FALSE
            return ir.Compare(symbol, left, right)
        case ir.Convert(operand, kind):
            return _convert(ir.Convert(expression(operand), kind))
        case ir.Select(condition, then, orelse):
            condition, then, orelse = expression(condition), expression(then), expression(orelse)
            if isinstance(condition, ir.Const):
                return then if condition.value else orelse
            return then if then == orelse else ir.Select(condition, then, orelse)
        case _:
            return expr


def _unary(expr: ir.Unary) -> ir.Expr:
    operand = expr.operand
    if expr.symbol == "not" and isinstance(operand, ir.Unary) and operand.symbol == "not":
        return operand.operand
    if not isinstance(operand, ir.Const):
        return expr
    kind, value = operand.type, operand.value
    if expr.symbol == "not":
        return ir.FALSE if value else ir.TRUE
    if isinstance(kind, FloatType):
        return ir.Const(-value if expr.symbol == "-" else abs(value), kind)
    assert isinstance(kind, IntegerType)
    return ir.Const(kind.wrap(-int(value) if expr.symbol == "-" else ~int(value)), kind)


def _binary(expr: ir.Binary) -> ir.Expr:
    left, right, kind = expr.left, expr.right, expr.type
    if isinstance(left, ir.Const) and isinstance(right, ir.Const):
        if isinstance(kind, FloatType):
            return ir.Const(arithmetic.floating(expr.symbol, kind, left.value, right.value), kind)
        if isinstance(kind, IntegerType):
            return ir.Const(arithmetic.integer(expr.symbol, kind, int(left.value), int(right.value)), kind)
        return ir.TRUE if arithmetic.integer(expr.symbol, u64, int(left.value), int(right.value)) else ir.FALSE
    for one, other in ((left, right), (right, left)):
        if expr.symbol == "&" and one == ir.TRUE:
            return other
        if expr.symbol == "|" and one == ir.FALSE:
            return other
        if (expr.symbol, one) in {("&", ir.FALSE), ("|", ir.TRUE)}:
            return one
    zero = isinstance(right, ir.Const) and right.value == 0 and not isinstance(kind, FloatType)
    return left if zero and expr.symbol in {"+", "-", "|", "^", "<<", ">>"} else expr


def _convert(expr: ir.Convert) -> ir.Expr:
    operand, kind = expr.operand, expr.type
    if operand.type == kind:
        return operand
    if not isinstance(operand, ir.Const):
        return expr
    value = operand.value
    if isinstance(kind, FloatType):
        try:
            return ir.Const(kind(float(value)), kind)
        except OverflowError:
            return expr
    if isinstance(value, float):
        return ir.Const(arithmetic.float_to_integer(kind, value), kind) if isinstance(kind, IntegerType) else expr
    return ir.Const(u64.wrap(value) if isinstance(kind, PointerType) else kind.wrap(value), kind)  # type: ignore[union-attr]
