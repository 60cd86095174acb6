"""What was counted between two snapshots."""

from dataclasses import replace

import pytest

from anyprobe.data.interval import since
from anyprobe.data.results import AggregationResult, CellValue
from support.sample_snapshots import site, snapshot, timing


def test_sites_count_what_was_added_and_keep_their_sum():
    before = snapshot(sites=(site("malloc", 100), site("free", 7)), duration_s=1.0)
    after = snapshot(sites=(site("malloc", 150), site("free", 7), site("calloc", 3)), duration_s=3.5)
    between = since(after, before, "10:00:00")
    assert [each.hits for each in between.sites] == [50, 0, 3]
    assert [between.interval.total(each) for each in between.sites] == [150, 7, 3]
    assert (between.duration_s, between.interval.seconds, between.interval.moment) == (2.5, 2.5, "10:00:00")
    assert between.hits == 53


def test_the_first_interval_begins_with_the_session():
    between = since(snapshot(duration_s=5.0), None, "10:00:00")
    assert (between.hits, between.interval.seconds) == (7 + 12345, 5.0)


def test_calls_of_the_interval_have_its_percentiles_though_ticks_are_measured_anew():
    before = timing(count=60, sum_ns=1000.0, buckets=((10.0, 20.0, 50), (1000.0, 1016.0, 10)))
    scale = 1.00001
    after = timing(
        count=100, sum_ns=3000.0, min_ns=10.0, max_ns=1005.0,
        buckets=((10.0 * scale, 20.0 * scale, 50), (20.0, 30.0, 30), (1000.0 * scale, 1016.0 * scale, 20)),
    )  # fmt: skip
    (found,) = since(snapshot(functions=(after,)), snapshot(functions=(before,)), "").functions
    assert [count for _, _, count in found.buckets] == [30, 10]
    assert (found.count, found.sum_ns) == (40, 2000.0)
    assert (found.min_ns, found.max_ns) == (20.0, 1005.0)
    assert 20 <= found.p50_ns <= 30


@pytest.mark.parametrize("kind", ["count", "hist"])
def test_keys_to_which_nothing_was_added_are_left_out(kind):
    def result(**cells):
        entries = {(key,): CellValue(count, sum=10 * count, min=1, max=9) for key, count in cells.items()}
        return AggregationResult("values", kind, ("key",), entries)

    before, after = snapshot(aggregations=(result(a=5, b=2),)), snapshot(aggregations=(result(a=9, b=2, c=1),))
    (found,) = since(after, before, "").aggregations
    assert {key: (cell.count, cell.sum) for key, cell in found.entries.items()} == {("a",): (4, 40), ("c",): (1, 10)}


def test_a_table_that_was_cleared_shows_what_it_has():
    before = snapshot(aggregations=(AggregationResult("x", "count", (), {(): CellValue(9)}),))
    after = snapshot(aggregations=(AggregationResult("x", "count", (), {(): CellValue(3)}),))
    assert since(after, before, "").aggregations[0].entries[()].count == 3


def test_what_was_not_hit_can_be_left_out():
    silent = timing("never", count=0, tail_exits=0, buckets=())
    kept, left_out = snapshot(functions=(timing(), silent)).nonzero()
    assert [each.function for each in kept.sites] == ["free", "malloc"]
    assert [each.function for each in kept.functions] == ["malloc"]
    assert left_out == {"sites": 1, "functions": 1}
    taken_out = replace(site("gone", 0), armed=False)
    assert snapshot(sites=(taken_out,)).nonzero()[0].sites == (taken_out,)
