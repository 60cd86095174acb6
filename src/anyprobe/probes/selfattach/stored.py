"""An aggregation or a map of a program that probes itself: a view that the thread reads which is left out of counts."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import TargetError, UsageError
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.aggregates.results import AggregationResult, CellValue, Key
from anyprobe.data.layouts.keys import NAMED, KeyShape, Place
from anyprobe.data.readers.maps import Map, MapView
from anyprobe.data.readers.tables import TableView
from anyprobe.probes.selfattach.client import Line

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
        self._names: dict[tuple[str, int], str] = {}

    def _read(self) -> Any:  # noqa: ANN401 - a result, or a map's items
        view = self.view
        if isinstance(view, TableView):
            return self._named_result(self._line.do(view.result), view.layout.shape)
        if view is not None:
            found = self._line.do(view.items)
            return {self._named(key, view.layout.shape): value for key, value in found.items()}
        if self._last is None:
            empty = AggregationResult(self.storage.name, getattr(self.storage, "kind", ""), self.storage.by)
            return {} if isinstance(self.storage, Map) else empty
        return self._last

    def _named_result(self, found: AggregationResult, shape: KeyShape) -> AggregationResult:
        entries: dict[Key, CellValue] = {}
        for key, value in found.entries.items():
            named = self._named(key, shape)
            entries[named] = entries[named].merged(value) if named in entries else value
        return replace(found, entries=entries)

    def _named(self, key: Key, shape: KeyShape) -> Key:
        """Return a key with the names of functions and stacks, which the attendant knows."""
        pairs = zip(key, shape.parts, strict=True)
        return tuple(self._shown(part.kind, each) for each, part in pairs)

    def _shown(self, kind: str, value: int | str) -> int | str:
        if kind == "address":
            return Place(int(value), self._name("func", int(value)))
        return self._name(kind, int(value)) if kind in NAMED else value

    def _name(self, kind: str, number: int) -> str:
        found = self._names.get((kind, number))
        if found is None:
            try:
                found = self._names[kind, number] = str(self._line.ask("ask", "shown", (kind, number)))
            except (TargetError, UsageError):  # there is no attendant any more
                return f"{number:#x}"
        return found

    def learn_names(self) -> None:
        """Ask for the names that will be wanted when there is no attendant any more."""
        if self.view is not None and any(part.kind in {*NAMED, "address"} for part in self.view.layout.shape.parts):
            self._read()

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
