"""What handlers of splices collect: memory that the kernel and this process share, with a row for each processor.

All of it, and all patches that use it, belong to one client of the driver: the kernel gives memory back when no task is
in such a patch any more, also where this process was killed.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

import numpy as np

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.code import MISSES
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.data.aggregates.records import TIME, Records
from anyprobe.data.aggregates.results import AggregationResult
from anyprobe.data.layouts.cells import Key
from anyprobe.data.layouts.keys import Names
from anyprobe.data.readers.maps import MapView
from anyprobe.data.readers.rings import RingReader
from anyprobe.data.readers.tables import TableView
from anyprobe.handlers.types.storages import CallData, MapTable, Ring, Stacks, Storage, Table
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.probes.providers.kernel.splices.joints import Joints
from anyprobe.probes.providers.kernel.splices.kernel_facts import facts_of
from anyprobe.splice.kernel import call_data
from anyprobe.splice.kernel.handlers import Kernel
from anyprobe.target.kernel.driver.device import Driver, Shared
from anyprobe.target.kernel.driver.layout import MAX_PERCPU

_RING_BYTES: Final = 1 << 20
_CHUNK: Final = 64 << 10
_PAGE: Final = 4096
_WORD: Final = 8
_FIRST: Final = 64 * _WORD


def of_processors(storage: Storage, processors: int, *, by_clock: bool = False) -> Storage:
    """Return a storage with a row for each processor instead of each thread; ``by_clock``: records are so."""
    match storage:
        case Table(layout):
            return Table(layout._replace(threads=processors))
        case Ring(layout, shown):
            sized = type(layout).of_size(layout.record, _RING_BYTES, rings=processors, threads=processors)
            return Ring(sized, shown, by_clock)
        case Stacks():
            raise UnsupportedTarget("splices take no stacks: fentry and kprobe do")
        case _:
            return storage


class SharedStorages:
    """The memory of the handlers of a session's splices, and what is in it."""

    def __init__(self, names: KernelNames, driver: Callable[[], Driver], shown: Names) -> None:
        """Open nothing yet; ``driver`` opens a client, ``shown`` names addresses."""
        self._names, self._open_driver, self._shown = names, driver, shown
        self._placed: dict[Storage, Shared] = {}
        self._tables: dict[Storage, _Aggregation] = {}
        self._maps: dict[Storage, _Map] = {}
        self._rings: dict[Storage, RingReader] = {}
        self._code = self._code_end = 0
        self._counters = self._counters_end = 0
        self._losses: Shared | None = None
        self._losses_used = 0

    @Lazy
    def driver(self) -> Driver:
        """The client that everything belongs to."""
        return self._open_driver()

    @cached_property
    def kernel(self) -> Kernel:
        """Where in the kernel is what handlers ask for."""
        return facts_of(self._names)

    @cached_property
    def joints(self) -> Joints:
        """The places of the kernel's text that lead to patches of this client."""
        return Joints({}, self.reserve, self.driver.write_patch)

    @property
    def by_clock(self) -> bool:
        """Whether the kernel's clock has to be called for the time."""
        return not self.kernel.nanoseconds

    @cached_property
    def guard(self) -> int:
        """Where each processor has the bytes that say whether a handler runs, as an offset from ``gs``."""
        return self.per_processor(_WORD)

    @Lazy
    def _misses(self) -> Shared:
        return self.driver.share(8 * len(MISSES))

    @property
    def misses_address(self) -> int:
        """Where the kernel counts what goes wrong in handlers."""
        return self._misses.address

    def has(self, storage: Storage) -> bool:
        """Return whether a storage has its memory."""
        return storage in self._placed

    def place(self, storage: Storage) -> int:
        """Return where the kernel has a storage, all empty if it is new."""
        if storage not in self._placed:
            own = of_processors(storage, self.driver.processors)
            self._placed[storage] = shared = self.driver.share(_size(own))
            match own:
                case Table(layout):
                    view = self._tables[storage] = _Aggregation(TableView(shared.view, layout), self._shown)
                    layout.aggregation.views.append(view)
                case MapTable(layout):
                    found = self._maps[storage] = _Map(MapView(shared.view, layout), self._shown)
                    layout.map.views.append(found)
                case Ring(layout):
                    self._rings[storage] = RingReader(shared.view, layout, nanoseconds=self.kernel.nanoseconds)
        return self._placed[storage].address

    def open(self, storage: CallData) -> None:
        """Let the handlers of both ends of calls run, which are in place."""
        if storage in self._placed:
            self._placed[storage].view[call_data.OPEN] = 1

    def forget_calls(self, storage: CallData) -> None:
        """Take no call for one that is under way: both ends were away for some time."""
        view = self._placed[storage].view
        view[call_data.HEAD_BYTES :] = bytes(len(view) - call_data.HEAD_BYTES)
        view[call_data.UNDER_WAY : call_data.UNDER_WAY + _WORD] = bytes(_WORD)

    def reserve(self, size: int) -> int:
        """Return the address of that much memory for patches, in reach of all text."""
        size = -(-size // 16) * 16
        if self._code + size > self._code_end:
            whole = -(-max(size, _CHUNK) // _PAGE) * _PAGE
            self._code = self.driver.reserve(whole)
            self._code_end = self._code + whole
        start, self._code = self._code, self._code + size
        return start

    def per_processor(self, size: int) -> int:
        """Return the ``gs:`` offset of zeroed memory that each processor has for itself."""
        if self._counters + size > self._counters_end:
            # the first piece is small: only a few are in reach of an instruction, for all clients
            whole = max(size, MAX_PERCPU if self._counters_end else _FIRST)
            self._counters = self.driver.per_processor(whole)
            self._counters_end = self._counters + whole
        start, self._counters = self._counters, self._counters + size
        return start

    def lost(self, count: int) -> Shared:
        """Return memory for so many counters of hits that run no handler."""
        size = _WORD * count
        if self._losses is None or self._losses_used + size > len(self._losses.view):
            self._losses, self._losses_used = self.driver.share(max(size, _CHUNK)), 0
        start, self._losses_used = self._losses_used, self._losses_used + size
        return Shared(self._losses.address + start, self._losses.view[start : start + size])

    # -- what was counted

    def result(self, storage: Storage, names: Names | None) -> AggregationResult:
        """Return what an aggregation has counted; numbers are named by ``names``."""
        return self._tables[storage].named(names)

    def items(self, storage: MapTable) -> dict[Key, int | str]:
        """Return what a map holds."""
        return self._maps[storage].items()

    def records(self, storage: Storage, *, until: int | None = None) -> Records:
        """Return the records of a kind that have been written since the last time, by time."""
        since = self.kernel.since
        # hits wait for nothing in between, so what was begun before the call is complete but for interrupted ones
        found = self._rings[storage].drain(until=None if until is None else until - since).copy()
        found[TIME] += np.uint64(since & (1 << 64) - 1)
        return found

    def misses(self) -> Iterable[tuple[str, int]]:
        """Yield what went wrong in handlers, by kind."""
        if (misses := SharedStorages._misses.made(self)) is not None:
            words = misses.view[: 8 * len(MISSES)].cast("Q")
            yield from ((miss.value, count) for miss, count in zip(MISSES, words, strict=True))

    def dropped(self, storage: Storage) -> dict[str, int]:
        """Return what a map, a kind of records or calls have lost, by cause."""
        if storage in self._maps:
            view = self._maps[storage].view
            found = {"no room": view.dropped, "contended": view.contended}
        elif storage in self._rings:
            drops = self._rings[storage].drops()
            found = {"ring full": sum(drops.full.values()), "abandoned": drops.abandoned}
        elif isinstance(storage, CallData):
            words = self._placed[storage].view[: call_data.HEAD_BYTES].cast("Q")
            found = {"no room": words[call_data.DROPPED // 8]}
        else:
            found = {}
        return {cause: count for cause, count in found.items() if count}

    def close(self) -> None:
        """Take everything out of the kernel; what was collected can still be read.

        The kernel has the client as closed when its memory is mapped no more, so nothing may go on using that.
        """
        for table in self._tables.values():
            table.keep()
        for each in self._maps.values():
            each.keep()
        self._tables, self._maps, self._rings, self._placed = {}, {}, {}, {}
        SharedStorages._misses.forget(self)
        self._losses = None
        if (driver := SharedStorages.driver.made(self)) is not None:
            driver.close()


class _Aggregation:
    """An aggregation in shared memory, and what was in it when that was given back."""

    def __init__(self, view: TableView, names: Names) -> None:
        self._view: TableView | None = view
        self._names = names
        self._kept = AggregationResult("", "", (), {}, 0)

    def result(self) -> AggregationResult:
        return self.named(self._names)

    def named(self, names: Names | None) -> AggregationResult:
        if self._view is None:
            return self._kept
        self._view.names = names
        return self._view.result()

    def clear(self) -> None:
        if self._view is not None:
            self._view.clear()

    def trunc(self, count: int = 0) -> None:
        if self._view is not None:
            self._view.trunc(count)

    def keep(self) -> None:
        self._kept, self._view = self.result(), None


class _Map:
    """A map in shared memory, and what was in it when that was given back."""

    def __init__(self, view: MapView, names: Names) -> None:
        self._view: MapView | None = view
        view.names = names
        self._kept: dict[Key, int | str] = {}

    @property
    def view(self) -> MapView:
        assert self._view is not None
        return self._view

    def items(self) -> dict[Key, int | str]:
        return self._kept if self._view is None else self._view.items()

    def keep(self) -> None:
        self._kept, self._view = self.items(), None


def _size(storage: Storage) -> int:
    if isinstance(storage, CallData):
        return call_data.size(call_data.CALLS)
    assert isinstance(storage, Table | MapTable | Ring)
    return storage.layout.size
