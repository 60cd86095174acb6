"""How Python reads aggregations and maps: the same operations on live objects and on results.

What needs several numbers that belong together takes ``result()`` once: a live object is read anew by each operation.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from anyprobe.core.errors import AnyprobeError
from anyprobe.data.layouts.cells import CellValue, Key

if TYPE_CHECKING:
    from anyprobe.data.aggregates.results import AggregationResult
    from anyprobe.data.layouts.histogram import Bucket

V = TypeVar("V")
T = TypeVar("T")
SHOWN_KEYS = 8
"""Keys that ``repr`` shows."""


def key_of(key: object) -> Key:
    """Return a key as entries have it: a single part needs no tuple."""
    return key if isinstance(key, tuple) else (key,)


class ByKey(ABC, Generic[V]):
    """What can be read like a dictionary. Keys are tuples; ``thing["a"]`` is ``thing[("a",)]``."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> Mapping[Key, V]:
        """Return everything that is there at this moment, by key."""

    def __getitem__(self, key: object) -> V:
        """Return what is there for a key.

        Raises:
            KeyError: nothing is.
        """
        return self.read()[key_of(key)]

    def __contains__(self, key: object) -> bool:
        """Return whether something is there for a key."""
        return key_of(key) in self.read()

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys, each a tuple."""
        return iter(self.read())

    def __len__(self) -> int:
        """Return the number of keys; something without keys has one, ``()``, once anything is there."""
        return len(self.read())

    def keys(self) -> KeysView[Key]:
        """Return the keys."""
        return self.read().keys()

    def values(self) -> ValuesView[V]:
        """Return what is there, without the keys."""
        return self.read().values()

    def _shown(self, heading: str) -> str:
        """Return a line with the heading and the first keys; it never raises, as debuggers expect."""
        try:
            entries = self.read()
        except AnyprobeError as error:
            return f"<{heading}: {error}>"
        parts = [f"{_plain(key)!r}: {_shown_value(value)}" for key, value in islice(entries.items(), SHOWN_KEYS)]
        more = [f"… {len(entries) - SHOWN_KEYS} more"] if len(entries) > SHOWN_KEYS else []
        return f"<{heading}: {{{', '.join(parts + more)}}}>"


class Contents(ByKey[CellValue]):
    """What an aggregation holds: numbers of all keys together, and a ``CellValue`` for each key."""

    __slots__ = ()
    name: str
    by: tuple[str, ...]

    @abstractmethod
    def result(self) -> "AggregationResult":
        """Return what has been counted at one moment, as an immutable value."""

    def read(self) -> Mapping[Key, CellValue]:
        """Return what has been counted by key."""
        return self.result().entries

    def items(self) -> ItemsView[Key, CellValue]:
        """Return pairs of a key and what was counted for it."""
        return self.read().items()

    @overload
    def get(self, key: object) -> CellValue | None: ...
    @overload
    def get(self, key: object, default: T) -> CellValue | T: ...
    def get(self, key: object, default: object = None) -> object:
        """Return what was counted for a key, or the default."""
        return self.read().get(key_of(key), default)

    @property
    def total(self) -> CellValue:
        """All keys together."""
        result = self.result()
        total = CellValue(kind=result.kind)
        for cell in result.entries.values():
            total = total.merged(cell)
        return total

    @property
    def value(self) -> "Number | None":
        """The number that the aggregation is for, of all keys together; see ``CellValue.value``."""
        return called_as_before(self.total.value)

    def __int__(self) -> int:
        """Return ``value`` as a whole number.

        Raises:
            ValueError: nothing was counted, so there is no minimum, maximum or mean.
        """
        return int(self.total)

    def __float__(self) -> float:
        """Return ``value`` as a float; raises as ``int`` does."""
        return float(self.total)

    @property
    def count(self) -> int:
        """How many values were counted."""
        return self.total.count

    @property
    def sum(self) -> int | None:
        """The sum of the values, where it is kept."""
        return self.total.sum

    @property
    def min(self) -> int | None:
        """The smallest value, where it is kept and there is any."""
        return self.total.min

    @property
    def max(self) -> int | None:
        """The largest value, where it is kept and there is any."""
        return self.total.max

    @property
    def mean(self) -> float | None:
        """The mean of the values, where their sum is kept and there is any."""
        return self.total.mean

    @property
    def stddev(self) -> float | None:
        """The standard deviation of the values, where it is kept and there is any."""
        return self.total.stddev

    @property
    def buckets(self) -> "tuple[Bucket, ...]":
        """The buckets that hold something: lower bound, upper bound (exclusive), count."""
        return self.total.buckets

    def percentile(self, share: float) -> float | None:
        """Return the value that ``share`` (0 to 1) of the values do not exceed, within a bucket's width."""
        return self.total.percentile(share)

    @property
    def p50(self) -> float | None:
        """The median, within a bucket's width; None without buckets or values."""
        return self.total.p50

    @property
    def p90(self) -> float | None:
        """The value that 90 % of the values stayed below."""
        return self.total.p90

    @property
    def p99(self) -> float | None:
        """The value that 99 % of the values stayed below."""
        return self.total.p99

    def __repr__(self) -> str:
        """Return the name, the parts of keys, and what has been counted: without keys the number itself."""
        heading = f"{getattr(self, 'kind', type(self).__name__)} {self.name!r}"
        if self.by:
            return self._shown(f"{heading} by {', '.join(self.by)}")
        try:
            return f"<{heading}: {self.total.shown()}>"
        except AnyprobeError as error:
            return f"<{heading}: {error}>"


def _plain(key: Key) -> object:
    return key[0] if len(key) == 1 else key


def _shown_value(value: object) -> str:
    return value.shown() if isinstance(value, CellValue) else repr(value)


class _Called:
    """A number that can be called, as ``AggregationResult.value(cell)`` was before ``value`` became a number."""

    def __call__(self, cell: CellValue) -> float:
        """Return the number of one cell, and say how to write it."""
        warnings.warn("value(cell) is deprecated: write cell.value", DeprecationWarning, stacklevel=2)
        return cell.value or 0


class _Int(_Called, int):
    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class _Float(_Called, float):
    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


Number = _Int | _Float


def called_as_before(number: float | None) -> Number | None:
    """Return the number as one that can still be called, for one release."""
    return number if number is None else _Int(number) if isinstance(number, int) else _Float(number)
