"""What the handlers of a session in the kernel collect together: storages, their maps in the kernel, and the names."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.core.cachedproperty import Lazy
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.layouts.cells import CellValue, Key
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.bpf.storages import KernelMaps
from anyprobe.handlers.types.storages import CallData, MapTable, Ring, Stacks, Storage, Storages, Table
from anyprobe.probes.providers.kernel.live_views import LiveAggregation, LiveMap
from anyprobe.probes.providers.kernel.naming import KernelNaming
from anyprobe.probes.providers.kernel.places.sites import KernelNames

if TYPE_CHECKING:
    from anyprobe.data.aggregates.records import Records
    from anyprobe.data.aggregates.results import AggregationResult, MapResult
    from anyprobe.probes.providers.kernel.places.event_prototypes import EventPrototypes
    from anyprobe.probes.providers.kernel.splices.shared_storages import SharedStorages


class Collection:
    """The storages of the handlers of one session."""

    def __init__(self, names: KernelNames, *, spliced: bool = False) -> None:
        """Hold nothing yet; ``spliced``: handlers are run by splices alone."""
        self._names, self.spliced = names, spliced
        self.storages: Storages = {}
        """What handlers use, by aggregation or map, by a record's name, by the side and depth of stacks."""
        self._calls: list[CallData] = []

    @cached_property
    def events(self) -> "EventPrototypes":
        """What tracepoints and system calls pass and record."""
        from anyprobe.probes.providers.kernel.places.event_prototypes import EventPrototypes

        return EventPrototypes(self._names)

    @Lazy
    def maps(self) -> KernelMaps:
        """The kernel's maps."""
        return KernelMaps()

    @Lazy
    def shared(self) -> "SharedStorages":
        """What handlers of splices share with this process."""
        from anyprobe.probes.providers.kernel.splices.shared_storages import SharedStorages
        from anyprobe.probes.providers.kernel.splices.splicing import opened

        return SharedStorages(self._names, opened, self.shown)

    def _in_maps(self, storage: Storage) -> bool:
        return (maps := Collection.maps.made(self)) is not None and maps.has(storage)

    def _in_shared(self, storage: Storage) -> bool:
        return (shared := Collection.shared.made(self)) is not None and shared.has(storage)

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
        for key, each in list(self.storages.items()):
            if self._in_maps(each) or self._in_shared(each):
                yield key, each

    def _result(self, storage: Table, names: Callable[[str, int], str] | None) -> "AggregationResult":
        """Return what an aggregation has counted, by whatever mechanism; numbers are named by ``names``."""
        found = [self.maps.result(storage, names)] if self._in_maps(storage) else []
        if self._in_shared(storage):
            found.append(self.shared.result(storage, names))
        return found[0] if len(found) == 1 else found[0].merged(found[1])

    def aggregations(self, without: Container[object] = ()) -> "tuple[AggregationResult, ...]":
        """Return what the aggregations have counted, some left out."""
        used = [each for key, each in self._used() if key not in without]
        return tuple(self._result(each, self.shown) for each in used if isinstance(each, Table))

    def numbers(self, aggregation: Aggregation) -> Mapping[Key, CellValue]:
        """Return what one aggregation has counted, by keys of plain numbers."""
        storage = self.storages.get(aggregation)
        used = isinstance(storage, Table) and (self._in_maps(storage) or self._in_shared(storage))
        return self._result(storage, None).entries if used and isinstance(storage, Table) else {}

    def held(self) -> "tuple[MapResult, ...]":
        """Return what the maps hold that are to be shown."""
        from anyprobe.data.aggregates.results import MapResult

        found = [each for _, each in self._used() if isinstance(each, MapTable) and each.layout.map.shown]
        return tuple(MapResult(each.layout.map.name, each.layout.map.by, self._items(each)) for each in found)

    def _items(self, storage: MapTable) -> dict[Key, int | str]:
        found = self.maps.items(storage, self.shown) if self._in_maps(storage) else {}
        return found | self.shared.items(storage) if self._in_shared(storage) else found

    def misses(self) -> dict[str, int]:
        """Return what went wrong in handlers, by kind."""
        total: dict[str, int] = {}
        maps, shared = Collection.maps.made(self), Collection.shared.made(self)
        for found in (() if maps is None else maps.misses().items(), () if shared is None else shared.misses()):
            for kind, count in found:
                total[kind] = total.get(kind, 0) + count
        return {kind: count for kind, count in total.items() if count}

    def _dropped(self, storage: Storage) -> Iterator[tuple[str, int]]:
        if self._in_maps(storage):
            yield from self.maps.dropped(storage).items()
        if self._in_shared(storage):
            yield from self.shared.dropped(storage).items()

    def dropped(self) -> dict[str, dict[str, int]]:
        """Return what maps, records and stacks have lost, by name and cause."""
        found: dict[str, dict[str, int]] = {}
        for key, each in self._used():
            name = (
                "stacks" if isinstance(each, Stacks) else key.name if isinstance(key, Aggregation | Map) else str(key)
            )
            causes = found.get(name, {})
            for cause, count in self._dropped(each):
                causes[cause] = causes.get(cause, 0) + count
            if causes:
                found[name] = causes
        lost = sum(count for each in self._calls for cause, count in self._dropped(each) if cause == "no room")
        return found | {"calls": {"no room": lost}} if lost else found

    def records(self, until: int | None) -> "Iterator[tuple[str, str, Records]]":
        """Yield what was emitted since the last time, by record: its name, how a row is shown, and the rows."""
        used = [(str(key), each) for key, each in self._used() if isinstance(each, Ring)]
        if not used:
            return
        from anyprobe.data.aggregates.records import named

        for name, each in used:
            if self._in_maps(each):
                found = self.maps.records(each, until=until)
                yield name, each.format, named(found, each.layout.record, self.shown)
            if self._in_shared(each):
                found = self.shared.records(each, until=until)
                yield name, each.format, named(found, each.layout.record, self.shown)

    def open(self, calls: CallData) -> None:
        """Let the handlers of both ends of calls run, which are in place."""
        if self._in_maps(calls):
            self.maps.open(calls)
        if self._in_shared(calls):
            self.shared.open(calls)

    def forget_calls(self, several: Iterable[CallData]) -> None:
        """Have splices take none of some calls for one that is under way; nothing that follows these is armed."""
        for calls in filter(self._in_shared, several):
            self.shared.forget_calls(calls)

    def place(self, calls: CallData) -> int:
        """Return where splices have the data of calls."""
        if calls not in self._calls:
            self._calls.append(calls)
        return self.shared.place(calls)

    def close(self) -> None:
        """Keep what aggregations and maps hold, and give the kernel's maps back."""
        for key, _ in self._used():
            if isinstance(key, Aggregation | Map):
                for view in key.views:
                    if isinstance(view, LiveAggregation | LiveMap):
                        view.keep()
        for opened in (Collection.maps.made(self), Collection.shared.made(self)):
            if opened is not None:
                opened.close()
