"""Aggregations and maps read as Python reads numbers and dictionaries, live and as results alike."""

import pickle
import struct

import numpy as np
import pytest

from anyprobe.core.errors import TargetError
from anyprobe.data.aggregates.aggregations import Avg, Count, Hist, Max, Min, Quantize, Stddev, Sum
from anyprobe.data.aggregates.results import AggregationResult, MapResult
from anyprobe.data.layouts.cells import CellValue
from anyprobe.data.layouts.keys import UNKEYED
from anyprobe.data.readers.maps import Map
from anyprobe.data.readers.tables import ROW_HEAD_BYTES, TableLayout, TableView


class View:
    """The memory of one process, as far as results are read from it."""

    def __init__(self, aggregation, entries):
        self._found = AggregationResult(aggregation.name, aggregation.kind, aggregation.by, entries)

    def result(self):
        return self._found


class Items:
    """The memory of one process, as far as a map is read from it."""

    def __init__(self, entries):
        self._entries = entries

    def items(self):
        return dict(self._entries)


def live(aggregation, *processes):
    aggregation.views += [View(aggregation, entries) for entries in processes]
    return aggregation


def both(aggregation):
    return aggregation, aggregation.result()


def distribution(*values):
    buckets = tuple((float(each), float(each + 1), values.count(each)) for each in sorted(set(values)))
    return CellValue(len(values), sum(values), min(values), max(values), None, buckets)


def test_a_count_is_a_number():
    for count in both(live(Count("calls"), {(): CellValue(5)}, {(): CellValue(7)})):
        assert int(count) == count.value == count.count == 12
        assert float(count) == 12.0
        assert len(count) == 1
        assert repr(count) == "<count 'calls': 12>"


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Count, 4), (Sum, 40), (Min, -3), (Max, 21), (Avg, 10.0), (Stddev, 0.0), (Quantize, 4), (Hist, 4)],
)
def test_the_value_is_what_the_aggregation_is_for(kind, value):
    cell = CellValue(4, 40, -3, 21, 400)
    for thing in both(live(kind("x", by="k"), {("a",): cell})):
        assert thing.value == thing["a"].value == value
        assert int(thing) == int(thing["a"]) == int(value)


@pytest.mark.parametrize("kind", [Min, Max, Avg, Stddev])
def test_nothing_has_no_extreme_and_no_mean(kind):
    for thing in both(kind("x")):
        assert thing.value is None
        with pytest.raises(ValueError, match="nothing was counted"):
            int(thing)


@pytest.mark.parametrize("kind", [Count, Sum, Hist])
def test_nothing_is_counted_as_zero(kind):
    for thing in both(kind("x")):
        assert thing.value == int(thing) == 0
        assert len(thing) == 0
        assert list(thing) == []


def test_a_distribution_has_percentiles_of_all_keys_and_of_each():
    cells = {("a",): distribution(*range(1, 101)), ("b",): distribution(500)}
    for hist in both(live(Hist("sizes", by="who"), cells)):
        assert hist["a"].p50 == pytest.approx(51, abs=1)
        assert hist["a"].p90 == pytest.approx(91, abs=1)
        assert hist["a"].p99 == pytest.approx(100, abs=1)
        assert hist.p99 == pytest.approx(100, abs=1)
        assert hist.percentile(1.0) == hist.max == 500
        assert (hist.count, hist.min, hist.sum) == (101, 1, 5550)
        assert hist.mean == pytest.approx(5550 / 101)
        assert sum(count for _, _, count in hist.buckets) == 101


def test_an_aggregation_is_read_like_a_dictionary():
    entries = {("a", 1): CellValue(3), ("b", 2): CellValue(4)}
    for agg in both(live(Count("calls", by=("name", "tid")), entries)):
        assert len(agg) == 2
        assert list(agg) == [("a", 1), ("b", 2)] == list(agg.keys())
        assert [key for key, _ in agg.items()] == list(agg)
        assert [int(cell) for cell in agg.values()] == [3, 4]
        assert agg["b", 2].count == int(agg[("b", 2)]) == 4
        assert ("a", 1) in agg
        assert ("a", 2) not in agg
        assert "a" not in agg
        assert agg.get(("a", 2)) is None
        assert agg.get(("a", 2), 0) == 0
        with pytest.raises(KeyError):
            agg["c", 3]


def test_a_key_of_one_part_needs_no_tuple():
    for agg in both(live(Count("calls", by="name"), {("a",): CellValue(3)})):
        assert agg["a"] == agg[("a",)] == CellValue(3)
        assert "a" in agg
        assert agg.get("a") == CellValue(3)
        assert list(agg) == [("a",)]


def test_texts_of_things_show_what_they_hold():
    cells = {(f"f{number}",): CellValue(number) for number in range(12)}
    for agg in both(live(Count("calls", by="func"), cells)):
        assert repr(agg).startswith("<count 'calls' by func: {'f0': 0, 'f1': 1,")
        assert repr(agg).endswith("… 4 more}>")
    for hist in both(live(Hist("sizes"), {(): distribution(1, 2, 3, 4)})):
        assert repr(hist).startswith("<hist 'sizes': 4 values, min 1, p50 2, p90 4, p99 4, max 4>")
    assert repr(Min("m")) == "<min 'm': nothing>"


def test_a_text_is_had_even_where_nothing_can_be_read():
    class Gone:
        def result(self):
            raise TargetError("it has gone")

        items = result

    count, table = Count("calls"), Map("started", by="tid")
    count.views.append(Gone())
    table.views.append(Gone())
    assert repr(count) == "<count 'calls': it has gone>"
    assert repr(table) == "<map 'started' by tid: it has gone>"


def test_a_map_is_read_like_a_dictionary():
    table = Map("started", by="tid")
    table.views += [Items({(7,): 100}), Items({(8,): 200})]
    for thing in (table, MapResult("started", ("tid",), table.items())):
        assert (thing[7], thing[8,]) == (100, 200)
        assert len(thing) == 2
        assert list(thing) == [(7,), (8,)]
        assert 7 in thing
        assert 9 not in thing
        assert list(thing.values()) == [100, 200]
        assert dict(thing.items()) == dict(thing) == {(7,): 100, (8,): 200}
        assert repr(thing) == "<map 'started' by tid: {7: 100, 8: 200}>"


def test_live_objects_stay_what_they_are_as_keys_of_dictionaries():
    first, second = Count("calls"), Count("calls")
    assert first != second
    assert {first: 1, second: 2}[first] == 1


def test_a_value_of_shared_memory_knows_its_kind():
    total = Sum("bytes")
    layout = TableLayout(total, UNKEYED, threads=2)
    region = bytearray(layout.size)
    total.views.append(TableView(memoryview(region), layout))
    struct.pack_into("<QQ", region, layout.rows_offset + ROW_HEAD_BYTES, 2, 4096)
    assert int(total) == int(total[()]) == 4096
    assert int(total.result().clear()) == 0
    assert np.int64(int(total)) == 4096


def test_value_of_a_cell_still_answers_and_warns():
    result = AggregationResult("bytes", "sum", ("k",), {("a",): CellValue(2, 30), ("b",): CellValue(1, 12)})
    with pytest.warns(DeprecationWarning, match=r"cell\.value"):
        assert result.value(result["a"]) == 30
    assert result.value == 42
    assert type(pickle.loads(pickle.dumps(result.value))) is int  # noqa: S301 - our own
