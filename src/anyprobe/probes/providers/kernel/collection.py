"""What the handlers of a session in the kernel collect together: storages, their maps in the kernel, and the names."""

from collections.abc import Container, Iterator, Mapping
from functools import cached_property

from anyprobe.data.aggregations import Aggregation
from anyprobe.data.cells import CellValue, Key
from anyprobe.data.maps import Map
from anyprobe.data.records import Records, named
from anyprobe.data.results import AggregationResult, MapResult
from anyprobe.handlers.bpf.storages import KernelMaps
from anyprobe.handlers.types.storages import CallData, MapTable, Ring, Stacks, Storage, Storages, Table
from anyprobe.probes.providers.kernel.event_prototypes import EventPrototypes
from anyprobe.probes.providers.kernel.live_views import LiveAggregation, LiveMap
from anyprobe.probes.providers.kernel.naming import KernelNaming
from anyprobe.probes.providers.kernel.sites import KernelNames


class Collection:
    """The storages of the handlers of one session."""

    def __init__(self, names: KernelNames) -> None:
        """Hold nothing yet."""
        self.events = EventPrototypes(names)
        self.storages: Storages = {}
        """What handlers use, by aggregation or map, by a record's name, by the side and depth of stacks."""
        self._calls: list[CallData] = []

    @cached_property
    def maps(self) -> KernelMaps:
        """The kernel's maps."""
        return KernelMaps()

    @cached_property
    def naming(self) -> KernelNaming:
        """How addresses and stacks are shown."""
        return KernelNaming(self.maps)

    def shown(self, kind: str, number: int) -> str:
        """Return how a number is shown that is a ``func`` or a ``stack`` in a handler."""
        return self.naming.shown(kind, number)

    def adopt(self, storages: tuple[Storage, ...]) -> None:
        """Make the maps of what a handler uses and none has used before."""
        for each in storages:
            if not self.maps.adopt(each):
                continue
            if isinstance(each, CallData):
                self._calls.append(each)
            if isinstance(each, Table):
                each.layout.aggregation.views.append(LiveAggregation(self.maps, each, self.shown))
            elif isinstance(each, MapTable):
                each.layout.map.views.append(LiveMap(self.maps, each, self.shown))

    def _used(self) -> Iterator[tuple[object, Storage]]:
        return ((key, each) for key, each in list(self.storages.items()) if self.maps.has(each))

    def aggregations(self, without: Container[object] = ()) -> tuple[AggregationResult, ...]:
        """Return what the aggregations have counted, some left out."""
        used = [each for key, each in self._used() if key not in without]
        return tuple(self.maps.result(each, self.shown) for each in used if isinstance(each, Table))

    def numbers(self, aggregation: Aggregation) -> Mapping[Key, CellValue]:
        """Return what one aggregation has counted, by keys of plain numbers."""
        storage = self.storages.get(aggregation)
        return self.maps.result(storage).entries if isinstance(storage, Table) and self.maps.has(storage) else {}

    def held(self) -> tuple[MapResult, ...]:
        """Return what the maps hold that are to be shown."""
        found = [each for _, each in self._used() if isinstance(each, MapTable) and each.layout.map.shown]
        return tuple(
            MapResult(each.layout.map.name, each.layout.map.by, self.maps.items(each, self.shown)) for each in found
        )

    def misses(self) -> dict[str, int]:
        """Return what went wrong in handlers, by kind."""
        return {kind: count for kind, count in self.maps.misses().items() if count}

    def dropped(self) -> dict[str, dict[str, int]]:
        """Return what maps, records and stacks have lost, by name and cause."""
        found: dict[str, dict[str, int]] = {}
        for key, each in self._used():
            name = (
                "stacks" if isinstance(each, Stacks) else key.name if isinstance(key, Aggregation | Map) else str(key)
            )
            causes = found.get(name, {})
            for cause, count in self.maps.dropped(each).items():
                causes[cause] = causes.get(cause, 0) + count
            if causes:
                found[name] = causes
        lost = sum(self.maps.dropped(each).get("no room", 0) for each in self._calls)
        return found | {"calls": {"no room": lost}} if lost else found

    def records(self, until: int | None) -> Iterator[tuple[str, str, Records]]:
        """Yield what was emitted since the last time, by record: its name, how a row is shown, and the rows."""
        for key, each in self._used():
            if isinstance(each, Ring):
                found = self.maps.records(each, until=until)
                yield str(key), each.format, named(found, each.layout.record, self.shown)

    def close(self) -> None:
        """Keep what aggregations and maps hold, and give the kernel's maps back."""
        for key, _ in self._used():
            if isinstance(key, Aggregation | Map):
                for view in key.views:
                    if isinstance(view, LiveAggregation | LiveMap):
                        view.keep()
        self.maps.close()
