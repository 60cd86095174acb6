"""Threads that throw and are interrupted, while probes in them and their runtime come and go; the torture has more."""

import pytest

from support.thrown_in_threads import check_session


@pytest.mark.parametrize("busy", [False, True], ids=["free", "held-up"])
@pytest.mark.parametrize(("seed", "live"), [(4, True), (5, False)])
def test_random_session(seed, live, busy):
    assert check_session(seed, {}, steps=2, live=live, busy=busy) > 0
