"""An aggregation or a map of a program that probes itself: a view that the thread reads which is left out of counts."""

from functools import partial
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregations import Aggregation
from anyprobe.data.maps import Map, MapView
from anyprobe.data.results import AggregationResult
from anyprobe.data.tables import TableView
from anyprobe.probes.line import Line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Stored:
    """What an aggregation or a map has counted here; read by the thread that is left out."""

    def __init__(self, line: Line, storage: Aggregation | Map) -> None:
        """Wait to be told where it is."""
        self._line, self.storage = line, storage
        self.view: TableView | MapView | None = None
        """The memory that the attendant shares with us."""
        self._last: Any = None
        """What it held in the end."""

    def _read(self) -> Any:  # noqa: ANN401 - a result, or a map's items
        view = self.view
        if isinstance(view, TableView):
            return self._line.do(view.result)
        if view is not None:
            return self._line.do(view.items)
        if self._last is None:
            empty = AggregationResult(self.storage.name, getattr(self.storage, "kind", ""), self.storage.by)
            return {} if isinstance(self.storage, Map) else empty
        return self._last

    def finish(self) -> None:
        """Read it for the last time and let the memory go."""
        self._last, self.view = self._read(), None

    def result(self) -> AggregationResult:
        """Return what has been counted."""
        found: AggregationResult = self._read()
        return found

    def items(self) -> dict[Any, int]:
        """Return what a map holds."""
        return dict(self._read())

    def clear(self) -> None:
        """Set all values to nothing."""
        if isinstance(self.view, TableView):
            self._line.do(self.view.clear)

    def trunc(self, count: int = 0) -> None:
        """Forget all keys but some."""
        if isinstance(self.view, TableView):
            self._line.do(partial(self.view.trunc, count))

    def live(self, name: str, threads: int | None = None) -> "NDArray[np.uint64]":
        """Return a field of all cells as it is: see ``TableView.live``."""
        if not isinstance(self.view, TableView):
            raise UsageError(f"{self.storage.name} is not counted any more")
        return self.view.live(name, threads)
