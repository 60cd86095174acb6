import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data.aggregates.results import AggregationResult
from anyprobe.data.layouts import buckets, histogram
from anyprobe.data.layouts.cells import CellValue
from support.reference.bucket_index import log_linear_index

ticks = st.integers(min_value=0, max_value=2**64 - 1)


@given(ticks)
def test_a_value_lies_within_the_bounds_of_its_bucket(value):
    low, high = histogram.bounds(histogram.index(value))
    assert low <= value < high


@given(ticks)
def test_the_error_of_a_bucket_is_at_most_three_percent(value):
    low, high = histogram.bounds(histogram.index(value))
    assert (high - 1 - low) <= 0.03 * max(low, 1)


@given(ticks, ticks)
def test_the_index_is_monotonic(left, right):
    assert (left <= right) <= (histogram.index(left) <= histogram.index(right))


def test_buckets_touch():
    edges = [histogram.bounds(bucket) for bucket in range(histogram.BUCKETS)]
    assert edges[0][0] == 0
    assert edges[-1][0] == 2**histogram.MAX_BITS
    assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))


def test_every_bucket_is_the_bucket_of_its_bounds():
    for bucket in range(histogram.BUCKETS):
        low, high = histogram.bounds(bucket)
        assert histogram.index(low) == histogram.index(high - 1) == bucket


def test_long_durations_share_the_last_bucket():
    assert histogram.clamped_index(2**63) == histogram.BUCKETS - 1
    assert histogram.clamped_index(2**20) == histogram.index(2**20)


def test_buckets_in_nanoseconds():
    assert histogram.in_ns([(3, 1), (histogram.index(100), 7)], 0.5) == ((1.5, 2.0, 1), (50.0, 50.5, 7))
    assert histogram.in_ns([(histogram.BUCKETS - 1, 2)], 0.5) == ((2.0**43, 2.0**64, 2),)


def test_percentiles():
    shown = ((10.0, 20.0, 50), (20.0, 30.0, 40), (1000.0, 1010.0, 10))
    assert histogram.quantile(shown, 0.5) == (20.0, "")
    assert histogram.quantile(shown, 0.25) == (15.0, "")
    assert histogram.quantile(shown, 0.9) == (30.0, "")
    assert histogram.quantile(shown, 1.0) == (1010.0, "")
    assert histogram.quantile((), 0.5) is None


def in_buckets(values):
    """Return the buckets of an aggregation of whole numbers."""
    counts = [0] * buckets.LOG_LINEAR
    for value in values:
        counts[log_linear_index(value)] += 1
    return buckets.nonempty(counts, [buckets.log_linear_bounds(index) for index in range(buckets.LOG_LINEAR)])


@given(st.lists(st.integers(min_value=0, max_value=127), min_size=1, max_size=200), st.integers(1, 100))
def test_percentiles_of_small_whole_numbers_are_exact(values, percent):
    """The smallest value that so many percent of the values do not exceed: none of their neighbours."""
    wanted = next(each for each in sorted(values) if 100 * sum(v <= each for v in values) >= percent * len(values))
    assert histogram.quantile(in_buckets(values), percent / 100, whole=True) == (wanted, "")


@given(st.lists(st.integers(min_value=0, max_value=(1 << 44) - 1), min_size=1, max_size=50), st.integers(1, 100))
def test_percentiles_of_whole_numbers_lie_in_the_bucket_of_the_true_one(values, percent):
    true = next(each for each in sorted(values) if 100 * sum(v <= each for v in values) >= percent * len(values))
    found = histogram.quantile(in_buckets(values), percent / 100, whole=True)
    assert histogram.index(found.value) == histogram.index(true)


def test_of_what_lies_beyond_the_buckets_a_bound_is_known():
    edge = 1 << 44
    assert in_buckets([edge - 1])[0][1] == edge
    assert in_buckets([edge, (1 << 63) - 1]) == ((edge, histogram.HIGHEST, 2),)
    assert histogram.quantile(in_buckets([1, edge, edge + 1]), 0.9, whole=True) == (edge, "at least")
    assert histogram.quantile(in_buckets([-5, -(1 << 63), 7]), 0.5, whole=True) == (-1, "at most")
    cell = CellValue(3, None, 3 * edge, 1 << 50, buckets=in_buckets([3 * edge, 1 << 48, 1 << 50]))
    assert cell.quantile(0.5) == (3 * edge, "at least")  # the smallest of all is known, too
    alike = CellValue(2, None, -7, -7, buckets=in_buckets([-7, -7]))
    assert alike.quantile(0.5) == (-7, "")
    document = AggregationResult("h", "hist", (), {(): cell}).as_json()
    assert document["p50"] == 3 * edge
    assert document["percentile_bounds"] == {"p50": "at least", "p90": "at least", "p99": "at least"}


@given(st.lists(st.integers(min_value=0, max_value=2**40), min_size=1, max_size=200))
def test_the_median_is_within_three_percent(values):
    counts = Counter(map(histogram.index, values))
    exact = sorted(values)[(len(values) - 1) // 2]
    median = histogram.quantile(histogram.in_ns(sorted(counts.items()), 1.0), 0.5).value
    assert exact * 0.97 - 1 <= median <= exact * 1.03 + 1


def test_merged_adds_equal_buckets():
    assert histogram.merged(((1.0, 2.0, 3),), ((1.0, 2.0, 4), (2.0, 3.0, 1))) == ((1.0, 2.0, 7), (2.0, 3.0, 1))


def test_by_powers_of_two_keeps_the_sum_and_has_no_gaps():
    shown = histogram.by_powers_of_two(((100.0, 101.0, 2), (120.0, 122.0, 3), (1000.0, 1016.0, 5)))
    assert shown == ((64.0, 128.0, 5), (128.0, 256.0, 0), (256.0, 512.0, 0), (512.0, 1024.0, 5))
    assert histogram.by_powers_of_two(()) == ()
