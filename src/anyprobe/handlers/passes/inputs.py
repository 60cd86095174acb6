"""Unused inputs: words of the context that nothing reads go, so that no patch prepares them."""

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk


def remove_unused_inputs(handler: ir.Function) -> ir.Function:
    """Return the handler with the words that it uses."""
    used = {each.number for each in walk.expressions(handler.body) if isinstance(each, ir.Word)}
    for each in walk.statements(handler.body):
        if isinstance(each, ir.SetWord):
            used.add(each.number)
        elif isinstance(each, ir.LoadInstance | ir.StoreInstance):
            used.add(each.instance)
    if len(used) == len(handler.inputs):
        return handler
    places = {old: new for new, old in enumerate(sorted(used))}
    inputs = tuple(handler.inputs[old] for old in sorted(used))
    return handler._replace(inputs=inputs, body=_body(handler.body, places))


def _body(body: ir.Body, places: dict[int, int]) -> ir.Body:
    return tuple(_statement(each, places) for each in body)


def _statement(each: ir.Stmt, places: dict[int, int]) -> ir.Stmt:
    moved = walk.rebuilt(each, lambda expr: _expression(expr, places), lambda body: _body(body, places))
    match moved:
        case ir.SetWord(index, value):
            return ir.SetWord(places[index], value)
        case ir.LoadInstance() | ir.StoreInstance():
            return moved._replace(instance=places[moved.instance])
        case _:
            return moved


def _expression(expr: ir.Expr, places: dict[int, int]) -> ir.Expr:
    match expr:
        case ir.Word(index):
            return ir.Word(places[index])
        case ir.Unary(symbol, operand):
            return ir.Unary(symbol, _expression(operand, places))
        case ir.Convert(operand, kind):
            return ir.Convert(_expression(operand, places), kind)
        case ir.Bits(operand, kind):
            return ir.Bits(_expression(operand, places), kind)
        case ir.Binary(symbol, left, right):
            return ir.Binary(symbol, _expression(left, places), _expression(right, places))
        case ir.Compare(symbol, left, right):
            return ir.Compare(symbol, _expression(left, places), _expression(right, places))
        case ir.Select():
            return ir.Select(*(_expression(part, places) for part in (expr.condition, expr.then, expr.orelse)))
        case _:
            return expr
