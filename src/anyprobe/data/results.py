"""What aggregations have counted at one moment, as immutable values that can be merged, stored and shown."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anyprobe.data import histogram
from anyprobe.data.buckets import nonempty
from anyprobe.data.histogram import Bucket

if TYPE_CHECKING:
    from anyprobe.data.aggregations import CellLayout

Json = dict[str, Any]
Key = tuple[int | str, ...]
_TOP = 1 << 63
_BITS = 1 << 64


@dataclass(frozen=True, slots=True)
class CellValue:
    """What was counted for one key. What the aggregation does not keep is None, extremes of nothing too."""

    count: int = 0
    sum: int | None = None
    min: int | None = None
    max: int | None = None
    squares: int | None = None
    buckets: tuple[Bucket, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean of the values."""
        return self.sum / self.count if self.count and self.sum is not None else None

    @property
    def stddev(self) -> float | None:
        """The standard deviation of the values."""
        if not self.count or self.sum is None or self.squares is None:
            return None
        # in integers, since the difference of two large squares is what is small; an update may be under way
        spread = max(self.count * self.squares - self.sum * self.sum, 0)
        return math.sqrt(spread / (self.count * self.count))

    def percentile(self, share: float) -> float | None:
        """Return the value that ``share`` (0 to 1) of the values stayed below, within a bucket's width."""
        value = histogram.percentile(self.buckets, share)
        if value is None or self.min is None or self.max is None:
            return value
        return min(max(value, self.min), self.max)

    def merged(self, other: "CellValue") -> "CellValue":
        """Return what both counted."""
        return CellValue(
            self.count + other.count,
            _both(self.sum, other.sum, int.__add__),
            _both(self.min, other.min, min),
            _both(self.max, other.max, max),
            _both(self.squares, other.squares, int.__add__),
            histogram.merged(self.buckets, other.buckets),
        )


def _both(left: int | None, right: int | None, join: Callable[[int, int], int]) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return join(left, right)


def cell_value(cell: "CellLayout", words: list[int], bounds: list[tuple[int, int]], *, signed: bool) -> CellValue:
    """Return the value of a cell's words."""
    from anyprobe.data.tables import decoded_extreme

    named = dict(zip(cell.fields, words, strict=False))
    counts = words[len(cell.fields) :]
    count = sum(counts) if counts else named["count"]
    total = named.get("sum")
    if total is not None and signed and total >= _TOP:
        total -= _BITS
    squares = named["squares"] + _BITS * named["squares_high"] if "squares" in named else None
    extremes = {
        name: decoded_extreme(name, named[name], signed=signed) if name in named and count else None
        for name in ("not_min", "max")
    }
    return CellValue(count, total, extremes["not_min"], extremes["max"], squares, nonempty(counts, bounds))


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """What one aggregation has counted, by key (``()`` where it has none).

    ``dropped`` are updates that found the table full; ``factor`` divides what is shown (DTrace's ``normalize``).
    """

    name: str
    kind: str
    by: tuple[str, ...] = ()
    entries: Mapping[Key, CellValue] = field(default_factory=dict)
    dropped: int = 0
    factor: int = 1

    def __post_init__(self) -> None:
        """Make the entries read-only."""
        object.__setattr__(self, "entries", MappingProxyType(dict(self.entries)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the entries as a plain dictionary."""
        return AggregationResult, (self.name, self.kind, self.by, dict(self.entries), self.dropped, self.factor)

    def __getitem__(self, key: object) -> CellValue:
        """Return what was counted for a key; a single part needs no tuple."""
        return self.entries[key if isinstance(key, tuple) else (key,)]

    @property
    def total(self) -> CellValue:
        """All keys together."""
        total = CellValue()
        for value in self.entries.values():
            total = total.merged(value)
        return total

    def value(self, cell: CellValue) -> float:
        """Return the one number by which a key is shown and ordered, before it is normalized.

        For distributions it is the number of values, as in DTrace.
        """
        numbers: dict[str, float | None] = {
            "sum": cell.sum,
            "min": cell.min,
            "max": cell.max,
            "avg": cell.mean,
            "stddev": cell.stddev,
        }
        return numbers.get(self.kind, cell.count) or 0

    def ordered(self) -> list[tuple[Key, CellValue]]:
        """Return keys and values, the smallest value first, as DTrace prints them."""
        return sorted(self.entries.items(), key=lambda item: (self.value(item[1]), tuple(map(str, item[0]))))

    def merged(self, other: "AggregationResult") -> "AggregationResult":
        """Return what both counted: several processes, several machines, parts of a session."""
        entries = dict(self.entries)
        for key, value in other.entries.items():
            entries[key] = entries[key].merged(value) if key in entries else value
        factor = other.factor if not self.entries else self.factor
        return dataclasses.replace(self, entries=entries, dropped=self.dropped + other.dropped, factor=factor)

    def clear(self) -> "AggregationResult":
        """Return the same keys with nothing counted."""
        return dataclasses.replace(self, entries=dict.fromkeys(self.entries, CellValue()), dropped=0)

    def trunc(self, count: int = 0) -> "AggregationResult":
        """Return the ``count`` keys with the largest values; the smallest if it is negative; none for 0."""
        ordered = self.ordered()
        kept = ordered[-count:] if count > 0 else ordered[: -count if count else 0]
        return dataclasses.replace(self, entries=dict(kept))

    def normalize(self, factor: int = 1) -> "AggregationResult":
        """Return the same counts, shown divided by a factor; 1 takes it back."""
        return dataclasses.replace(self, factor=factor)

    def as_json(self) -> Json | list[Json]:
        """Return CLI.md's form: an object, or a list of objects with a ``key`` each."""
        if not self.by and set(self.entries) <= {()}:
            return self._cell_json(self.entries.get((), CellValue()))
        return [{"key": list(key), **self._cell_json(cell)} for key, cell in self.ordered()]

    def _cell_json(self, cell: CellValue) -> Json:
        document: Json = {
            "count": cell.count,
            "sum": cell.sum,
            "min": cell.min,
            "max": cell.max,
            "buckets": [list(bucket) for bucket in cell.buckets],
        }
        if self.kind == "hist":
            document |= {f"p{share}": cell.percentile(share / 100) for share in (50, 90, 99)}
        if self.kind in {"avg", "stddev"}:
            document[self.kind] = cell.mean if self.kind == "avg" else cell.stddev
        if self.factor != 1:
            document["normalized"] = _divided(self.value(cell), self.factor)
            document["normalization"] = self.factor
        return document

    def as_document(self) -> Json:
        """Return everything, in a form from which ``from_document`` makes the same value again."""
        entries = [
            [
                list(key),
                [value.count, value.sum, value.min, value.max, value.squares],
                [list(bucket) for bucket in value.buckets],
            ]
            for key, value in self.entries.items()
        ]
        names = ("name", "kind", "dropped", "factor")
        return {**{name: getattr(self, name) for name in names}, "by": list(self.by), "entries": entries}

    @classmethod
    def from_document(cls, document: Json) -> "AggregationResult":
        """Read what ``as_document`` has made, on whatever machine."""
        entries = {
            tuple(key): dataclasses.replace(CellValue(*numbers), buckets=tuple(map(tuple, bounds)))
            for key, numbers, bounds in document["entries"]
        }
        return cls(
            document["name"], document["kind"], tuple(document["by"]), entries, document["dropped"], document["factor"]
        )


@dataclass(frozen=True, slots=True)
class MapResult:
    """What one map held at one moment."""

    name: str
    by: tuple[str, ...] = ()
    entries: Mapping[Key, int | str] = field(default_factory=dict)

    def merged(self, other: "MapResult") -> "MapResult":
        """Return what both held: of a key that is in both, the other's value."""
        return dataclasses.replace(self, entries={**self.entries, **other.entries})

    def ordered(self) -> list[tuple[Key, int | str]]:
        """Return keys and values, the smallest value first."""
        numbers = all(isinstance(value, int) for value in self.entries.values())
        return sorted(self.entries.items(), key=lambda each: (each[1] if numbers else str(each[1]), str(each[0])))

    def as_json(self) -> list[Json]:
        """Return a list of objects with a ``key`` and a ``value`` each."""
        return [{"key": list(key), "value": value} for key, value in self.ordered()]


def _divided(value: float, factor: int) -> float:
    """Divide as DTrace does: whole numbers stay whole, rounded towards zero."""
    if isinstance(value, int):
        return value // factor if value >= 0 else -(-value // factor)
    return value / factor
