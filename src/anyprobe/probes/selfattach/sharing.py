"""What handlers count in a program that probes itself, read there: the attendant hands over the memory."""

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.layouts.keys import UNKEYED, KeyShape
from anyprobe.data.readers.maps import Map, MapLayout, MapView
from anyprobe.data.readers.tables import TableLayout, TableView
from anyprobe.journal.memfds import written_extents
from anyprobe.probes.providers.function.postmortem import BankPlace
from anyprobe.target.system import gateway


@dataclass(frozen=True, slots=True)
class Shared:
    """Where the attendant has a storage: the number of a file among those sent along, a place in it, and its form."""

    storage: int
    file: int
    offset: int
    size: int
    shape: KeyShape
    signed: bool
    threads: int = 0


def described(storage: int, file: int, offset: int, view: TableView | MapView | memoryview) -> Shared:
    """Return what is sent of a storage that the attendant views, or of the state of a handler in C."""
    if isinstance(view, memoryview):
        return Shared(storage, file, offset, len(view), UNKEYED, signed=False)
    layout = view.layout
    threads = layout.threads if isinstance(layout, TableLayout) else 0
    return Shared(storage, file, offset, layout.size, layout.shape, layout.signed, threads)


class SharedFile:
    """A memfd of the session, mapped whole and writable, by which it is not taken for the program's own splices."""

    def __init__(self, descriptor: int) -> None:
        """Take over a descriptor."""
        self._descriptor = descriptor
        self._memory: mmap.mmap = gateway.mmap_shared(descriptor, os.fstat(descriptor).st_size)

    def view(self, storage: Aggregation | Map, shared: Shared) -> TableView | MapView:
        """Return a live view of a storage."""
        region = self.bytes_of(shared)
        if isinstance(storage, Map):
            return MapView(region, MapLayout(storage, shared.shape, shared.signed))
        layout = TableLayout(storage, shared.shape, shared.signed, shared.threads)
        return TableView(region, layout, partial(written_extents, self._descriptor, shared.offset, shared.size))

    def bytes_of(self, shared: Shared) -> memoryview:
        """Return where something is."""
        return memoryview(self._memory)[shared.offset : shared.offset + shared.size]

    def bank(self, place: BankPlace) -> tuple[memoryview, list[tuple[int, int]]]:
        """Return the memory of a bank, and which pages of it hold data."""
        region = memoryview(self._memory)[place.offset : place.offset + place.size]
        return region, list(written_extents(self._descriptor, place.offset, place.size))

    def close(self) -> None:
        """Give the file back; the memory goes with the last view."""
        with suppress(BufferError):
            self._memory.close()
        with suppress(OSError):
            os.close(self._descriptor)
