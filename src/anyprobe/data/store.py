"""The structures of a session's handlers in one region of shared memory: where each lies, and its live view."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from anyprobe.data.maps import MapLayout, MapView
from anyprobe.data.results import AggregationResult
from anyprobe.data.rings import RingLayout, RingReader
from anyprobe.data.tables import TableLayout, TableView

Layout = TableLayout | MapLayout | RingLayout
View = TableView | MapView | RingReader
Extents = Iterable[tuple[int, int]]
_V = TypeVar("_V", TableView, MapView, RingReader)


class StoreLayout:
    """Structures one behind another, each on pages of its own. Zeroed memory is a valid start."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        """Place them in this order."""
        self.layouts = tuple(layouts)
        offsets, end = [], 0
        for layout in self.layouts:
            offsets.append(end)
            end += layout.size + 4095 & ~4095
        self.offsets = tuple(offsets)
        """Where each begins in the region."""
        self.size = end
        """Bytes of the region."""


class Store:
    """A region in use: its views, which the declared aggregations and maps show as theirs until it is closed."""

    def __init__(
        self,
        region: memoryview,
        layout: StoreLayout,
        *,
        extents: Callable[[], Extents] | None = None,
        ns_per_tick: float | None = None,
        allocate: Callable[[int, int], None] | None = None,
    ) -> None:
        """View ``region``.

        ``extents`` returns the ranges of it that hold data, ``allocate(offset, size)`` gives memory to one; the times
        of records become nanoseconds.
        """
        self.views: list[View] = []
        for offset, each in zip(layout.offsets, layout.layouts, strict=True):
            part = region[offset : offset + each.size]
            if isinstance(each, TableLayout):
                self.views.append(TableView(part, each, _within(extents, offset, each.size)))
            elif isinstance(each, MapLayout):
                self.views.append(MapView(part, each))
            else:
                self.views.append(_reader(part, each, offset, ns_per_tick, allocate))
        for table in self.tables:
            table.layout.aggregation.views.append(table)
        for map_ in self.maps:
            map_.layout.map.views.append(map_)

    def _of(self, kind: type[_V]) -> list[_V]:
        return [view for view in self.views if isinstance(view, kind)]

    @property
    def tables(self) -> list[TableView]:
        """The aggregations."""
        return self._of(TableView)

    @property
    def maps(self) -> list[MapView]:
        """The maps."""
        return self._of(MapView)

    @property
    def rings(self) -> list[RingReader]:
        """The records, one reader for each type."""
        return self._of(RingReader)

    def results(self) -> tuple[AggregationResult, ...]:
        """Return what the aggregations have counted in this process."""
        return tuple(view.result() for view in self.tables)

    def close(self) -> None:
        """Let go of the memory; aggregations and maps keep what they hold now, records that were not read are lost."""
        for table in self.tables:
            table.layout.aggregation.settle(table)
        for map_ in self.maps:
            map_.layout.map.settle(map_)
        self.views.clear()


def _reader(
    part: memoryview,
    layout: RingLayout,
    offset: int,
    ns_per_tick: float | None,
    allocate: Callable[[int, int], None] | None,
) -> RingReader:
    """Return the reader of a part; what it allocates is relative to it."""
    if allocate is None:
        return RingReader(part, layout, ns_per_tick=ns_per_tick)
    return RingReader(part, layout, ns_per_tick=ns_per_tick, allocate=lambda low, size: allocate(offset + low, size))


def _within(extents: Callable[[], Extents] | None, offset: int, size: int) -> Callable[[], Extents] | None:
    """Return the extents of a part, relative to it."""
    if extents is None:
        return None

    def part() -> Iterator[tuple[int, int]]:
        for low, high in extents():
            if high > offset and low < offset + size:
                yield max(low - offset, 0), min(high - offset, size)

    return part
