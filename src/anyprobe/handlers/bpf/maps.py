"""Maps in the kernel: its hash maps, whose elements say of which ``set`` they are.

The kernel uses the element of a deleted key for another one at once, so a program that has just found it may read
another key's value. So each ``set`` has a *version* of its own, and an element is a version, the value, and the version
again. The kernel writes an element in this order, and before any key leads to it. A ``get`` reads it from the end, and
then looks the key up again: where both versions are one, and the key leads to that one now, the value is that key's.
Else another processor was in between, which is counted as contended, and nothing is found.

The region of a map counts what was lost, and has the last version.
"""

from collections.abc import Sequence

from llvmlite import ir

from anyprobe.handlers.bpf.helper_functions import POINTER, call
from anyprobe.handlers.bpf.layouts import (
    CONTENDED,
    DROPPED,
    ELEMENT_BYTES,
    LAST_VERSION,
    VALUE_AT,
    VERSION_AGAIN_AT,
)
from anyprobe.handlers.bpf.tables import key_place
from anyprobe.handlers.llvm.words import I1, I64, VOID, Local, Value, constant, pointer

_LOOKUP, _UPDATE, _DELETE = 1, 2, 3
_BUSY = -16
"""``EBUSY``: the program has interrupted a change of the same part of the map."""


def put(builder: ir.IRBuilder, region: Value, table: Value, key: Sequence[Value], value: Value) -> None:
    """Set the value of a key."""
    base = builder.ptrtoint(region, I64)
    version = builder.atomic_rmw("add", pointer(builder, base, LAST_VERSION), constant(1), "seq_cst")
    version = builder.add(version, constant(1))
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(I64, ELEMENT_BYTES // 8))
    for index, word in enumerate((version, value, version)):
        builder.store(word, builder.gep(place, [constant(0), constant(index)]))
    failed = call(builder, _UPDATE, [table, key_place(builder, key), builder.bitcast(place, POINTER), constant(0)])
    with builder.if_then(builder.icmp_signed("<", failed, constant(0)), likely=False):
        busy = builder.icmp_signed("==", failed, constant(_BUSY))
        with builder.if_else(busy) as (contended, dropped):
            with contended:
                _count(builder, base, CONTENDED)
            with dropped:
                _count(builder, base, DROPPED)


def get(builder: ir.IRBuilder, region: Value, table: Value, key: Sequence[Value]) -> tuple[Value, Value]:
    """Return whether a key is there (a bit) and its value."""
    present, value = Local(builder, ir.Constant(I1, 0)), Local(builder, constant(0))
    place = key_place(builder, key)
    found = call(builder, _LOOKUP, [table, place])
    with builder.if_then(builder.icmp_unsigned("!=", found, constant(0))):
        last = _read(builder, found, VERSION_AGAIN_AT)
        value.set(_read(builder, found, VALUE_AT))
        first = _read(builder, found, 0)
        again = call(builder, _LOOKUP, [table, place])
        with builder.if_then(builder.icmp_unsigned("!=", again, constant(0))):
            now = _read(builder, again, 0)
            same = builder.and_(builder.icmp_unsigned("==", first, last), builder.icmp_unsigned("==", now, first))
            present.set(same)
            with builder.if_then(builder.not_(same), likely=False):
                _count(builder, builder.ptrtoint(region, I64), CONTENDED)
    return present.get(), value.get()


def delete(builder: ir.IRBuilder, region: Value, table: Value, key: Sequence[Value]) -> tuple[Value, Value]:
    """Delete a key; return whether it was there (a bit) and the value that it had just before."""
    there, value = get(builder, region, table, key)
    deleted = Local(builder, ir.Constant(I1, 0))
    with builder.if_then(there):
        failed = call(builder, _DELETE, [table, key_place(builder, key)])
        deleted.set(builder.icmp_signed("==", failed, constant(0)))
    return deleted.get(), value


def _read(builder: ir.IRBuilder, address: Value, offset: int) -> Value:
    """Read a word after all that was read before it."""
    builder.call(ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True), [])
    return builder.load(pointer(builder, address, offset))


def _count(builder: ir.IRBuilder, base: Value, offset: int) -> None:
    builder.atomic_rmw("add", pointer(builder, base, offset), constant(1), "monotonic")
