"""Results of aggregations: merging, DTrace's clear, trunc and normalize, and their forms."""

import json
import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.aggregations import Count, Stddev
from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.archives.archive import document_of, value_of
from anyprobe.data.layouts.keys import UNKEYED
from anyprobe.data.readers.tables import ROW_HEAD_BYTES, TableLayout, TableView

BUCKETS = st.dictionaries(st.integers(0, 20), st.integers(1, 9), max_size=4).map(
    lambda found: tuple((float(low), float(low + 1), count) for low, count in sorted(found.items()))
)
NUMBER = st.none() | st.integers(-(1 << 63), 1 << 63)
CELLS = st.builds(CellValue, st.integers(0, 1 << 60), NUMBER, NUMBER, NUMBER, NUMBER, BUCKETS)
KEYS = st.tuples(st.integers(0, 5), st.sampled_from(["a", "b"]))
RESULTS = st.dictionaries(KEYS, CELLS, max_size=5).map(
    lambda entries: AggregationResult("x", "sum", ("n", "s"), entries)
)


@settings(deadline=None)
@given(RESULTS, RESULTS, RESULTS)
def test_merging_is_associative_and_commutative(first, second, third):
    def plain(result):
        return dict(result.entries), result.dropped

    assert plain(first.merged(second).merged(third)) == plain(first.merged(second.merged(third)))
    assert plain(first.merged(second)) == plain(second.merged(first))


@settings(deadline=None)
@given(RESULTS)
def test_a_result_survives_json_and_pickle(result):
    assert value_of(AggregationResult, json.loads(json.dumps(document_of(result)))) == result
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - our own


def counted(**counts):
    return AggregationResult("c", "count", ("k",), {(key,): CellValue(count) for key, count in counts.items()})


def test_trunc_keeps_the_largest_or_with_a_minus_the_smallest():
    result = counted(a=3, b=1, c=2)
    assert result.trunc(2).entries.keys() == {("a",), ("c",)}
    assert result.trunc(-1).entries.keys() == {("b",)}
    assert result.trunc(9) == result
    assert not result.trunc().entries


def test_clear_keeps_the_keys():
    assert {key: cell.count for key, cell in counted(a=3, b=1).clear().entries.items()} == {("a",): 0, ("b",): 0}


def test_normalize_changes_what_is_shown_and_not_what_was_counted():
    result = counted(a=7).normalize(2)
    assert result["a"].count == 7
    assert result.as_json() == [
        {"key": ["a"], "count": 7, "sum": None, "min": None, "max": None, "buckets": [], "normalized": 3,
         "normalization": 2}
    ]  # fmt: skip
    assert "normalized" not in result.normalize().as_json()[0]


def test_json_without_a_key_is_one_object():
    result = AggregationResult("h", "hist", (), {(): CellValue(1, 5, 5, 5, None, ((5, 6, 1),))})
    documented = {"count": 1, "sum": 5, "min": 5, "max": 5, "buckets": [[5, 6, 1]]}
    assert result.as_json() == {**documented, "p50": 5, "p90": 5, "p99": 5}
    assert AggregationResult("h", "hist").as_json()["count"] == 0


def test_entries_cannot_be_changed():
    with pytest.raises(TypeError):
        counted(a=1).entries[("a",)] = CellValue()


def test_the_deviation_of_large_values_is_exact():
    values = [(1 << 62) + step for step in (0, 2, 4)]
    cell = CellValue(3, sum(values), squares=sum(value * value for value in values))
    assert cell.stddev == pytest.approx((8 / 3) ** 0.5)


def test_a_declaration_without_a_process_has_counted_nothing():
    assert not Count("c").result().entries
    assert Stddev("s").result().total.stddev is None


def test_a_declaration_shows_what_all_processes_have_counted():
    calls = Count("calls")
    layout = TableLayout(calls, UNKEYED, threads=2)
    regions = [bytearray(layout.size) for _ in range(2)]
    calls.views += [TableView(memoryview(region), layout) for region in regions]
    for region, row, hits in ((regions[0], 1, 5), (regions[1], 0, 7)):
        struct.pack_into("<Q", region, layout.rows_offset + row * layout.stride + ROW_HEAD_BYTES, hits)
    assert calls.result().total.count == 12
    calls.normalize(4)
    assert calls.result().as_json()["normalized"] == 3
    calls.clear()
    assert calls.result().total.count == 0
    with pytest.raises(UsageError, match="divided"):
        calls.normalize(0)


def test_only_the_rows_of_pages_that_hold_data_are_looked_at():
    layout = TableLayout(Count("calls"), UNKEYED, threads=100)
    rows = layout.rows_offset
    view = TableView(memoryview(bytearray(layout.size)), layout, lambda: iter([(0, 4096), (rows + 4096, rows + 8192)]))
    assert view._touched() == [slice(32, 64)]
