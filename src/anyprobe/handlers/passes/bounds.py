"""Bounds: how many operations one run of a handler executes at most, and how many bytes its buffers take.

A loop costs its bound times its body; of two branches the dearer one counts. What ends a run early makes it shorter.
"""

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk

STEPS_LIMIT = 100_000
"""Operations that a handler may take: some 50 µs."""
READ_COST, UPDATE_COST, FRAME_COST = 20, 30, 60


def steps(handler: ir.Function) -> int:
    """Return the operations that one run executes at most."""
    return _body(handler.body)


def _body(statements: ir.Body) -> int:
    return sum(_statement(each) for each in statements)


def _statement(each: ir.Stmt) -> int:
    operands = sum(_cost(expr) for expr in walk.operands(each))
    match each:
        case ir.If(_, then, orelse):
            return 1 + operands + max(_body(then), _body(orelse))
        case ir.Block(_, inner):
            return _body(inner)
        case ir.Loop(_, bound, inner):
            return bound * (1 + _body(inner))
        case ir.Read() | ir.Write():
            return READ_COST + operands
        case ir.ReadBytes():
            return READ_COST + each.buffer.size + operands
        case ir.ReadComm() | ir.ReadCpu():
            return READ_COST
        case ir.FillBuffer():
            return each.buffer.size // 8 + 1 + operands
        case ir.BufferEquals():
            return 1 + 2 * len(each.words)
        case ir.Update(_, "capture", (ir.Const(depth, _), *_)):
            return FRAME_COST * int(depth) + operands
        case ir.Update():
            return UPDATE_COST + operands + sum(part.size for part in each.key if isinstance(part, ir.Buffer))
        case ir.Mark():
            return 0
        case _:
            return 1 + operands


def _cost(expr: ir.Expr) -> int:
    """Return the operations of an expression: one for each that is not a leaf."""
    return sum(1 for each in walk.within(expr) if walk.parts(each))
