"""Records in the kernel: each kind in a ring buffer of the kernel's that all processors share.

The region of a kind of records counts those that found no room.
"""

from collections.abc import Sequence

from llvmlite import ir

from anyprobe.data.aggregates.records import RecordType
from anyprobe.handlers.bpf.helper_functions import call
from anyprobe.handlers.bpf.layouts import DROPPED
from anyprobe.handlers.llvm.rings import store_field
from anyprobe.handlers.llvm.words import Value, constant, pointer

_NOW, _RESERVE, _SUBMIT = 5, 131, 132
_WAKE_NOBODY = 1
"""Who reads looks by itself, from time to time."""


def emit(builder: ir.IRBuilder, record: RecordType, region: Value, ring: Value, values: Sequence[Value]) -> None:
    """Write a record."""
    slot = call(builder, _RESERVE, [ring, constant(record.bytes), constant(0)])
    with builder.if_else(builder.icmp_unsigned("!=", slot, constant(0)), likely=True) as (there, full):
        with there:
            for field, offset, value in zip(record.fields, record.offsets, values, strict=False):
                store_field(builder, field, builder.add(slot, constant(offset)), value)
            builder.store(call(builder, _NOW, []), pointer(builder, slot))
            call(builder, _SUBMIT, [slot, constant(_WAKE_NOBODY)])
        with full:
            place = builder.gep(region, [constant(0), constant(DROPPED)])
            builder.atomic_rmw("add", place, constant(1), "monotonic")
