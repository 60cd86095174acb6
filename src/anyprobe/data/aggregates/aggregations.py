"""Aggregations as the user declares them, and the words of shared memory in which each keeps its values.

What the words of a cell mean is in ``cells``.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.contents import Contents
from anyprobe.data.layouts import buckets, histogram
from anyprobe.data.layouts.cells import COUNT, MAX, NOT_MIN, SUM, WIDE_SQUARES, WRAPS, CellLayout

if TYPE_CHECKING:
    from anyprobe.data.aggregates.results import AggregationResult

SCALAR_CAPACITY = 1024
BUCKETED_CAPACITY = 128


class View(Protocol):
    """What one aggregation has counted in one process, or in the kernel."""

    def result(self) -> "AggregationResult":
        """Return what has been counted."""

    def clear(self) -> None:
        """Set all values to nothing."""

    def trunc(self, count: int = 0) -> None:
        """Forget all keys but some."""


class Aggregation(Contents):
    """What all aggregations have in common.

    ``by`` names the parts of the key that handlers give; ``capacity`` is the number of keys that fit, whatever comes
    with further ones is counted as dropped. ``per_thread`` overrides whether each thread has cells of its own.
    """

    kind: ClassVar[str]
    needs_value: ClassVar[bool] = True

    def __init__(
        self, name: str = "", *, by: Sequence[str] = (), capacity: int | None = None, per_thread: bool | None = None
    ) -> None:
        """Declare it; memory is taken when a handler that uses it is placed."""
        self.name = name or self.kind
        self.by = (by,) if isinstance(by, str) else tuple(by)
        default = BUCKETED_CAPACITY if self.cell.buckets else SCALAR_CAPACITY
        self.capacity = default if capacity is None else capacity
        if self.capacity < 1:
            raise UsageError(f"{self.name}: a capacity of {capacity} holds nothing")
        self.per_thread = per_thread
        self._factor = 1
        self.views: list[View] = []
        """What it has counted, in each process where it is in use; the session puts them here."""

    @property
    @abstractmethod
    def cell(self) -> CellLayout:
        """The words of one cell."""

    def bounds(self) -> list[tuple[int, int]]:
        """Return the half-open range of each bucket."""
        return []

    def add(self, value: int = 0, key: tuple[object, ...] = ()) -> NoReturn:  # noqa: ARG002 - what handlers write
        """Add a value; only inside of handlers, where it is compiled."""
        raise UsageError(f"{self.name}.add(…) is for handlers: they run in the target, this is the controller")

    def result(self) -> "AggregationResult":
        """Return what has been counted so far, in all processes together."""
        from anyprobe.data.aggregates.results import AggregationResult

        result = AggregationResult(self.name, self.kind, self.by)
        for view in self.views:
            result = result.merged(view.result())
        return result.normalize(self._factor)

    def clear(self) -> None:
        """Set all values to nothing and keep the keys, as DTrace's ``clear``."""
        for view in self.views:
            view.clear()

    def trunc(self, count: int = 0) -> None:
        """Forget all keys but the ``count`` with the largest values (the smallest, if negative), in each process."""
        for view in self.views:
            view.trunc(count)

    def normalize(self, factor: int = 1) -> None:
        """Divide what is shown by a factor; the counts stay as they are and a factor of 1 shows them again."""
        if factor < 1:
            raise UsageError(f"{self.name}: a factor of {factor} cannot be divided by")
        self._factor = factor


class Count(Aggregation):
    """How often."""

    kind = "count"
    needs_value = False
    cell = CellLayout((COUNT,))


class Sum(Aggregation):
    """The sum of the values, exact whatever it comes to."""

    kind = "sum"
    cell = CellLayout((COUNT, SUM, WRAPS))


class Min(Aggregation):
    """The smallest value."""

    kind = "min"
    cell = CellLayout((COUNT, NOT_MIN))


class Max(Aggregation):
    """The largest value."""

    kind = "max"
    cell = CellLayout((COUNT, MAX))


class Avg(Aggregation):
    """The mean of the values."""

    kind = "avg"
    cell = CellLayout((COUNT, SUM, WRAPS))


class Stddev(Aggregation):
    """The standard deviation of the values; their squares are summed in 192 bits."""

    kind = "stddev"
    cell = CellLayout((COUNT, SUM, *WIDE_SQUARES, WRAPS))


class Quantize(Aggregation):
    """The distribution of the values over powers of two."""

    kind = "quantize"
    cell = CellLayout((SUM, NOT_MIN, MAX, WRAPS), buckets.POWERS)

    def bounds(self) -> list[tuple[int, int]]:
        """Return the half-open range of each bucket."""
        return [buckets.power_bounds(index) for index in range(buckets.POWERS)]


class LQuantize(Aggregation):
    """The distribution of the values over equal steps from ``lower`` to ``upper``."""

    kind = "lquantize"

    def __init__(
        self,
        name: str,
        lower: int,
        upper: int,
        step: int = 1,
        *,
        by: Sequence[str] = (),
        capacity: int | None = None,
        per_thread: bool | None = None,
    ) -> None:
        """Declare it; what does not make a whole step below ``upper`` belongs to the last bucket."""
        if step < 1 or lower >= upper or step > upper - lower:
            raise UsageError(f"{name}: lquantize needs lower < upper and a step of 1 to upper - lower")
        if not (lower >= histogram.LOWEST and upper < 1 << 63):
            raise UsageError(f"{name}: the bounds of lquantize have 64 bits")
        self.lower, self.step, self.levels = lower, step, (upper - lower) // step
        if self.levels > buckets.LEVELS_LIMIT:
            raise UsageError(f"{name}: {self.levels} steps are more than the {buckets.LEVELS_LIMIT} that lquantize has")
        super().__init__(name, by=by, capacity=capacity, per_thread=per_thread)

    @property
    def cell(self) -> CellLayout:
        """The words of one cell."""
        return CellLayout((SUM, NOT_MIN, MAX, WRAPS), self.levels + 2)

    def bounds(self) -> list[tuple[int, int]]:
        """Return the half-open range of each bucket."""
        return [buckets.linear_bounds(index, self.lower, self.step, self.levels) for index in range(self.levels + 2)]


class Hist(Aggregation):
    """The distribution of the values, each bucket at most 1.6 % wide: percentiles come from it."""

    kind = "hist"
    cell = CellLayout((SUM, NOT_MIN, MAX, WRAPS), buckets.LOG_LINEAR)

    def bounds(self) -> list[tuple[int, int]]:
        """Return the half-open range of each bucket."""
        return [buckets.log_linear_bounds(index) for index in range(buckets.LOG_LINEAR)]
