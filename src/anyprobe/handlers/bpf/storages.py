"""The kernel's maps that hold what handlers collect, and what was counted in them."""

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyprobe.core.code import MISSES, BpfProgram
from anyprobe.core.errors import InternalError
from anyprobe.data.layouts.cells import CellValue, Key, cell_value
from anyprobe.data.layouts.keys import Names, Place
from anyprobe.handlers.bpf import layouts
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.storages import CallData, MapTable, Ring, Stacks, Storage, Table
from anyprobe.target.kernel import bpf, programs

if TYPE_CHECKING:
    import numpy as np

    from anyprobe.data.aggregates.records import Records
    from anyprobe.data.aggregates.results import AggregationResult
else:
    from anyprobe.core.later import np

_MISSES_BYTES = 8 * len(MISSES)
_WORD = struct.Struct("<Q")


class KernelMaps:
    """The maps of a session's handlers, one or two for each storage, until they are closed."""

    def __init__(self, ring_bytes: int = layouts.RING_BYTES) -> None:
        """Make the counters of what goes wrong; each kind of records gets a ring of so many bytes."""
        self.ring_bytes = ring_bytes
        self.misses_region = bpf.create_array(_MISSES_BYTES)
        self._regions: dict[Storage, int] = {}
        self._tables: dict[Storage, int] = {}
        self._readers: dict[Storage, RecordReader] = {}

    def adopt(self, storage: Storage) -> bool:
        """Make the maps of a storage, all empty, unless it has them; return whether it is new."""
        if storage in self._regions:
            return False
        region = bpf.create_array(_region_bytes(storage))
        try:
            table = self._table(storage)
        except BaseException:  # a storage has all of its maps or none
            os.close(region)
            raise
        self._regions[storage] = region
        if table is not None:
            self._tables[storage] = table
        return True

    def _table(self, storage: Storage) -> int | None:
        """Make what a storage has besides its region."""
        match storage:
            case Stacks():
                return bpf.create_stacks(layouts.kept_addresses(storage), layouts.kept_stacks(storage))
            case CallData(capacity):
                return bpf.create_hash(layouts.CALL_KEY_BYTES, layouts.CALL_BYTES, capacity or layouts.CALLS)
            case MapTable(layout):
                return bpf.create_hash(ir.WORD * layout.shape.words, layouts.ELEMENT_BYTES, layout.map.capacity)
            case Ring():
                self._readers[storage] = reader = RecordReader(storage, self.ring_bytes)
                return reader.ring.descriptor
            case Table(layout) if layout.shape.parts:
                return bpf.create_hash(8 * layout.shape.words, layout.cell_bytes, layout.aggregation.capacity)
        return None

    def has(self, storage: Storage) -> bool:
        """Return whether a storage has its maps."""
        return storage in self._regions

    def placed(self, program: BpfProgram, storages: tuple[Storage, ...]) -> bytes:
        """Return the instructions of a program that uses the maps of some storages."""
        regions = {index: self._regions[each] for index, each in enumerate(storages)}
        regions[layouts.MISSES_REFERENCE] = self.misses_region
        found = {index: self._tables[each] for index, each in enumerate(storages) if each in self._tables}
        return programs.placed(program, regions, found)

    def close(self) -> None:
        """Give the maps back; the kernel keeps them as long as a program uses them."""
        if self.misses_region < 0:
            return
        os.close(self.misses_region)
        self.misses_region = -1
        for storage, each in self._tables.items():
            if storage in self._readers:
                self._readers[storage].ring.close()
            else:
                os.close(each)
        for each in self._regions.values():
            os.close(each)
        self._regions, self._tables, self._readers = {}, {}, {}

    # -- what was counted

    def misses(self) -> dict[str, int]:
        """Return what went wrong."""
        words = struct.unpack(f"<{len(MISSES)}Q", bpf.read_array(self.misses_region, _MISSES_BYTES))
        return {miss.value: count for miss, count in zip(MISSES, words, strict=True)}

    def result(self, storage: Table, names: Names | None = None) -> "AggregationResult":
        """Return what an aggregation has counted."""
        from anyprobe.data.aggregates.results import AggregationResult

        layout, aggregation = storage.layout, storage.layout.aggregation
        bounds = aggregation.bounds()

        def value(cell: bytes) -> CellValue:
            words = list(struct.unpack(f"<{len(cell) // 8}Q", cell))
            return cell_value(aggregation.cell, words, bounds, signed=layout.signed, kind=aggregation.kind)

        region = bpf.read_array(self._regions[storage], layouts.region_bytes(layout))
        dropped = _WORD.unpack_from(region, layouts.DROPPED)[0]
        entries: dict[Key, CellValue] = {}
        if storage in self._tables:
            # all is read before anything is named: that takes long, and what it does may be counted here
            for key, cell in list(self._elements(storage, 8 * layout.shape.words, layout.cell_bytes)):
                shown = layout.shape.key_of(key, names)
                # what is shown by name may have the name of something else
                entries[shown] = entries[shown].merged(value(cell)) if shown in entries else value(cell)
        elif (alone := value(region[layouts.HEAD_BYTES :])).count:
            entries[()] = alone
        return AggregationResult(aggregation.name, aggregation.kind, aggregation.by, entries, dropped)

    def items(self, storage: MapTable, names: Names | None = None) -> dict[Key, int | str]:
        """Return what a map holds."""
        layout, found = storage.layout, {}
        for key, element in list(self._elements(storage, 8 * layout.shape.words, layouts.ELEMENT_BYTES)):
            shown = layout.shape.key_of(key, names)
            number = int.from_bytes(element[layouts.VALUE_AT : layouts.VALUE_AT + 8], "little", signed=layout.signed)
            found[shown] = shown_value(layout.map.value, number, names)
        return found

    def records(self, storage: Ring, *, until: int | None = None) -> "Records":
        """Return the records of a kind that have been written since the last time, by time."""
        return self._readers[storage].take(until)

    def dropped(self, storage: Storage) -> dict[str, int]:
        """Return what a map, a kind of records or the stacks have lost, by cause."""
        match storage:
            case MapTable():
                region = bpf.read_array(self._regions[storage], layouts.MAP_BYTES)
                places = {"no room": layouts.DROPPED, "contended": layouts.CONTENDED}
                found = {cause: _WORD.unpack_from(region, at)[0] for cause, at in places.items()}
            case Ring():
                found = {"ring full": _WORD.unpack(bpf.read_array(self._regions[storage], layouts.RECORDS_BYTES))[0]}
            case Stacks():
                found = {"no room": _WORD.unpack(bpf.read_array(self._regions[storage], ir.WORD))[0]}
            case CallData():
                region = bpf.read_array(self._regions[storage], layouts.CALLS_REGION_BYTES)
                found = {"no room": _WORD.unpack_from(region, layouts.DROPPED)[0]}
            case _:
                found = {}
        return {cause: count for cause, count in found.items() if count}

    def open(self, storage: CallData) -> None:
        """Let the handlers of both ends of calls run, which are in place."""
        if storage in self._regions:
            # with the zeros that each call begins with
            whole = struct.pack("<QQ", 0, 1).ljust(layouts.CALLS_REGION_BYTES, b"\0")
            bpf.write_array(self._regions[storage], whole)

    def _elements(self, storage: Storage, key_size: int, size: int) -> Iterator[tuple[bytes, bytes]]:
        table = self._tables[storage]
        for key in bpf.keys_of(table, key_size):
            value = bpf.look_up(table, key, size)
            if value is not None:
                yield key, value

    def stack(self, number: int) -> list[int]:
        """Return the addresses of a stack by its number, innermost first; none for what is not there."""
        storage, place, _ = layouts.stack_parts(number)
        if place < 0 or storage not in self._tables:
            return []
        count = layouts.kept_addresses(storage)
        words = bpf.look_up(self._tables[storage], struct.pack("<I", place), 8 * count)
        return [each for each in struct.unpack(f"<{count}Q", words) if each] if words else []


def _region_bytes(storage: Storage) -> int:
    """Return the size of a storage's own words."""
    match storage:
        case Stacks():
            return ir.WORD
        case CallData():
            return layouts.CALLS_REGION_BYTES
        case MapTable():
            return layouts.MAP_BYTES
        case Ring():
            return layouts.RECORDS_BYTES
        case Table(layout):
            return layouts.region_bytes(layout)
    raise InternalError(f"no map of the kernel is for {storage}")


def shown_value(kind: str, number: int, names: Names | None) -> int | str:
    """Return a value of a map as it is shown: a stack or a function by name, an address as both."""
    if kind == "address":
        return Place(number, names("func", number) if names is not None else "")
    return names(kind, number) if kind and names is not None else number


class RecordReader:
    """The records of one kind, read from the kernel's ring buffer."""

    def __init__(self, storage: Ring, ring_bytes: int) -> None:
        """Make the ring buffer."""
        from anyprobe.data.aggregates.records import Gathering
        from anyprobe.target.kernel.ring_buffers import RingBuffer

        self._kind = storage.layout.record
        self.ring = RingBuffer(ring_bytes, self._kind.bytes)
        self._gathering = Gathering(self._kind.dtype)

    def take(self, until: int | None = None) -> "Records":
        """Return what has been written since the last time, by time; what is later than ``until`` is kept."""
        from anyprobe.data.aggregates.records import TIME

        self._gathering.add(self.ring.take().reshape(-1).view(self._kind.dtype))
        found = self._gathering.take()
        if until is None or not len(found):
            return found
        end = int(np.searchsorted(found[TIME], until, side="right"))
        self._gathering.add(found[end:])
        return found[:end]
