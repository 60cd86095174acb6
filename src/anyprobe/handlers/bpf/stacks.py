"""Stacks in the kernel: it goes up them itself, by frame pointers, and keeps each one once, in a map of its own."""

from dataclasses import replace

from llvmlite import ir as llvm

from anyprobe.core.errors import HandlerError
from anyprobe.handlers.bpf.helper_functions import call
from anyprobe.handlers.frontend.context import CAPTURE
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk
from anyprobe.handlers.llvm.words import I1, Value, constant
from anyprobe.handlers.passes.inputs import remove_unused_inputs

CAPACITY = 8192
_STACK, _OF_THE_PROGRAM = 27, 1 << 8


def depth_of(handler: ir.Function) -> int:
    """Return how many addresses the stacks of a handler have at most: a map has stacks of one size."""
    depths = {
        int(each.values[0].value)
        for each in walk.statements(handler.body)
        if isinstance(each, ir.Update) and each.operation == CAPTURE and isinstance(each.values[0], ir.Const)
    }
    if len(depths) > 1:
        raise HandlerError(
            f"stacks of {sorted(depths)} addresses in one handler are not possible in the kernel yet",
            instead="stacks of one size",
        )
    return max(depths, default=1)


def without_registers(handler: ir.Function) -> ir.Function:
    """Return a handler that does not say where its stacks begin: the kernel knows."""
    return remove_unused_inputs(replace(handler, body=_body(handler.body)))


def _body(body: ir.Body) -> ir.Body:
    return tuple(_statement(each) for each in body)


def _statement(each: ir.Stmt) -> ir.Stmt:
    if isinstance(each, ir.Update) and each.operation == CAPTURE:
        return replace(each, values=())
    return walk.rebuilt(each, lambda expr: expr, _body)


def take(builder: llvm.IRBuilder, context: Value, region: Value, table: Value) -> tuple[Value, Value]:
    """Return the number of the program's stack; one that finds no place is 0, and counted in the region's first word.

    The kernel keeps at most one stack of each hash.
    """
    found = call(builder, _STACK, [context, table, constant(_OF_THE_PROGRAM)])
    there = builder.icmp_signed(">=", found, constant(0))
    with builder.if_then(builder.not_(there), likely=False):
        place = builder.gep(region, [constant(0), constant(0)])
        builder.atomic_rmw("add", place, constant(1), "monotonic")
    return llvm.Constant(I1, 1), builder.select(there, builder.add(found, constant(1)), constant(0))
