import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data import histogram

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
    assert edges[-1][1] == 2**histogram.MAX_BITS
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


def test_percentiles():
    buckets = ((10.0, 20.0, 50), (20.0, 30.0, 40), (1000.0, 1010.0, 10))
    assert histogram.percentile(buckets, 0.5) == 20.0
    assert histogram.percentile(buckets, 0.25) == 15.0
    assert histogram.percentile(buckets, 0.9) == 30.0
    assert histogram.percentile(buckets, 1.0) == 1010.0
    assert histogram.percentile((), 0.5) is None


@given(st.lists(st.integers(min_value=0, max_value=2**40), min_size=1, max_size=200))
def test_the_median_is_within_three_percent(values):
    counts = Counter(map(histogram.index, values))
    exact = sorted(values)[(len(values) - 1) // 2]
    median = histogram.percentile(histogram.in_ns(sorted(counts.items()), 1.0), 0.5)
    assert exact * 0.97 - 1 <= median <= exact * 1.03 + 1


def test_merged_adds_equal_buckets():
    assert histogram.merged(((1.0, 2.0, 3),), ((1.0, 2.0, 4), (2.0, 3.0, 1))) == ((1.0, 2.0, 7), (2.0, 3.0, 1))


def test_by_powers_of_two_keeps_the_sum_and_has_no_gaps():
    shown = histogram.by_powers_of_two(((100.0, 101.0, 2), (120.0, 122.0, 3), (1000.0, 1016.0, 5)))
    assert shown == ((64.0, 128.0, 5), (128.0, 256.0, 0), (256.0, 512.0, 0), (512.0, 1024.0, 5))
    assert histogram.by_powers_of_two(()) == ()
