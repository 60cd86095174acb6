"""Going through the intermediate language: the statements within statements, the expressions within both."""

from collections.abc import Iterator

from anyprobe.handlers import ir


def statements(body: ir.Body) -> Iterator[ir.Stmt]:
    """Yield all statements, each before what is in it."""
    for each in body:
        yield each
        match each:
            case ir.If(_, then, orelse):
                yield from statements(then)
                yield from statements(orelse)
            case ir.Block(_, inner) | ir.Loop(_, _, inner):
                yield from statements(inner)
            case _:
                pass


def operands(each: ir.Stmt) -> tuple[ir.Expr, ...]:
    """Return the expressions that a statement itself evaluates."""
    match each:
        case ir.If(condition, _, _):
            return (condition,)
        case ir.Assign(_, value) | ir.Return(value) | ir.SetWord(_, value) | ir.StoreInstance(_, _, value):
            return (value,)
        case ir.Read(_, _, address):
            return (address,)
        case ir.ReadBytes(_, _, _, address, size, _):
            return (address, size)
        case ir.Write(address, value):
            return (address, value)
        case ir.BufferByte(_, _, index):
            return (index,)
        case ir.Update(_, _, values, key):
            return (*values, *(part for part in key if not isinstance(part, ir.Buffer)))
        case _:
            return ()


def parts(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    """Return the operands of an expression."""
    match expr:
        case ir.Unary(_, operand) | ir.Convert(operand, _) | ir.Bits(operand, _):
            return (operand,)
        case ir.Binary(_, left, right) | ir.Compare(_, left, right):
            return (left, right)
        case ir.Select(condition, then, orelse):
            return (condition, then, orelse)
        case _:
            return ()


def within(expr: ir.Expr) -> Iterator[ir.Expr]:
    """Yield an expression and everything in it."""
    yield expr
    for part in parts(expr):
        yield from within(part)


def expressions(body: ir.Body) -> Iterator[ir.Expr]:
    """Yield all expressions of some statements, parts included."""
    for each in statements(body):
        for operand in operands(each):
            yield from within(operand)
