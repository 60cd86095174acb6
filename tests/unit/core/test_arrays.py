import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.arrays import among, unique

numbers = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=20).map(
    lambda values: np.array(values, np.int64)
)


@given(numbers)
def test_unique_is_the_sorted_set(values):
    assert unique(values).tolist() == sorted(set(values.tolist()))


@given(numbers, numbers)
def test_among_is_membership(values, wanted):
    assert among(values, wanted).tolist() == [value in set(wanted.tolist()) for value in values.tolist()]
