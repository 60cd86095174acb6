"""Exponential histograms of calls: Prometheus' native ones and OpenTelemetry's, none of whose buckets shrinks.

A bucket's bounds are powers of the eighth root of two (schema, or scale, 3), each 9 % above the one before. Buckets of
anyprobe's, of which there are 64 for each power of two, count where their middle is, by which 2 % of values are in the
bucket beside theirs. Both formats take a bucket that has become less for a counter that has begun anew; nanoseconds of
a tick are measured anew at each look, so a value near a bound may seem to have moved: it stays where it was first.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from anyprobe.data.layouts.histogram import Bucket

SCHEMA = 3
_PER_POWER = 1 << SCHEMA
_FAR = 1 << 63
"""Nanoseconds: the bound of what has none."""


@dataclass(slots=True)
class Exponential:
    """How many calls each bucket has had, by its number: the one ``n`` ends at ``2 ** (n / 8)`` seconds."""

    counts: Counter[int] = field(default_factory=Counter)
    zero: int = 0
    """Calls that took no time that could be measured."""

    @property
    def count(self) -> int:
        """All of them."""
        return self.zero + self.counts.total()

    def take(self, buckets: Sequence[Bucket]) -> None:
        """Take in all calls up to now: what there are more of than before is added."""
        wanted: Counter[int] = Counter()
        zero = 0
        for low, high, number in buckets:
            middle = (low + high) / 2 if high < _FAR else low
            if middle <= 0:
                zero += number
            else:
                wanted[number_of(middle / 1e9)] += number
        self.zero = max(self.zero, zero)
        more = wanted - self.counts  # positive ones alone
        moved = self.counts - wanted
        for number in sorted(moved):  # what seems to have gone from here is there beside it
            for other in sorted(more, key=lambda each: abs(each - number)):
                taken = min(moved[number], more[other])
                more[other] -= taken
                moved[number] -= taken
        self.counts += more

    def copy(self) -> "Exponential":
        """Return what it is now."""
        return Exponential(Counter(self.counts), self.zero)

    def runs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield where buckets that follow one another begin, and what is in them."""
        numbers = sorted(self.counts)
        for _, found in groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
            own = [number for _, number in found]
            yield own[0], [self.counts[number] for number in own]


def number_of(seconds: float) -> int:
    """Return the number of the bucket of a duration: bounds belong to the buckets that they are above."""
    return math.ceil(math.log2(seconds) * _PER_POWER)


Histograms = Mapping[tuple[str, str], Exponential]
