"""Bucket edges: DTrace's documented ones, and that the buckets of each kind tile all 64-bit values."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.aggregations import Hist, LQuantize, Quantize
from anyprobe.data.layouts import buckets, histogram
from support.reference.bucket_index import linear_index, log_linear_index, power_index

ANY = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(0, 64).map(lambda bits: (1 << bits) - 1),
    st.integers(-1000, 1000),
)


@pytest.mark.parametrize(
    ("value", "low"),
    [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (1023, 512), (1024, 1024), ((1 << 63) - 1, 1 << 62)],
)
def test_quantize_counts_in_the_highest_power_of_two_that_does_not_exceed(value, low):
    assert buckets.power_bounds(power_index(value))[0] == low
    # and the negative ones mirror that: DTrace names the bucket by the power that is nearest to zero
    if value:
        assert buckets.power_bounds(power_index(-value))[1] == 1 - low


@pytest.mark.parametrize(("value", "low"), [(9, None), (10, 10), (19, 10), (20, 20), (99, 90), (100, 100), (5000, 100)])
def test_lquantize_has_equal_steps_and_a_bucket_on_each_side(value, low):
    layout = LQuantize("l", 10, 100, 10)
    found = layout.bounds()[linear_index(value, 10, 10, layout.levels)]
    assert found[0] == (histogram.LOWEST if low is None else low)
    assert len(layout.bounds()) == 9 + 2


def test_lquantize_ends_with_the_last_whole_step():
    assert LQuantize("l", 0, 25, 10).bounds() == [
        (histogram.LOWEST, 0),
        (0, 10),
        (10, 20),
        (20, histogram.HIGHEST),
    ]


@pytest.mark.parametrize(("lower", "upper", "step"), [(5, 5, 1), (6, 5, 1), (0, 10, 0), (0, 10, 11), (0, 1 << 20, 1)])
def test_lquantize_refuses_what_has_no_steps(lower, upper, step):
    with pytest.raises(UsageError, match="l: "):
        LQuantize("l", lower, upper, step)


@settings(deadline=None)
@given(value=ANY)
def test_a_value_lies_in_its_bucket(value):
    linear = LQuantize("l", -500, 700, 7)
    for bounds, index in [
        (Quantize().bounds(), power_index(value)),
        (Hist().bounds(), log_linear_index(value)),
        (linear.bounds(), linear_index(value, -500, 7, linear.levels)),
    ]:
        low, high = bounds[index]
        assert low <= value < high


@pytest.mark.parametrize("aggregation", [Quantize(), Hist(), LQuantize("l", -500, 700, 7)], ids=lambda a: a.kind)
def test_buckets_stand_side_by_side(aggregation):
    bounds = aggregation.bounds()
    assert len(bounds) == aggregation.cell.buckets
    assert all(high == low for (_, high), (low, _) in pairwise(bounds))


def test_buckets_of_hist_are_narrow():
    for low, high in Hist().bounds()[1 + histogram.SUB_BUCKETS : -1]:
        assert (high - low) / low <= 0.03
