"""What aggregations have counted at one moment, as immutable values that can be merged, stored and shown."""

import dataclasses
from collections.abc import ItemsView, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from anyprobe.data.aggregates.contents import ByKey, Contents
from anyprobe.data.layouts import histogram
from anyprobe.data.layouts.cells import CellValue, Key

Json = dict[str, Any]
__all__ = ["AggregationResult", "CellValue", "Json", "Key", "MapResult"]


@dataclass(frozen=True, slots=True, repr=False)
class AggregationResult(Contents):
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
        """Make the entries read-only, and have each know of which kind it is."""
        entries = {
            key: cell if cell.kind == self.kind else dataclasses.replace(cell, kind=self.kind)
            for key, cell in self.entries.items()
        }
        object.__setattr__(self, "entries", MappingProxyType(entries))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the entries as a plain dictionary."""
        return AggregationResult, (self.name, self.kind, self.by, dict(self.entries), self.dropped, self.factor)

    def result(self) -> "AggregationResult":
        """Return this value: what a live aggregation gives."""
        return self

    def ordered(self) -> list[tuple[Key, CellValue]]:
        """Return keys and values, the smallest value first, as DTrace prints them."""
        return sorted(self.entries.items(), key=lambda item: (item[1].value or 0, tuple(map(str, item[0]))))

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
            found = {f"p{share}": cell.quantile(share / 100) for share in (50, 90, 99)}
            document |= histogram.percentiles_json(found)
        if self.kind in {"avg", "stddev"}:
            document[self.kind] = cell.mean if self.kind == "avg" else cell.stddev
        if self.factor != 1:
            document["normalized"] = _divided(cell.value or 0, self.factor)
            document["normalization"] = self.factor
        return document


@dataclass(frozen=True, slots=True, repr=False)
class MapResult(ByKey[int | str]):
    """What one map held at one moment."""

    name: str
    by: tuple[str, ...] = ()
    entries: Mapping[Key, int | str] = field(default_factory=dict)

    def read(self) -> Mapping[Key, int | str]:
        """Return all values by key."""
        return self.entries

    def items(self) -> ItemsView[Key, int | str]:
        """Return pairs of a key and its value."""
        return self.entries.items()

    def __repr__(self) -> str:
        """Return the name and the first values by key."""
        return self._shown(f"map {self.name!r} by {', '.join(self.by)}")

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


def by_name(results: Iterable[AggregationResult]) -> Json:
    """Return results by name; none is lost where two aggregations have one name."""
    found: Json = {}
    for result in results:
        name, number = result.name, 1
        while name in found:
            number += 1
            name = f"{result.name} ({number})"
        found[name] = result.as_json()
    return found


def _divided(value: float, factor: int) -> float:
    """Divide as DTrace does: whole numbers stay whole, rounded towards zero."""
    if isinstance(value, int):
        return value // factor if value >= 0 else -(-value // factor)
    return value / factor
