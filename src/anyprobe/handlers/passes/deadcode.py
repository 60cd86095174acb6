"""Dead code: statements that never run, and assignments to variables that are never read, are removed."""

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk


def remove_dead_code(handler: ir.Function) -> ir.Function:
    """Return the handler without what has no effect."""
    body = handler.body
    while True:
        read = {each.name for each in walk.expressions(body) if isinstance(each, ir.Local)}
        shorter = _body(body, read)
        if shorter == body:
            return handler._replace(body=body)
        body = shorter


def _body(statements: ir.Body, read: set[str]) -> ir.Body:
    kept: list[ir.Stmt] = []
    for each in statements:
        kept += _statement(each, read)
        if kept and isinstance(kept[-1], ir.Leave | ir.Return):
            break
    return tuple(kept)


def _statement(each: ir.Stmt, read: set[str]) -> ir.Body:
    match each:
        case ir.Assign(local, _):
            return (each,) if local.name in read else ()
        case ir.If(condition, then, orelse):
            then, orelse = _body(then, read), _body(orelse, read)
            if _is_empty(then) and _is_empty(orelse):
                return ()
            return (
                (ir.If(condition, then, orelse),)
                if not _is_empty(then)
                else (ir.If(ir.Unary("not", condition), orelse),)
            )
        case ir.Block(label, inner):
            inner = _body(inner, read)
            if inner and inner[-1] == ir.Leave(label):
                inner = inner[:-1]
            if _is_empty(inner):
                return ()
            return (ir.Block(label, inner),) if leaves(inner, label) else inner
        case ir.Loop(label, bound, inner):
            return (ir.Loop(label, bound, _body(inner, read)),)
        case ir.BufferByte(target, _, _) | ir.BufferWord(target, _, _) | ir.BufferEquals(target, _, _):
            return (each,) if target.name in read else ()
        case ir.LoadInstance(present, target, _, _):
            return (each,) if {present.name, target.name} & read else ()
        case _:
            return (each,)


def _is_empty(statements: ir.Body) -> bool:
    """Return whether statements do nothing."""
    return all(isinstance(each, ir.Mark) for each in statements)


def leaves(statements: ir.Body, label: str) -> bool:
    """Return whether some statement leaves the statement of a label."""
    return any(isinstance(each, ir.Leave) and each.label == label for each in walk.statements(statements))
