from dataclasses import replace

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.layouts.histogram import HIGHEST, LOWEST
from anyprobe.data.snapshots.heatmaps import heat_maps
from support.sample_snapshots import snapshot, timing


def interval(*buckets, seconds=1.0, function="f"):
    count = sum(each[2] for each in buckets)
    timed = timing(function, count=count, buckets=buckets, sum_ns=float(count))
    return snapshot(sites=(), functions=(timed,), duration_s=seconds)


def test_each_value_is_in_its_column_and_row():
    series = [interval((100.0, 101.0, 3)), interval(), interval((100.0, 101.0, 1), (230.0, 233.0, 7), seconds=0.5)]
    ((found,), _) = heat_maps(series, columns=80, most_rows=2, most=9)
    assert found.edges == (0, 1, 2, 2.5)
    assert found.rows == ((64, 128), (128, 256))
    assert found.cells == {(0, 0): 3, (2, 0): 1, (2, 1): 7}
    assert (found.total, found.most) == (11, 7)


def test_rows_are_as_low_as_there_is_room_for():
    series = [interval((100.0, 101.0, 3), (110.0, 111.0, 2))]
    ((fine,), _) = heat_maps(series, columns=80, most_rows=16, most=9)
    assert (len(fine.rows), fine.total) == (2, 5)
    assert all(high / low < 1.1 for low, high in fine.rows)


def test_intervals_are_added_up_where_there_are_more_than_columns():
    series = [interval((100.0, 101.0, at)) for at in range(1, 8)]
    ((found,), _) = heat_maps(series, columns=3, most_rows=16, most=9)
    assert found.edges == (0, 3, 6, 7)
    assert [found.cells[column, 0] for column in range(3)] == [1 + 2 + 3, 4 + 5 + 6, 7]


def test_what_lies_beyond_all_buckets_has_a_row_of_its_own():
    buckets = (float(LOWEST), 0.0, 2), (0.0, 1.0, 3), (float(1 << 44), float(HIGHEST), 5)
    cell = CellValue(10, buckets=buckets)
    one = replace(snapshot(sites=()), aggregations=(AggregationResult("n", "hist", ("k",), {(1,): cell, (2,): cell}),))
    ((found,), _) = heat_maps([one], columns=8, most_rows=16, most=9)
    assert not found.is_time
    assert found.total == 20
    assert found.rows[0][1] == 0
    assert found.rows[1] == (0, 1)
    assert found.cells[0, 1] == 6
    assert found.rows[-1][0] == 1 << 44


def test_functions_with_most_time_come_first():
    series = [interval((1.0, 2.0, 3), function="little"), interval((1.0, 2.0, 9), function="much")]
    assert [each.name for each in heat_maps(series, columns=8, most_rows=8, most=9)[0]] == ["much", "little"]
    assert heat_maps(series, columns=8, most_rows=8, most=1)[1] == 1
    assert heat_maps([], columns=8, most_rows=8, most=9) == ([], 0)
