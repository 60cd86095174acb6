"""Bucket edges of the aggregations: powers of two, linear, log-linear. One table for generated code and readers.

Edges are DTrace's. ``quantize`` counts a value in the highest power of two that does not exceed it; zero has a bucket
of its own and negative values mirror the positive ones, so -1 is alone and -2 shares with -3. ``lquantize`` has equal
steps between two bounds and one bucket on each side. The log-linear edges are those of ``data.layouts.histogram``.
"""

from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.histogram import HIGHEST, LOWEST, Bucket

POWERS = 129
"""Buckets of ``quantize``: 64 negative ones, zero, 64 positive ones."""
ZERO = 64
LEVELS_LIMIT = 1 << 16
"""Steps of one ``lquantize``."""


def power_bounds(index: int) -> tuple[int, int]:
    """Return the half-open range of a bucket of ``quantize``."""
    if index == ZERO:
        return 0, 1
    if index > ZERO:
        return 1 << (index - ZERO - 1), 1 << (index - ZERO)
    return 1 - (1 << (ZERO - index)), 1 - (1 << (ZERO - index - 1))


def linear_bounds(index: int, lower: int, step: int, levels: int) -> tuple[int, int]:
    """Return the half-open range of a bucket of ``lquantize``."""
    low = LOWEST if index == 0 else lower + (index - 1) * step
    return low, HIGHEST if index > levels else lower + index * step


LOG_LINEAR = histogram.BUCKETS + 1
"""Buckets of ``Hist``: one for all negative values, then the histogram's."""


def log_linear_bounds(index: int) -> tuple[int, int]:
    """Return the half-open range of a bucket of ``Hist``; the last one has no upper end."""
    if index == 0:
        return LOWEST, 0
    low, high = histogram.bounds(index - 1)
    return low, HIGHEST if index == LOG_LINEAR - 1 else high


def nonempty(counts: list[int], bounds: list[tuple[int, int]]) -> tuple[Bucket, ...]:
    """Return the buckets that hold something."""
    return tuple((*bounds[index], count) for index, count in enumerate(counts) if count)
