"""Aggregations and maps of the kernel as their users read them while the session lasts, and afterwards."""

from typing import TYPE_CHECKING

from anyprobe.core.errors import UsageError
from anyprobe.data.layouts.cells import Key
from anyprobe.data.layouts.keys import Names
from anyprobe.handlers.bpf.storages import KernelMaps
from anyprobe.handlers.types.storages import MapTable, Table

if TYPE_CHECKING:
    from anyprobe.data.aggregates.results import AggregationResult


class LiveAggregation:
    """One aggregation in the kernel."""

    def __init__(self, maps: KernelMaps, storage: Table, names: Names) -> None:
        """Read it from the session's maps."""
        self._maps, self._storage, self._names = maps, storage, names
        self._kept: AggregationResult | None = None

    def result(self) -> "AggregationResult":
        """Return what has been counted."""
        return self._kept or self._maps.result(self._storage, self._names)

    def keep(self) -> None:
        """Keep what has been counted: the maps are given back."""
        self._kept = self._kept or self.result()

    def clear(self) -> None:
        """Refuse: handlers go on counting in the same cells."""
        raise UsageError(f"{self._storage.layout.aggregation.name} cannot be cleared in the kernel; use snapshots")

    def trunc(self, count: int = 0) -> None:
        """Refuse: the kernel's elements stay."""
        del count
        self.clear()


class LiveMap:
    """One map in the kernel."""

    def __init__(self, maps: KernelMaps, storage: MapTable, names: Names) -> None:
        """Read it from the session's maps."""
        self._maps, self._storage, self._names = maps, storage, names
        self._kept: dict[Key, int | str] | None = None

    def items(self) -> dict[Key, int | str]:
        """Return what is there."""
        return self._maps.items(self._storage, self._names) if self._kept is None else self._kept

    def keep(self) -> None:
        """Keep what is there: the maps are given back."""
        self._kept = self.items()
