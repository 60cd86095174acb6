"""Going through the intermediate language: the statements within statements, the expressions within both."""

from collections.abc import Callable, Iterator

from anyprobe.handlers.ir import nodes as ir


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
        case ir.FillBuffer(_, words):
            return words
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


def rebuilt(
    each: ir.Stmt, expression: Callable[[ir.Expr], ir.Expr], body: Callable[[ir.Body], ir.Body]
) -> ir.Stmt:  # fmt: skip
    """Return a statement with its expressions and its bodies replaced."""
    match each:
        case ir.If(condition, then, orelse):
            return ir.If(expression(condition), body(then), body(orelse))
        case ir.Block(label, inner):
            return ir.Block(label, body(inner))
        case ir.Loop(label, bound, inner):
            return ir.Loop(label, bound, body(inner))
        case ir.Assign() | ir.Return() | ir.SetWord() | ir.StoreInstance():
            return each._replace(value=expression(each.value))
        case ir.Read():
            return each._replace(address=expression(each.address))
        case ir.ReadBytes():
            return each._replace(address=expression(each.address), size=expression(each.size))
        case ir.Write():
            return each._replace(address=expression(each.address), value=expression(each.value))
        case ir.FillBuffer():
            return each._replace(words=tuple(expression(word) for word in each.words))
        case ir.BufferByte():
            return each._replace(position=expression(each.position))
        case ir.Update():
            key = tuple(part if isinstance(part, ir.Buffer) else expression(part) for part in each.key)
            return each._replace(values=tuple(expression(value) for value in each.values), key=key)
        case _:
            return each
