"""Updates of one cell of an aggregation, in LLVM's language."""

from typing import Protocol

from llvmlite import ir

from anyprobe.data.aggregates.aggregations import Aggregation, Hist, LQuantize, Quantize
from anyprobe.data.layouts import buckets, histogram
from anyprobe.data.layouts.cells import COUNT, EXTREMES, NOT_MIN, SQUARES, SUM, WRAPS
from anyprobe.handlers.llvm.words import (
    I1,
    I64,
    I128,
    Value,
    constant,
    increase,
    increase_exactly,
    increase_square,
    raise_to,
)

_TOP = 1 << 63


class Words(Protocol):
    """How single words of a cell are changed, which depends on the machine."""

    def increase(self, address: Value, offset: int, amount: Value | None = None) -> None:
        """Add to a word, one if no amount is given."""

    def increase_exactly(self, address: Value, offset: int, wraps: int, value: Value, *, signed: bool) -> None:
        """Add to a sum, and count in the word at ``wraps`` where it leaves 64 bits."""

    def increase_by_square(self, address: Value, offset: int, value: Value, *, signed: bool) -> None:
        """Add the square of a value to a number of 192 bits."""

    def raise_to(self, address: Value, offset: int, value: Value) -> None:
        """Make a word the larger of itself and a value, both unsigned."""


class NativeWords:
    """On x86-64: one instruction for each word, ``lock``ed where others change it, too."""

    def __init__(self, builder: ir.IRBuilder, *, atomic: bool) -> None:
        """Append with ``builder``."""
        self._builder, self._atomic = builder, atomic

    def increase(self, address: Value, offset: int, amount: Value | None = None) -> None:
        """Add to a word."""
        increase(self._builder, address, offset, amount, atomic=self._atomic)

    def increase_exactly(self, address: Value, offset: int, wraps: int, value: Value, *, signed: bool) -> None:
        """Add to a sum."""
        increase_exactly(self._builder, address, offset, wraps, value, signed=signed, atomic=self._atomic)

    def increase_by_square(self, address: Value, offset: int, value: Value, *, signed: bool) -> None:
        """Add a square to three words."""
        builder = self._builder
        wide = builder.sext(value, I128) if signed else builder.zext(value, I128)
        square = builder.mul(wide, wide)
        high = builder.trunc(builder.lshr(square, ir.Constant(I128, 64)), I64)
        increase_square(builder, address, offset, builder.trunc(square, I64), high, atomic=self._atomic)

    def raise_to(self, address: Value, offset: int, value: Value) -> None:
        """Raise a word."""
        raise_to(self._builder, address, offset, value)


def update_cell(
    builder: ir.IRBuilder, words: Words, aggregation: Aggregation, cell: Value, value: Value, bucket: Value | None, *,
    signed: bool,
) -> None:  # fmt: skip
    """Add a value to the cell at an address; ``bucket`` comes from ``bucket_of``."""
    layout = aggregation.cell
    for field in layout.fields:
        offset = layout.offset(field)
        if field == COUNT:
            words.increase(cell, offset)
        elif field == SUM:
            words.increase_exactly(cell, offset, layout.offset(WRAPS), value, signed=signed)
        elif field in EXTREMES:
            words.raise_to(cell, offset, extreme_code(builder, field, value, signed=signed))
        elif field == SQUARES:
            words.increase_by_square(cell, offset, value, signed=signed)
    if bucket is not None:
        word = builder.add(cell, builder.shl(bucket, constant(3)))
        words.increase(word, layout.buckets_offset)


def extreme_code(builder: ir.IRBuilder, field: str, value: Value, *, signed: bool) -> Value:
    """Return the word that stands for a value in one of ``EXTREMES``."""
    code = builder.xor(value, constant(_TOP)) if signed else value
    return builder.not_(code) if field == NOT_MIN else code


def bucket_of(builder: ir.IRBuilder, aggregation: Aggregation, value: Value, *, signed: bool) -> Value | None:
    """Return the number of the bucket that a value belongs to, None where there are no buckets."""
    if isinstance(aggregation, Hist):
        return _log_linear(builder, value, signed=signed)
    if isinstance(aggregation, Quantize):
        return _power(builder, value, signed=signed)
    if isinstance(aggregation, LQuantize):
        return _linear(builder, aggregation, value, signed=signed)
    return None


def _highest_bit(builder: ir.IRBuilder, value: Value) -> Value:
    """Return the position of the highest set bit; the value is not 0 (``bsr``)."""
    zeros = builder.ctlz(value, ir.Constant(I1, 1))
    return builder.xor(zeros, constant(63))


def _log_linear(builder: ir.IRBuilder, value: Value, *, signed: bool) -> Value:
    """Emit ``histogram.clamped_index``: below 64 the shift is 0 and the formula for the rest holds there too."""
    limit = constant(1 << histogram.MAX_BITS)
    clamped = builder.select(builder.icmp_unsigned("<", value, limit), value, limit)
    floor = constant(histogram.SUB_BUCKETS)
    at_least = builder.or_(clamped, floor)
    shift = builder.sub(_highest_bit(builder, at_least), constant(histogram.SUB_BITS))
    row = builder.shl(shift, constant(histogram.SUB_BITS))
    index = builder.add(builder.add(row, builder.lshr(clamped, shift)), constant(1))
    if not signed:
        return index
    return builder.select(builder.icmp_signed("<", value, constant(0)), constant(0), index)


def _power(builder: ir.IRBuilder, value: Value, *, signed: bool) -> Value:
    """Emit the index of a bucket of ``quantize``: the bit length of the magnitude, on the side of the sign."""
    negative = builder.icmp_signed("<", value, constant(0))
    magnitude = builder.select(negative, builder.neg(value), value) if signed else value
    length = builder.sub(constant(64), builder.ctlz(magnitude, ir.Constant(I1, 0)))
    above = builder.add(length, constant(buckets.ZERO))
    return builder.select(negative, builder.sub(constant(buckets.ZERO), length), above) if signed else above


def _linear(builder: ir.IRBuilder, aggregation: LQuantize, value: Value, *, signed: bool) -> Value:
    """Emit the index of a bucket of ``lquantize``."""
    lower, step, levels = aggregation.lower, aggregation.step, aggregation.levels
    distance = builder.sub(value, constant(lower))
    over = builder.icmp_unsigned(">=", distance, constant(step * levels))
    inside = builder.add(builder.udiv(distance, constant(step)), constant(1))
    index = builder.select(over, constant(levels + 1), inside)
    if signed:
        return builder.select(builder.icmp_signed("<", value, constant(lower)), constant(0), index)
    huge = builder.icmp_signed("<", value, constant(0))  # from 2**63 on
    if lower >= 0:
        index = builder.select(builder.icmp_unsigned("<", value, constant(lower)), constant(0), index)
    return builder.select(huge, constant(levels + 1), index)
