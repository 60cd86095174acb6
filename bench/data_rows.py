"""Rows of the structures that handlers write: generated update code called in this process, and the readers.

No target and no probe: what a handler adds to the call that reaches it. Each figure is the median of runs in processor
time, less an empty call; consecutive calls overlap as far as the processor lets them.
"""

import ctypes
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rows import Report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

KEYS = 1000
SAMPLES = 4096


class Bench:
    """Compiles update code and calls it with random values and keys."""

    def __init__(self, scale: float) -> None:
        """Take values from 1 to a million, and a thousand keys."""
        import inprocess

        self.tools = inprocess
        self.calls = int(4_000_000 * scale)
        random = np.random.default_rng(1)
        self.values = random.integers(1, 1_000_000, SAMPLES).tolist()
        self.keys = random.integers(0, KEYS, SAMPLES).tolist()
        self.empty = self.median(inprocess.Compiled(4, lambda *_: None), 0)

    def median(self, code: object, base: int, thread: int = 1) -> float:
        """Return nanoseconds of a call with values and keys."""
        runs = (
            self.tools.nanoseconds(code, base, self.values, self.keys, count=self.calls, thread=thread)
            for _ in range(5)
        )
        return statistics.median(runs)

    def cost(self, size: int, build: Callable[..., object], *, thread: int = 1) -> float:
        """Return nanoseconds of an update of a structure of that size."""
        region = self.tools.Region(max(size, 4096))
        return self.median(self.tools.Compiled(4, build), region.address, thread) - self.empty


def data_rows(report: Report, scale: float) -> None:
    """Measure all of them."""
    bench = Bench(scale)
    _aggregations(report, bench)
    _maps(report, bench)
    _records(report, bench)


def _aggregations(report: Report, bench: Bench) -> None:
    from anyprobe.data.aggregates.aggregations import Count, Hist, Quantize, Stddev, Sum
    from anyprobe.data.layouts.keys import UNKEYED, KeyPart, KeyShape
    from anyprobe.data.readers.tables import TableLayout
    from anyprobe.handlers.llvm.updates import add

    def row(name: str, aggregation: object, words: int = 0, must: float | None = None, thread: int = 1) -> None:
        shape = KeyShape(tuple(KeyPart() for _ in range(words))) if words else UNKEYED
        layout = TableLayout(aggregation, shape, signed=False)

        def build(builder, base, number, value, key):
            key_words = [key, *(builder.add(key, value.type(index)) for index in range(1, words))][:words]
            add(builder, layout, base, number, value, key_words)

        cost = bench.cost(layout.size, build, thread=thread)
        report.add(name, f"{cost:.2f} ns", f"{must:g} ns" if must else "", cost <= must if must else None)

    row("data: count", Count())
    row("data: sum", Sum())
    row("data: standard deviation", Stddev())
    row("data: quantize", Quantize())
    row("data: histogram of an argument", Hist(), must=6)
    row("data: histogram, thread without a row", Hist(), thread=0)
    row("data: keyed count, 1,000 keys", Count(by=("k",)), 1, must=25)
    row("data: keyed histogram, 1,000 keys", Hist(by=("k",), capacity=KEYS), 1, must=25)
    row("data: keyed sum, 1,000 keys of 64 bytes", Sum(by=("k",)), 8, must=25)


def _maps(report: Report, bench: Bench) -> None:
    from anyprobe.data.layouts.keys import KeyPart, KeyShape
    from anyprobe.data.readers.maps import Map, MapLayout
    from anyprobe.handlers.llvm.updates import map_delete, map_get, map_set

    layout = MapLayout(Map("m", capacity=2 * KEYS), KeyShape((KeyPart(),)))

    def set_and_delete(builder, base, _, value, key):
        map_set(builder, layout, base, [key], value)
        map_delete(builder, layout, base, [key])

    region = bench.tools.Region(layout.size)
    operations = {
        "data: map, set one of 1,000 keys": lambda builder, base, _, value, key: map_set(
            builder, layout, base, [key], value
        ),
        "data: map, get one of 1,000 keys": lambda builder, base, _, __, key: map_get(builder, layout, base, [key])[1],
        "data: map, set and delete": set_and_delete,
    }
    for name, build in operations.items():
        cost = bench.median(bench.tools.Compiled(4, build), region.address) - bench.empty
        must = 50 if build is set_and_delete else 25
        report.add(name, f"{cost:.2f} ns", f"{must} ns", cost <= must)


class _Memory:
    """Memory of a file, as it is shared with a target; ``ahead``: how far it exists before it is written."""

    def __init__(self, size: int, ahead: str) -> None:
        handle = os.memfd_create("bench")
        os.ftruncate(handle, size)
        if ahead == "allocated":
            os.posix_fallocate(handle, 0, size)
        self.map = mmap.mmap(handle, size, flags=mmap.MAP_SHARED | (0x8000 if ahead == "mapped" else 0))
        os.close(handle)
        self.view = memoryview(self.map)
        self._pin = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._pin)


def _records(report: Report, bench: Bench) -> None:
    from llvmlite import ir

    from anyprobe.data.aggregates.records import Field, ParquetWriter, RecordType
    from anyprobe.data.readers.rings import RingLayout, RingReader
    from anyprobe.handlers.llvm.updates import emit

    def rdtsc(builder, *_):
        word = ir.FunctionType(ir.IntType(64), [])
        return builder.call(ir.Function(builder.module, word, "llvm.readcyclecounter"), [])

    clock = bench.cost(0, rdtsc)
    record = RecordType("four", (Field("step"), Field("value"), Field("low"), Field("thread")))
    layout = RingLayout(record, 1 << 21, rings=1, threads=1)

    def four(builder, base, thread, value, key):
        emit(builder, layout, base, thread, [key, value, value, thread])

    code, room = bench.tools.Compiled(4, four), layout.slots - 16

    def filled(memory: _Memory) -> float:
        return bench.tools.nanoseconds(code, memory.address, bench.values, bench.keys, count=room) - bench.empty

    memory = _Memory(layout.size, "mapped")
    reader = RingReader(memory.view, layout)
    costs, seconds, records = [], [], np.empty(0, record.dtype)
    for _ in range(7):
        costs.append(filled(memory))
        begin = time.process_time()
        records = reader.drain()
        seconds.append(time.process_time() - begin)
        assert len(records) == room
    assert not reader.drops().total
    cost = statistics.median(costs)
    figure = f"{cost:.2f} ns, rdtsc {clock:.2f}"
    report.add("data: record of 4 fields with its time", figure, "rdtsc + 10 ns", cost <= clock + 10)
    for ahead in ("not there", "allocated", "mapped"):
        rate = 1e3 / statistics.median(filled(_Memory(layout.size, ahead)) for _ in range(3))
        must = ahead != "not there"
        name = f"data: a ring of {layout.ring_bytes >> 20} MiB until full, pages {ahead}"
        report.add(name, f"{rate:.0f} M/s", "30 M/s" if must else "", rate >= 30 if must else None)
    rate = room / statistics.median(seconds) / 1e6
    report.add("data: reader into NumPy, one ring", f"{rate:.0f} M/s", "10 M/s", rate >= 10)
    _merged(report, bench, record)
    try:
        with tempfile.TemporaryDirectory() as folder, ParquetWriter(f"{folder}/records") as writer:
            begin = time.process_time()
            writer.write(records)
            rate = len(records) / (time.process_time() - begin) / 1e6
        report.add("data: reader's records into Parquet", f"{rate:.1f} M/s", "3 M/s", rate >= 3)
    except Exception as error:
        report.skip("data: reader's records into Parquet", error)


def _merged(report: Report, bench: Bench, record: object) -> None:
    """Eight threads' rings, read into one array by time."""
    from anyprobe.data.readers.rings import RingLayout, RingReader
    from anyprobe.handlers.llvm.updates import emit

    layout = RingLayout(record, 1 << 18, rings=8, threads=8)

    def four(builder, base, thread, value, key):
        emit(builder, layout, base, thread, [key, value, value, thread])

    code, memory = bench.tools.Compiled(4, four), _Memory(layout.size, "mapped")
    reader, rates = RingReader(memory.view, layout), []
    for _ in range(5):
        bench.tools.hammer(code, memory.address, threads=8, count=layout.slots - 16)
        begin = time.process_time()
        records = reader.drain()
        rates.append(len(records) / (time.process_time() - begin) / 1e6)
    rate = statistics.median(rates)
    report.add("data: reader into NumPy, 8 rings by time", f"{rate:.0f} M/s", "10 M/s", rate >= 10)
