"""Cells: what an aggregation keeps for one key, as words of shared memory and as the values that these mean.

A *cell* is a few words that are all zero at first. All of them are sums over the threads' cells, but for ``min`` and
``max``: these are kept as the largest of an order-preserving code, the minimum complemented, so that zeroed memory is a
valid start there too.

Sums are exact. ``sum`` is the lower 64 bits; ``wraps`` counts how often it has gone over the upper end of what its type
holds, less how often below the lower one. So the second word is nearly never written, and what is read while an update
is under way is wrong by that one value at the most.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.buckets import nonempty
from anyprobe.data.layouts.histogram import Bucket, Quantile

Key = tuple[int | str, ...]
COUNT, SUM, WRAPS, NOT_MIN, MAX = "count", "sum", "wraps", "not_min", "max"
SQUARES, SQUARES_HIGH, SQUARES_TOP = "squares", "squares_high", "squares_top"
WIDE_SQUARES = (SQUARES, SQUARES_HIGH, SQUARES_TOP)
EXTREMES = frozenset({NOT_MIN, MAX})
"""Fields that are combined by taking the largest."""
_TOP = 1 << 63
_BITS = 1 << 64
_ONES = (1 << 64) - 1
_EXACT = 1 << 53
"""From here on floats have no fractions."""


class CellLayout(NamedTuple):
    """The words of a cell: named fields first, then the buckets."""

    fields: tuple[str, ...]
    buckets: int = 0

    @property
    def words(self) -> int:
        """Number of words of a cell."""
        return len(self.fields) + self.buckets

    def offset(self, name: str) -> int:
        """Return the byte offset of a field."""
        return 8 * self.fields.index(name)

    @property
    def buckets_offset(self) -> int:
        """Byte offset of the first bucket."""
        return 8 * len(self.fields)


@dataclass(frozen=True, slots=True)
class CellValue(histogram.Percentiles):
    """What was counted for one key. What the aggregation does not keep is None, extremes of nothing too."""

    count: int = 0
    sum: int | None = None
    min: int | None = None
    max: int | None = None
    squares: int | None = None
    buckets: tuple[Bucket, ...] = ()
    kind: str = field(default="", compare=False)
    """The kind of aggregation: ``count``, ``sum``, ..."""

    @property
    def value(self) -> float | None:
        """The number that this kind of aggregation is for, not normalized: the mean of an ``Avg``.

        Of distributions it is the number of values, as in DTrace. None for extremes and means of nothing.
        """
        match self.kind:
            case "sum":
                return self.sum or 0
            case "min":
                return self.min
            case "max":
                return self.max
            case "avg":
                return self.mean
            case "stddev":
                return self.stddev
            case _:
                return self.count

    @property
    def is_whole(self) -> bool:
        """Whether its number is a whole one, of any size."""
        return isinstance(self.value, int)

    def __int__(self) -> int:
        """Return ``value`` as a whole number.

        Raises:
            ValueError: nothing was counted, so there is no minimum, maximum or mean.
        """
        return int(self._required())

    def __float__(self) -> float:
        """Return ``value`` as a float; raises as ``int`` does."""
        return float(self._required())

    def _required(self) -> float:
        if self.value is None:
            raise ValueError(f"nothing was counted, so there is no {self.kind}")
        return self.value

    @property
    def mean(self) -> float | None:
        """The mean of the values; a whole number if it is one, or if floats of its size have no fractions."""
        if not self.count or self.sum is None:
            return None
        whole, rest = divmod(self.sum, self.count)
        if rest and abs(whole) < _EXACT:
            return self.sum / self.count
        return whole + (2 * rest >= self.count)

    @property
    def stddev(self) -> float | None:
        """The standard deviation of the values."""
        if not self.count or self.sum is None or self.squares is None:
            return None
        from fractions import Fraction  # seldom asked for

        # in integers, since the difference of two large squares is what is small; an update may be under way
        spread = max(self.count * self.squares - self.sum * self.sum, 0)
        return math.sqrt(Fraction(spread, self.count * self.count))

    def quantile(self, share: float) -> Quantile | None:
        """Return the value that ``share`` (0 to 1) of the values do not exceed, or a bound of it."""
        found = histogram.quantile(self.buckets, share, whole=True)
        if found is None or self.min is None or self.max is None:
            return found
        return found.within(self.min, self.max)

    @property
    def p50(self) -> float | None:
        """The median, within a bucket's width; None without buckets or values."""
        return self.percentile(0.50)

    @property
    def p90(self) -> float | None:
        """The value that 90 % of the values do not exceed."""
        return self.percentile(0.90)

    @property
    def p99(self) -> float | None:
        """The value that 99 % of the values do not exceed."""
        return self.percentile(0.99)

    def shown(self) -> str:
        """Return a short text for ``repr``: the value, and of distributions what describes them."""
        if not self.buckets:
            return "nothing" if self.value is None else f"{self.value:,}" if self.is_whole else f"{self.value:,.10g}"
        low, high = (self.min, self.max) if self.min is not None else (self.buckets[0][0], self.buckets[-1][1])
        numbers = {"min": low, "p50": self.p50, "p90": self.p90, "p99": self.p99, "max": high}
        values = f"{self.count:,} value{'' if self.count == 1 else 's'}"
        return ", ".join([values, *(f"{name} {number:.6g}" for name, number in numbers.items() if number is not None)])

    def merged(self, other: "CellValue") -> "CellValue":
        """Return what both counted."""
        return CellValue(
            self.count + other.count,
            _both(self.sum, other.sum, int.__add__),
            _both(self.min, other.min, min),
            _both(self.max, other.max, max),
            _both(self.squares, other.squares, int.__add__),
            histogram.merged(self.buckets, other.buckets),
            self.kind or other.kind,
        )


def _both(left: int | None, right: int | None, join: Callable[[int, int], int]) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return join(left, right)


def cell_value(
    cell: CellLayout, words: list[int], bounds: list[tuple[int, int]], *, signed: bool, kind: str = ""
) -> CellValue:
    """Return the value of a cell's words."""
    named = dict(zip(cell.fields, words, strict=False))
    counts = words[len(cell.fields) :]
    count = sum(counts) if counts else named["count"]
    total = None
    if SUM in named:
        total = (_signed(named[SUM]) if signed else named[SUM]) + _BITS * _signed(named[WRAPS])
    squares = sum(named[name] << 64 * at for at, name in enumerate(WIDE_SQUARES)) if SQUARES in named else None
    extremes = {
        name: decoded_extreme(name, named[name], signed=signed) if name in named and count else None
        for name in ("not_min", "max")
    }
    return CellValue(count, total, extremes["not_min"], extremes["max"], squares, nonempty(counts, bounds), kind)


def added_exactly(label: str, total: str, wraps: str, value: str, *, signed: bool, lock: str = "") -> str:
    """Return the instructions that add a register to a sum, whose two words are at ``total`` and ``wraps``.

    Each word is changed by one instruction. ``label``: what labels begin with, ``lock``: ``"lock "`` where others write
    the same words.
    """
    if not signed:
        return f"{lock}add {total}, {value}; {lock}adc qword {wraps}, 0"
    return f"""
        {lock}add {total}, {value}; jno short {label}_exact
        js short {label}_above
        {lock}dec qword {wraps}; jmp short {label}_exact
    {label}_above:
        {lock}inc qword {wraps}
    {label}_exact:
    """


def _signed(word: int) -> int:
    return word - _BITS if word >= _TOP else word


def decoded_extreme(name: str, word: int, *, signed: bool) -> int:
    """Return the value that an extreme field's word stands for."""
    if name == NOT_MIN:
        word ^= _ONES
    assert name in {NOT_MIN, MAX}
    if not signed:
        return word
    word ^= _TOP
    return word - (1 << 64) if word >= _TOP else word
