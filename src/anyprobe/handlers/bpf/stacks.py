"""Stacks in the kernel: it goes up them itself, and keeps each one once, in a map of its own."""

import errno

from llvmlite import ir as llvm

from anyprobe.handlers.bpf.helper_functions import call
from anyprobe.handlers.bpf.layouts import DROPPED, PROCESS_SHIFT, stack_head
from anyprobe.handlers.llvm.words import I1, Value, constant
from anyprobe.handlers.types.storages import Stacks

_STACK, _PROCESS, _OF_THE_PROGRAM = 27, 14, 1 << 8
_NONE_THERE = -errno.EFAULT


def take(builder: llvm.IRBuilder, store: Stacks, context: Value, region: Value, table: Value) -> tuple[Value, Value]:
    """Return the number of a stack; one that finds no place is 0, and counted.

    The kernel keeps at most one stack of each hash. Its own threads have no stack of a program: 0, and nothing is lost.
    """
    found = call(builder, _STACK, [context, table, constant(0 if store.of_kernel else _OF_THE_PROGRAM)])
    there = builder.icmp_signed(">=", found, constant(0))
    is_lost = builder.and_(builder.not_(there), builder.icmp_signed("!=", found, constant(_NONE_THERE)))
    with builder.if_then(is_lost, likely=False):
        place = builder.gep(region, [constant(0), constant(DROPPED)])
        builder.atomic_rmw("add", place, constant(1), "monotonic")
    number = builder.or_(builder.add(found, constant(1)), constant(stack_head(store)))
    if not store.of_kernel:
        process = builder.lshr(call(builder, _PROCESS, []), constant(32))
        number = builder.or_(number, builder.shl(process, constant(PROCESS_SHIFT)))
    return llvm.Constant(I1, 1), builder.select(there, number, constant(0))
