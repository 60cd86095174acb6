"""The kernel's maps that hold a handler's aggregations and stacks, and what was counted in them."""

import os
import struct
from types import TracebackType
from typing import Self

import numpy as np

from anyprobe.core.code import MISSES, BpfProgram
from anyprobe.core.errors import HandlerError
from anyprobe.data.cells import CellValue, Key, cell_value
from anyprobe.data.keys import Names
from anyprobe.data.results import AggregationResult
from anyprobe.handlers.bpf import stacks, tables
from anyprobe.handlers.bpf.machine import MISSES_REFERENCE
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.storages import Stacks, Table
from anyprobe.target.kernel import bpf, programs

_MISSES_BYTES = 8 * len(MISSES)


class KernelStorages:
    """The maps of one handler, until it is closed."""

    def __init__(self, handler: ir.Function) -> None:
        """Make them, all empty."""
        self._storages, self._depth = handler.storages, stacks.depth_of(handler)
        self._regions = {MISSES_REFERENCE: bpf.create_array(_MISSES_BYTES)}
        self._tables: dict[int, int] = {}
        try:
            for index, each in enumerate(handler.storages):
                self._create(index, each)
        except BaseException:
            self.close()
            raise

    def _create(self, index: int, storage: ir.Storage) -> None:
        if isinstance(storage, Stacks):
            self._regions[index] = bpf.create_array(ir.WORD)
            self._tables[index] = bpf.create_stacks(self._depth, stacks.CAPACITY)
            return
        if not isinstance(storage, Table):
            raise HandlerError("maps and records are not possible in the kernel yet", instead="an aggregation")
        layout = storage.layout
        self._regions[index] = bpf.create_array(tables.region_bytes(layout))
        if layout.shape.parts:
            capacity = layout.aggregation.capacity
            self._tables[index] = bpf.create_hash(8 * layout.shape.words, layout.cell_bytes, capacity)

    def __enter__(self) -> Self:
        """Close them afterwards."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        self.close()

    def close(self) -> None:
        """Give the maps back; the kernel keeps them as long as a program uses them."""
        for each in (*self._regions.values(), *self._tables.values()):
            os.close(each)
        self._regions, self._tables = {}, {}

    def placed(self, program: BpfProgram) -> bytes:
        """Return the instructions of a program that uses these maps."""
        return programs.placed(program, self._regions, self._tables)

    def misses(self) -> dict[str, int]:
        """Return what went wrong."""
        words = struct.unpack(f"<{len(MISSES)}Q", bpf.read_array(self._regions[MISSES_REFERENCE], _MISSES_BYTES))
        return {miss.value: count for miss, count in zip(MISSES, words, strict=True)}

    def result(self, index: int, names: Names | None = None) -> AggregationResult:
        """Return what the aggregation of a storage has counted."""
        storage = self._storages[index]
        assert isinstance(storage, Table)
        layout, aggregation = storage.layout, storage.layout.aggregation
        bounds = aggregation.bounds()

        def value(cell: bytes) -> CellValue:
            words = list(struct.unpack(f"<{len(cell) // 8}Q", cell))
            return cell_value(aggregation.cell, words, bounds, signed=layout.signed, kind=aggregation.kind)

        region = bpf.read_array(self._regions[index], tables.region_bytes(layout))
        dropped = struct.unpack_from("<Q", region, tables.DROPPED)[0]
        entries: dict[Key, CellValue] = {}
        if index in self._tables:
            for key, cell in self._elements(index, 8 * layout.shape.words, layout.cell_bytes):
                shown = layout.shape.decode(np.frombuffer(key, np.uint64).reshape(1, -1), names)[0]
                # what is shown by name may have the name of something else
                entries[shown] = entries[shown].merged(value(cell)) if shown in entries else value(cell)
        elif (alone := value(region[tables.HEAD_BYTES :])).count:
            entries[()] = alone
        return AggregationResult(aggregation.name, aggregation.kind, aggregation.by, entries, dropped)

    def _elements(self, index: int, key_size: int, size: int) -> list[tuple[bytes, bytes]]:
        table = self._tables[index]
        found = [(key, bpf.look_up(table, key, size)) for key in bpf.keys_of(table, key_size)]
        return [(key, value) for key, value in found if value is not None]

    def stack(self, index: int, number: int) -> list[int]:
        """Return the addresses of a stack, innermost first; none for what is not there."""
        if number <= 0:
            return []
        words = bpf.look_up(self._tables[index], struct.pack("<I", number - 1), 8 * self._depth)
        return [each for each in struct.unpack(f"<{self._depth}Q", words) if each] if words else []

    def dropped_stacks(self, index: int) -> int:
        """Return how many hits had a stack that found no place."""
        found: int = struct.unpack("<Q", bpf.read_array(self._regions[index], ir.WORD))[0]
        return found
