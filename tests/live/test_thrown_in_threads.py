"""Threads that throw and are interrupted, while probes in them and their runtime come and go; the torture has more."""

import pytest

from live.thrown_in_threads import check_session


@pytest.mark.parametrize(("seed", "live"), [(4, True), (5, False)])
def test_random_session(seed, live):
    assert check_session(seed, {}, steps=2, live=live) > 0
