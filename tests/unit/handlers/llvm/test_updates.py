"""Update code of aggregations, run in this process by threads and signal handlers, against a recomputation."""

import ctypes
import mmap
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyprobe.data.aggregates.aggregations import Avg, Count, Hist, LQuantize, Max, Min, Quantize, Stddev, Sum
from anyprobe.data.aggregates.records import Field, RecordType
from anyprobe.data.layouts.keys import UNKEYED, KeyPart, KeyShape
from anyprobe.data.readers.rings import RingLayout, RingReader
from anyprobe.data.readers.tables import INSERTING, TableLayout, TableView
from anyprobe.handlers.llvm.updates import add, emit
from support import inprocess
from support.reference.bucket_index import linear_index, log_linear_index, power_index

ONE_KEY = KeyShape((KeyPart(),))
EVERY = [
    Count(),
    Sum(),
    Min(),
    Max(),
    Avg(),
    Stddev(),
    Quantize(),
    LQuantize("l", -1000, 100_000, 500),
    Hist(),
]


def compiled(layout):
    keyed = bool(layout.shape.parts)
    return inprocess.Compiled(
        4, lambda builder, base, thread, value, key: add(builder, layout, base, thread, value, [key] if keyed else [])
    )


class Table:
    """An aggregation in memory of ours, and its update code."""

    def __init__(self, aggregation, shape=UNKEYED, *, signed=False, threads=1024):
        self.layout = TableLayout(aggregation, shape, signed=signed, threads=threads)
        self.region = inprocess.Region(self.layout.size)
        self.code = compiled(self.layout)
        self.view = TableView(self.region.view, self.layout)

    def add(self, value, key=0, thread=1):
        self.code.call(self.region.address, thread, value & (1 << 64) - 1, key)


def check(cell, values, bounds=None, index=None, *, signed=False):
    """Compare a cell with what the values come to."""
    exact = [int(value) for value in values]
    assert cell.count == len(exact)
    if cell.sum is not None:
        assert cell.sum == sum(exact)
    if cell.min is not None:
        assert cell.min == min(exact)
    if cell.max is not None:
        assert cell.max == max(exact)
    if cell.squares is not None:
        assert cell.squares == sum(value * value for value in exact)
    if bounds:
        expected = {}
        for value in exact:
            low, high = bounds[index(value)]
            assert low <= value < high
            expected[low, high] = expected.get((low, high), 0) + 1
        assert {(low, high): count for low, high, count in cell.buckets} == expected


def index_of(aggregation):
    if isinstance(aggregation, LQuantize):
        return lambda value: linear_index(value, aggregation.lower, aggregation.step, aggregation.levels)
    return power_index if isinstance(aggregation, Quantize) else log_linear_index


@pytest.mark.parametrize("numbered", [True, False], ids=["own-rows", "shared-row"])
@pytest.mark.parametrize("aggregation", EVERY, ids=lambda aggregation: aggregation.kind)
def test_threads_and_signals_agree_with_a_recomputation(aggregation, numbered):
    table = Table(aggregation)
    steps = inprocess.hammer(
        table.code, table.region.address, threads=8, count=100_000, numbered=numbered, signals=True
    )
    cell = table.view.result().total
    check(cell, inprocess.values_of(steps).tolist(), aggregation.bounds(), index_of(aggregation))
    name = "count" if aggregation.cell.fields[0] == "count" else "buckets"
    shared, *own = table.view.live(name)
    assert (bool(shared.any()), any(row.any() for row in own)) == (not numbered, numbered)


def test_ten_million_updates_of_a_keyed_table_from_eight_threads():
    table = Table(Stddev("s", by=("k",), capacity=1000), ONE_KEY)
    steps = inprocess.hammer(table.code, table.region.address, threads=8, count=1_250_000, keys=1000, signals=True)
    assert len(steps) > 10_000_000
    mixed = inprocess.mixed_of(steps)
    values = mixed >> (steps % np.uint64(64))
    keys = (mixed % np.uint64(1000)).astype(np.int64)
    result = table.view.result()
    assert result.dropped == 0
    counts = np.bincount(keys, minlength=1000)
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
    halves = np.zeros((2, 1000), np.uint64)
    for half, part in zip(halves, (low, high), strict=True):
        np.add.at(half, keys, part)
    sums = [int(lower) + (int(upper) << 32) for lower, upper in halves.T]
    assert {key: cell.count for (key,), cell in result.entries.items()} == {
        key: count for key, count in enumerate(counts.tolist()) if count
    }
    assert {key: cell.sum for (key,), cell in result.entries.items()} == {
        key: sums[key] for key in range(1000) if counts[key]
    }
    squares = sum(
        int(part) << shift
        for part, shift in (
            (int((low * low & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64)), 0),
            (int((low * low >> np.uint64(32)).sum(dtype=np.uint64)), 32),
            (int((low * high & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64)), 33),
            (int((low * high >> np.uint64(32)).sum(dtype=np.uint64)), 65),
            (int((high * high & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64)), 64),
            (int((high * high >> np.uint64(32)).sum(dtype=np.uint64)), 96),
        )
    )
    assert result.total.squares == squares


@pytest.mark.parametrize("numbered", [True, False], ids=["own-rows", "shared-row"])
def test_a_full_table_counts_what_it_drops_and_holds_its_capacity(numbered):
    table = Table(Sum("s", by=("k",), capacity=100), ONE_KEY)
    steps = inprocess.hammer(
        table.code, table.region.address, threads=8, count=20_000, keys=0, numbered=numbered, signals=True
    )
    result = table.view.result()
    assert 100 <= len(result.entries) <= table.layout.capacity
    assert result.total.count + result.dropped == len(steps)
    known = {key: int(inprocess.values_of(np.array([key], np.uint64))[0]) for (key,) in result.entries}
    assert all(result[key].sum == value * result[key].count for key, value in known.items())


@pytest.mark.parametrize("leave", [False, True], ids=["returns", "never-returns"])
@pytest.mark.parametrize("known", [False, True], ids=["new-key", "known-key"])
def test_updates_between_any_two_instructions_of_an_update_are_all_counted(known, leave):
    table = Table(Stddev("s", by=("k",), capacity=2), ONE_KEY)
    base = table.region.address
    for steps in range(1, 2000):
        table.region.map[:] = bytes(len(table.region.map))
        view = TableView(table.region.view, table.layout)
        if known:
            table.add(1 << 63, 7)
        others = [inprocess.call_of(table.code, base, 1, (1 << 63) + key, key) for key in (7, 8, 7)]
        outer = inprocess.call_of(table.code, base, 1, 1 << 63, 7)
        if inprocess.interrupted(outer, steps, others, leave=leave) is None:
            break
        result = view.result()
        assert result.dropped == 0
        assert result.entries.keys() == {(7,), (8,)}
        seven, eight = 2 + known, 1
        if leave:
            # the fields that the interrupted update had not come to lack its value
            assert result[7].count in {seven, seven + 1}
            whole = {((seven + more) << 63) + 14 for more in (0, 1)}
            assert result[7].sum in whole | {each - (1 << 64) for each in whole}
        else:
            squares = sum(value * value for value in [1 << 63] * (1 + known) + [(1 << 63) + 7] * 2)
            assert result[7].count == seven + 1
            assert result[7].squares == squares
        assert (result[8].count, result[8].squares) == (eight, ((1 << 63) + 8) ** 2)
        for key in range(100, 102 + INSERTING):
            table.add(1, key)
        room = len(view.result().entries)
        assert table.layout.capacity - 1 <= room <= table.layout.capacity
    assert steps > 20


@pytest.mark.parametrize(("outer", "other"), [(8, 9), (6, 5), (5, 9), (5, 5)])
def test_extremes_are_those_of_all_values_wherever_an_update_is_interrupted(outer, other):
    table = Table(Hist("h"))
    base = table.region.address
    for steps in range(1, 2000):
        table.view.clear()
        table.add(7)
        others = [inprocess.call_of(table.code, base, 1, value, 0) for value in (other, 7)]
        if inprocess.interrupted(inprocess.call_of(table.code, base, 1, outer, 0), steps, others) is None:
            break
        cell = table.view.result().total
        assert (cell.min, cell.max, cell.sum) == (min(outer, other, 7), max(outer, other, 7), outer + other + 14)
        assert cell.count == 4
    assert steps > 20


def test_what_threads_share_is_changed_by_locked_instructions_only():
    table = Table(Stddev("s", by=("k",), per_thread=False), ONE_KEY)
    assert table.layout.rows == 1
    changes = [line.split() for line in table.code.assembly.splitlines() if line.strip().endswith(")")]
    changes = [line for line in changes if line[0] not in {"movq", "leaq", "xchgq"} and not line[0].startswith("cmp")]
    assert {line[1] for line in changes} >= {"addq", "adcq", "incq", "cmpxchgq", "xaddq"}
    assert {line[0] for line in changes} == {"lock"}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("aggregation", EVERY, ids=lambda aggregation: aggregation.kind)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values(aggregation, signed, data):
    key = (aggregation.kind, signed)
    if key not in _tables:
        _tables[key] = Table(aggregation, signed=signed)
    table = _tables[key]
    least, most = (-(1 << 63), (1 << 63) - 1) if signed else (0, (1 << 64) - 1)
    edges = st.integers(0, 64).flatmap(lambda bits: st.integers(-2, 2).map(lambda by: (1 << bits) + by))
    any_value = st.one_of(st.integers(least, most), edges, edges.map(int.__neg__), st.integers(-2000, 200_000))
    values = data.draw(st.lists(any_value.filter(lambda value: least <= value <= most), min_size=1, max_size=20))
    table.view.clear()
    for number, value in enumerate(values):
        table.add(value, thread=number % 3)
    cell = table.view.result().total
    check(cell, values, aggregation.bounds(), index_of(aggregation), signed=signed)


_tables = {}


@pytest.mark.parametrize("words", [2, 3, 8])
def test_long_keys_are_told_apart_by_each_word(words):
    shape = KeyShape((KeyPart("signed"), KeyPart("string", words - 1)))
    layout = TableLayout(Count("c", by=("a", "b"), capacity=600), shape)

    def build(builder, base, thread, *key):
        add(builder, layout, base, thread, key=key)

    code = inprocess.Compiled(2 + words, build)
    region = inprocess.Region(layout.size)
    keys = [(number - 250, "x" * (number % 7) + "é" * (number % (words * 4 - 7))) for number in range(500)]
    for number, key in enumerate(keys):
        for _ in range(1 + number % 2):
            code.call(region.address, 1 + number % 3, *shape.encode(key))
    result = TableView(region.view, layout).result()
    assert result.dropped == 0
    assert {key: cell.count for key, cell in result.entries.items()} == {
        key: 1 + number % 2 for number, key in enumerate(keys)
    }


def test_clear_and_trunc_while_the_target_goes_on():
    table = Table(Max("m", by=("k",)), ONE_KEY)
    for key in range(10):
        table.add(100 + key, key)
    table.view.trunc(3)
    assert table.view.result().entries.keys() == {(7,), (8,), (9,)}
    table.add(5, 2)
    result = table.view.result()
    assert (result[2].count, result[2].max) == (1, 5)
    assert result[7].max == 107
    table.view.clear()
    cleared = table.view.result()
    assert {key: (cell.count, cell.max) for key, cell in cleared.entries.items()} == {
        (key,): (0, None) for key in (2, 7, 8, 9)
    }
    table.add(1, 7)
    assert table.view.result()[7].max == 1
    table.view.trunc(-1)
    assert len(table.view.result().entries) == 1
    table.view.trunc()
    assert not table.view.result().entries


def test_a_live_view_is_of_the_memory_itself_and_cannot_be_written():
    table = Table(Sum("s", by=("k",)), ONE_KEY)
    table.add(5, key=77, thread=2)
    sums = table.view.live("sum", threads=3)
    number = table.view.keys(table.view.numbers()).index((77,))
    assert sums.shape == (4, 1)
    table.add(6, key=77, thread=2)
    assert sums[:, number].tolist() == [0, 0, 11, 0]
    with pytest.raises(ValueError, match="read-only"):
        sums[0, 0] = 1


def test_rows_that_nobody_has_touched_stay_untouched():
    layout = TableLayout(Hist("h"), threads=100)
    handle = os.memfd_create("table")
    os.ftruncate(handle, layout.size)
    memory = mmap.mmap(handle, layout.size)

    def extents():
        end = 0
        while end < layout.size:
            try:
                low = os.lseek(handle, end, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(handle, low, os.SEEK_HOLE)
            yield low, end

    view = TableView(memoryview(memory), layout, extents)
    assert not view.result().entries
    pin = ctypes.c_char.from_buffer(memory)
    code = compiled(layout)
    for thread in (0, 1, 50, 99, 100, 101):
        for value in (thread, 1 << 30):
            code.call(ctypes.addressof(pin), thread, value, 0)
    check(view.result().total, [0, 1, 50, 99, 100, 101] + [1 << 30] * 6, Hist().bounds(), log_linear_index)
    view.clear()
    code.call(ctypes.addressof(pin), 50, 7, 0)
    check(view.result().total, [7])
    assert os.fstat(handle).st_blocks * 512 <= 5 * layout.stride
    os.close(handle)


def test_aggregations_agree_with_a_full_record_of_the_same_run():
    tables = [
        TableLayout(Hist("h"), signed=False),
        TableLayout(Stddev("s", by=("k",), capacity=500), ONE_KEY, signed=False),
        TableLayout(Count("c", by=("k",), per_thread=False), ONE_KEY, signed=False),
    ]
    record = RecordType("all", (Field("value"), Field("key")))
    ring = RingLayout(record, 1 << 18, rings=8, threads=8)
    offsets = np.cumsum([0, *(table.size for table in tables)]).tolist()
    region = inprocess.Region(offsets[-1] + ring.size)

    def build(builder, base, thread, value, key):
        def at(index):
            return builder.add(base, value.type(offsets[index]))

        add(builder, tables[0], at(0), thread, value)
        add(builder, tables[1], at(1), thread, value, [key])
        add(builder, tables[2], at(2), thread, None, [key])
        emit(builder, ring, at(3), thread, [value, key])

    code = inprocess.Compiled(4, build)
    steps = inprocess.hammer(code, region.address, threads=8, count=50_000, keys=300, signals=True)
    reader = RingReader(region.view[offsets[3] :], ring)
    records = reader.drain(final=True)
    assert reader.drops().total == 0
    assert len(records) == len(steps)
    plain, keyed, counted = (
        TableView(region.view[offset:], table).result() for offset, table in zip(offsets, tables, strict=False)
    )
    check(plain.total, records["value"].tolist(), Hist().bounds(), log_linear_index)
    order = np.argsort(records["key"], kind="stable")
    keys, values = records["key"][order], records["value"][order]
    ends = np.searchsorted(keys, np.arange(300), side="right").tolist()
    for (key,), cell in keyed.entries.items():
        check(cell, values[ends[key - 1] if key else 0 : ends[key]].tolist())
        assert counted[key].count == cell.count
    assert len(keyed.entries) == len(counted.entries) == 300


def test_stddev_of_a_cleared_table_borrows_from_the_high_word():
    table = Table(Stddev("s"))
    table.add((1 << 63) + 1)
    table.add((1 << 63) + 3)
    table.view.clear()
    table.add((1 << 64) - 1)
    table.add(1)
    assert table.view.result().total.squares == ((1 << 64) - 1) ** 2 + 1


def test_generated_code_uses_one_instruction_per_word_and_calls_nothing_outside():
    table = Table(Hist("h", by=("k",)), ONE_KEY)
    lines = [line.strip() for line in table.code.assembly.splitlines()]
    assert {line.split()[1] for line in lines if line.startswith("call")} == {"table.512.192.1.insert"}
    assert not [line for line in lines if "xmm" in line or line.startswith(".section\t.text")]
    own = Table(Sum("s"))
    writes = [line.split()[0] for line in own.code.assembly.splitlines() if line.rstrip().endswith(")")]
    assert writes == ["incq", "addq", "adcq", "lock", "lock", "lock"]
