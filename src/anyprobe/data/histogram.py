"""Arithmetic of the log-linear histogram: 64 buckets per power of two, over unsigned 64-bit ticks.

A duration ``d`` below 64 has a bucket of its own. Above, the bucket keeps the highest seven bits of ``d``, so a bucket
is at most 1/64 (1.6 %) of its lower bound wide. The generated code computes the same index with ``bsr`` and ``shr``:

    index(d) = d                                    d < 64
    index(d) = (msb - 6) * 64 + (d >> (msb - 6))    msb = position of d's highest set bit
"""

from collections.abc import Iterable, Sequence
from itertools import chain

SUB_BITS = 6
SUB_BUCKETS = 1 << SUB_BITS
MAX_BITS = 44
"""Ticks from ``2**44`` on (an hour and more) share the last bucket."""

Bucket = tuple[float, float, int]
"""Lower bound, upper bound, count."""


def index(ticks: int) -> int:
    """Return the bucket of a duration."""
    if ticks < SUB_BUCKETS:
        return ticks
    shift = ticks.bit_length() - 1 - SUB_BITS
    return shift * SUB_BUCKETS + (ticks >> shift)


BUCKETS = index((1 << MAX_BITS) - 1) + 1
"""Buckets that are kept."""


def clamped_index(ticks: int) -> int:
    """Return the bucket that a duration is counted in, the last one for whatever is longer."""
    return min(index(ticks), BUCKETS - 1)


def bounds(bucket: int) -> tuple[int, int]:
    """Return the half-open range of ticks of a bucket."""
    shift = max(bucket // SUB_BUCKETS - 1, 0)
    low = bucket - shift * SUB_BUCKETS
    return low << shift, (low + 1) << shift


def in_ns(counts: Iterable[tuple[int, int]], ns_per_tick: float) -> tuple[Bucket, ...]:
    """Return buckets, each with the number of its calls, with their bounds in nanoseconds."""
    found = []
    for bucket, calls in counts:
        low, high = bounds(bucket)
        found.append((low * ns_per_tick, high * ns_per_tick, calls))
    return tuple(found)


def percentile(buckets: Sequence[Bucket], share: float) -> float | None:
    """Return the value below which ``share`` (0 to 1) of the counts lie, interpolated within its bucket."""
    total = sum(count for _, _, count in buckets)
    if not total:
        return None
    rank, before = share * total, 0
    for low, high, count in buckets:
        if before + count >= rank:
            return low + (high - low) * max(rank - before, 0.0) / count
        before += count
    return buckets[-1][1]


def merged(*histograms: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return the sum of histograms. Equal bounds are added up; others (another clock) stand side by side."""
    counts: dict[tuple[float, float], int] = {}
    for low, high, count in chain.from_iterable(histograms):
        counts[low, high] = counts.get((low, high), 0) + count
    return tuple((low, high, count) for (low, high), count in sorted(counts.items()))


def by_powers_of_two(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return the histogram for the eye: one bucket per power of two, without gaps.

    A bucket belongs to the power of two that holds its middle.
    """
    counts: dict[int, int] = {}
    for low, high, count in buckets:
        power = int((low + high) / 2).bit_length()
        counts[power] = counts.get(power, 0) + count
    if not counts:
        return ()
    return tuple(
        (float((1 << power) >> 1), float(1 << power), counts.get(power, 0))
        for power in range(min(counts), max(counts) + 1)
    )
