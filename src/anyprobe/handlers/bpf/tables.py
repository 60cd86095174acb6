"""Aggregations in the kernel: cells in its arrays and hash maps, changed by its machine's atomic instructions.

An aggregation has a *region*, an array with one value: a head of ``HEAD_BYTES``, whose first word counts what was
dropped, and one cell. Without a key that is the cell. With one it stays zero and is what new elements of the hash map
are copies of. Elements are never deleted, so a cell that has been found stays what it is, and two that insert the same
key at once both find the one that came first.
"""

from collections.abc import Sequence

from llvmlite import ir

from anyprobe.data.layouts.cells import EXTREMES
from anyprobe.data.readers.tables import TableLayout
from anyprobe.handlers.bpf.helper_functions import POINTER, call, opaque
from anyprobe.handlers.bpf.layouts import DROPPED, HEAD_BYTES
from anyprobe.handlers.llvm.cells import bucket_of, extreme_code, update_cell
from anyprobe.handlers.llvm.words import I64, Local, Value, constant, pointer

_LOOKUP, _UPDATE = 1, 2
_IF_NEW = 1
_TRIES = 16
_HALF = 32


class KernelWords:
    """Words that all processors share."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        """Append with ``builder``."""
        self._builder = builder

    def increase(self, address: Value, offset: int, amount: Value | None = None) -> None:
        """Add to a word."""
        place = pointer(self._builder, address, offset)
        self._builder.atomic_rmw("add", place, constant(1) if amount is None else amount, "monotonic")

    def increase_exactly(self, address: Value, offset: int, wraps: int, value: Value, *, signed: bool) -> None:
        """Add to a sum; whether it leaves 64 bits is known from what it was."""
        builder = self._builder
        before = builder.atomic_rmw("add", pointer(builder, address, offset), value, "seq_cst")
        after = builder.add(before, value)
        if not signed:
            with builder.if_then(builder.icmp_unsigned("<", after, value), likely=False):
                self.increase(address, wraps)
            return
        changed = builder.and_(builder.xor(before, after), builder.xor(value, after))
        with builder.if_then(builder.icmp_signed("<", changed, constant(0)), likely=False):
            below = builder.icmp_signed("<", value, constant(0))
            self.increase(address, wraps, builder.select(below, constant(-1), constant(1)))

    def increase_by_square(self, address: Value, offset: int, value: Value, *, signed: bool) -> None:
        """Add a square to three words, the lowest one first: what it overflows by is known from what it was."""
        builder = self._builder
        if signed:
            value = builder.select(builder.icmp_signed("<", value, constant(0)), builder.neg(value), value)
        low, high = _square(builder, value)
        # the result is needed: only the stronger order yields it
        before = builder.atomic_rmw("add", pointer(builder, address, offset), low, "seq_cst")
        carry = builder.zext(builder.icmp_unsigned("<", builder.add(before, low), low), I64)
        amount = builder.add(high, carry)  # no square is so large that this overflows
        before = builder.atomic_rmw("add", pointer(builder, address, offset + 8), amount, "seq_cst")
        with builder.if_then(builder.icmp_unsigned("<", builder.add(before, amount), amount), likely=False):
            self.increase(address, offset + 16)

    def raise_to(self, address: Value, offset: int, value: Value) -> None:
        """Do nothing: extremes come first, since they may fail; see ``_raised``."""


def add(
    builder: ir.IRBuilder, layout: TableLayout, region: Value, table: Value | None, value: Value | None,
    key: Sequence[Value],
) -> None:  # fmt: skip
    """Add a value to the cell of a key; ``table`` is the hash map of an aggregation that has keys."""
    amount = constant(0) if value is None else value
    bucket = bucket_of(builder, layout.aggregation, amount, signed=layout.signed)
    base = builder.ptrtoint(region, I64)
    cell = builder.add(base, constant(HEAD_BYTES)) if table is None else _cell(builder, table, base, key)
    done = Local(builder, constant(0))
    there = builder.icmp_unsigned("!=", cell, constant(0))
    if bucket is not None:
        bucket = opaque(builder, bucket)  # or LLVM leaves out the comparison that the verifier wants to see
        there = builder.and_(there, builder.icmp_unsigned("<", bucket, constant(layout.aggregation.cell.buckets)))
    with builder.if_then(there):
        _raised(builder, layout, cell, amount, done)
        with builder.if_then(builder.icmp_unsigned("!=", done.get(), constant(0))):
            words = KernelWords(builder)
            update_cell(builder, words, layout.aggregation, cell, amount, bucket, signed=layout.signed)
    with builder.if_then(builder.icmp_unsigned("==", done.get(), constant(0))):
        KernelWords(builder).increase(base, DROPPED)


def key_place(builder: ir.IRBuilder, key: Sequence[Value]) -> Value:
    """Return where on the stack the words of a key have been stored."""
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(I64, len(key)))
    for index, word in enumerate(key):
        builder.store(word, builder.gep(place, [constant(0), constant(index)]))
    return builder.bitcast(place, POINTER)


def _cell(builder: ir.IRBuilder, table: Value, base: Value, key: Sequence[Value]) -> Value:
    """Return the address of the cell of a key, made if it is new; 0 if there is no room."""
    place = key_place(builder, key)
    found = Local(builder, call(builder, _LOOKUP, [table, place]))
    with builder.if_then(builder.icmp_unsigned("==", found.get(), constant(0)), likely=False):
        call(builder, _UPDATE, [table, place, pointer(builder, base, HEAD_BYTES), constant(_IF_NEW)])
        found.set(call(builder, _LOOKUP, [table, place]))
    return found.get()


def _raised(builder: ir.IRBuilder, layout: TableLayout, cell: Value, value: Value, done: Local) -> None:
    """Raise the extremes of a cell; ``done`` becomes 1 if that could be.

    The kernel's machine has no instruction for it and programs have to end: who loses the race for a word to larger
    values sixteen times in a row has to drop the value.
    """
    fields = layout.aggregation.cell.fields
    done.set(constant(1))
    for field in [each for each in fields if each in EXTREMES]:
        code = extreme_code(builder, field, value, signed=layout.signed)
        with builder.if_then(builder.icmp_unsigned("!=", done.get(), constant(0))):
            _raise(builder, pointer(builder, cell, layout.aggregation.cell.offset(field)), code, done)


def _raise(builder: ir.IRBuilder, place: Value, code: Value, done: Local) -> None:
    seen, tries = Local(builder, builder.load(place)), Local(builder, constant(0))
    top, exchange, again, after = (builder.append_basic_block(name) for name in ("raise", "swap", "again", "raised"))
    builder.branch(top)
    builder.position_at_end(top)
    expected = seen.get()
    builder.cbranch(builder.icmp_unsigned(">", code, expected), exchange, after)
    builder.position_at_end(exchange)
    found = builder.extract_value(builder.cmpxchg(place, expected, code, "seq_cst", "seq_cst"), 0)
    seen.set(found)
    builder.cbranch(builder.icmp_unsigned("==", found, expected), after, again)
    builder.position_at_end(again)
    tries.set(builder.add(tries.get(), constant(1)))
    more = builder.icmp_unsigned("<", tries.get(), constant(_TRIES))
    done.set(builder.zext(more, I64))
    builder.cbranch(more, top, after)
    builder.position_at_end(after)


def _square(builder: ir.IRBuilder, value: Value) -> tuple[Value, Value]:
    """Return both halves of a square, from products of 32 bits: the machine has none of 128."""
    low = builder.and_(value, constant((1 << _HALF) - 1))
    high = builder.lshr(value, constant(_HALF))
    cross = builder.mul(low, high)
    # value² = high² << 64  +  cross << 33  +  low²
    first = builder.mul(low, low)
    second = builder.shl(cross, constant(_HALF + 1))
    total = builder.add(first, second)
    carry = builder.zext(builder.icmp_unsigned("<", total, first), I64)
    upper = builder.add(builder.mul(high, high), builder.lshr(cross, constant(_HALF - 1)))
    return total, builder.add(upper, carry)
