"""Heat maps: how often values of which size were seen when; of timed functions and of distributions, by intervals."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from anyprobe.data.layouts.histogram import Bucket
from anyprobe.data.snapshots.snapshot import Snapshot

NANOSECONDS = "_ns"
"""How the names of values end that are times."""
_BELOW_ZERO, _BELOW_ONE = -2, -1
"""Rows that no power of two is in."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Counts of values by when they were seen (columns, the first ones first) and by their size (rows, from below)."""

    name: str
    module: str
    is_time: bool
    """Whether the values are nanoseconds."""
    edges: tuple[float, ...]
    """Where columns begin and the last one ends, in seconds since the beginning."""
    rows: tuple[tuple[float, float], ...]
    """The ranges of values, without gaps."""
    cells: Mapping[tuple[int, int], int] = field(hash=False)
    """The counts by column and row, of those that have any."""

    @property
    def total(self) -> int:
        """How many values there are."""
        return sum(self.cells.values())

    @property
    def most(self) -> int:
        """The highest count of a cell."""
        return max(self.cells.values(), default=0)


def heat_maps(series: Sequence[Snapshot], *, columns: int, most_rows: int, most: int) -> tuple[list[HeatMap], int]:
    """Return maps of the functions with most time, or distributions with most values, and how many more there are.

    Args:
        series: what was added in each interval, one after the other.
        columns: how many there may be; more intervals are added up in turn.
        most_rows: how many rows there may be; each power of two has 8, 4, 2 or 1 of them, or up to eight share one.
        most: how many maps.
    """
    each = max(math.ceil(len(series) / columns), 1)
    seconds = [0.0, *accumulate(one.duration_s for one in series)]
    edges = tuple(seconds[::each]) if len(series) % each == 0 else (*seconds[::each], seconds[-1])
    found: dict[tuple[str, str, bool], list[tuple[int, Sequence[Bucket]]]] = {}
    weights = Counter[tuple[str, str, bool]]()
    for at, one in enumerate(series):
        for key, weight, buckets in _distributions(one):
            if buckets:
                found.setdefault(key, []).append((at // each, buckets))
                weights[key] += weight
    return [_map_of(key, edges, found[key], most_rows) for key, _ in weights.most_common(most)], max(
        len(found) - most, 0
    )


def _distributions(one: Snapshot) -> Iterator[tuple[tuple[str, str, bool], int, Sequence[Bucket]]]:
    for timing in one.functions:
        yield (timing.label or timing.function, timing.shown_module, True), round(timing.sum_ns), timing.buckets
    for result in one.aggregations:
        for cell in result.entries.values():
            yield (result.name, "", result.name.endswith(NANOSECONDS)), cell.count, cell.buckets


def _map_of(
    key: tuple[str, str, bool], edges: tuple[float, ...], columns: Sequence[tuple[int, Sequence[Bucket]]], most: int
) -> HeatMap:
    found = [(column, _height(low, high), count) for column, buckets in columns for low, high, count in buckets]
    lowest, highest = min(height for _, height, _ in found), max(height for _, height, _ in found)
    for parts in (8, 4, 2, 1, 0.5, 0.25, 0.125):
        first, last = _row(lowest, parts), _row(highest, parts)
        if last - first < most:
            break
    cells = Counter[tuple[int, int]]()
    for column, height, count in found:
        cells[column, _row(height, parts)] += count
    return HeatMap(
        *key,
        edges,
        tuple(_range(row, parts) for row in range(first, last + 1)),
        {(column, row - first): count for (column, row), count in sorted(cells.items())},
    )


def _height(low: float, high: float) -> float:
    """Return the binary logarithm of a bucket's middle; of one without an end, of its beginning."""
    middle = (low + high) / 2 if low >= 0 and high < 1 << 63 else low
    if middle < 1:
        return _BELOW_ZERO if middle < 0 else _BELOW_ONE
    return math.log2(middle)


def _row(height: float, parts: float) -> int:
    """Return the row of a height, where each power of two has so many."""
    return math.floor(height if height < 0 else height * parts + 1e-9)


def _range(row: int, parts: float) -> tuple[float, float]:
    if row < 0:
        return (-math.inf, 0.0) if row == _BELOW_ZERO else (0.0, 1.0)
    return 2 ** (row / parts), 2 ** ((row + 1) / parts)
