"""Arithmetic of the log-linear histogram: 64 buckets per power of two, over unsigned 64-bit ticks.

A duration ``d`` below 64 has a bucket of its own. Above, the bucket keeps the highest seven bits of ``d``, so a bucket
is at most 1/64 (1.6 %) of its lower bound wide. The generated code computes the same index with ``bsr`` and ``shr``:

    index(d) = d                                    d < 64
    index(d) = (msb - 6) * 64 + (d >> (msb - 6))    msb = position of d's highest set bit
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

SUB_BITS = 6
SUB_BUCKETS = 1 << SUB_BITS
MAX_BITS = 44
"""Ticks from ``2**44`` on (an hour and more) share the last bucket."""
GRID_PER_NS = 16
"""Ticks of the grid in which histograms of different clocks are added up."""
LOWEST, HIGHEST = -(1 << 63), 1 << 64
"""Where buckets begin and end that hold whatever lies beyond all others."""

_BEYOND = -1
"""What stands for such a bucket among those of the grid."""

Bucket = tuple[float, float, int]
"""Lower bound, upper bound, count."""
AT_LEAST, AT_MOST = "at least", "at most"


class Quantile(NamedTuple):
    """The value that a share of the values stayed below, or what is known of it."""

    value: float
    bound: str = ""
    """``AT_LEAST`` or ``AT_MOST``: it lies beyond the other buckets, and this is all that is known of it."""

    def within(self, low: float, high: float) -> "Quantile":
        """Return what is known if all values lie in a range, ends included."""
        return Quantile(min(max(self.value, low), high), "" if low == high else self.bound)


class Percentiles(ABC):
    """What has a distribution."""

    __slots__ = ()

    @abstractmethod
    def quantile(self, share: float) -> Quantile | None:
        """Return the value that ``share`` (0 to 1) of the values do not exceed, or a bound of it; None without any."""

    def percentile(self, share: float) -> float | None:
        """Return that value, within a bucket's width; of one that lies beyond the other buckets the bound."""
        found = self.quantile(share)
        return None if found is None else found.value


def index(ticks: int) -> int:
    """Return the bucket of a duration."""
    if ticks < SUB_BUCKETS:
        return ticks
    shift = ticks.bit_length() - 1 - SUB_BITS
    return shift * SUB_BUCKETS + (ticks >> shift)


BUCKETS = index(1 << MAX_BITS) + 1
"""Buckets that are kept: the last one has no upper end."""


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
        found.append((low * ns_per_tick, high * ns_per_tick if bucket < BUCKETS - 1 else float(HIGHEST), calls))
    return tuple(found)


def is_open(bucket: Bucket) -> bool:
    """Return whether a bucket holds whatever lies beyond the others."""
    return bucket[0] <= LOWEST or bucket[1] >= HIGHEST


def located(buckets: Sequence[Bucket], share: float) -> tuple[Bucket, int]:
    """Return the bucket in which ``share`` (0 to 1) of the counts is reached, and by which of its values; not empty."""
    total = sum(count for _, _, count in buckets)
    rank = max(math.ceil(share * total - 1e-9 * total), 1)  # 0.07 is no exact float, nor is 7.000000000000001 of 100
    for bucket in buckets:
        if bucket[2] >= rank:
            return bucket, rank
        rank -= bucket[2]
    return buckets[-1], buckets[-1][2]


def quantile(buckets: Sequence[Bucket], share: float, *, whole: bool = False) -> Quantile | None:
    """Return the value that ``share`` (0 to 1) of the values do not exceed, interpolated within its bucket.

    ``whole``: they are whole numbers, so a bucket ends one before its upper bound.
    """
    if not any(count for _, _, count in buckets):
        return None
    (low, high, count), number = bucket, _ = located(buckets, share)
    if is_open(bucket):
        if high >= HIGHEST:
            return Quantile(low, AT_LEAST)
        return Quantile(high - 1 if whole else high, AT_MOST)
    if whole:
        return Quantile(math.floor(low + (high - low) * (number - 0.5) / count))
    return Quantile(low + (high - low) * number / count)


def percentiles_json(found: Mapping[str, Quantile | None]) -> dict[str, Any]:
    """Return percentiles by name, None for those of nothing; of which only a bound is known is said besides."""
    bounds = {name: each.bound for name, each in found.items() if each is not None and each.bound}
    document: dict[str, Any] = {name: None if each is None else round(each.value, 3) for name, each in found.items()}
    return {**document, "percentile_bounds": bounds} if bounds else document


def merged(*histograms: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return the sum of histograms. Equal bounds are added up; others (another clock) stand side by side."""
    counts: dict[tuple[float, float], int] = {}
    for low, high, count in chain.from_iterable(histograms):
        counts[low, high] = counts.get((low, high), 0) + count
    return tuple((low, high, count) for (low, high), count in sorted(counts.items()))


def added(*histograms: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return the sum of histograms of durations; those of different clocks are counted in one grid, the same for all.

    Its buckets are those of ticks of a sixteenth of a nanosecond. A bucket of another clock is counted where its middle
    is, so a value is at most half of that bucket's width, 0.8 %, outside of the bounds. The order in which histograms
    are added up makes no difference.
    """
    first = [each for each in histograms if each][:2]
    if not _overlap(merged(*first)):  # else all need not be sorted to see that they are not of one clock
        found = merged(*histograms)
        if not _overlap(found):
            return found
    counts: defaultdict[int, int] = defaultdict(int)
    for low, high, count in chain.from_iterable(histograms):
        counts[_in_grid(low, high)] += count
    beyond = counts.pop(_BEYOND, 0)
    ends = [(number, *bounds(number)) for number in sorted(counts)]
    found = tuple([(low / GRID_PER_NS, high / GRID_PER_NS, counts[number]) for number, low, high in ends])
    if not beyond:
        return found
    lowest = min(bucket[0] for bucket in chain.from_iterable(histograms) if is_open(bucket))
    return (*found, (lowest, float(HIGHEST), beyond))


def _overlap(buckets: Sequence[Bucket]) -> bool:
    """Return whether buckets that are in order are not of one clock."""
    return any(high > low for (_, high, _), (low, _, _) in pairwise(buckets))


@lru_cache(1 << 16)
def _in_grid(low: float, high: float) -> int:
    """Return the bucket of the grid in which one of another clock counts; the same ones come again and again."""
    return _BEYOND if is_open((low, high, 0)) else index(int((low + high) / 2 * GRID_PER_NS))


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
