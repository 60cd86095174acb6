"""What probes cost in a program as it was measured: at the pace of its threads, and how far that may be off."""

import pytest

from anyprobe.data.snapshots.costs import (
    DOUBT,
    FEW_FUNCTIONS,
    FIRST_OF_FEW,
    FIRST_OF_MANY,
    SLOWED,
    SLOWED_INSIDE,
    UNIT,
    Costs,
)

COSTS = Costs(entered=20 * UNIT, left=60 * UNIT, ended=20 * UNIT, pace=50 * UNIT, doubt=0.06)


@pytest.mark.parametrize(("called", "first"), [(1, FIRST_OF_FEW), (FEW_FUNCTIONS, FIRST_OF_FEW), (1000, FIRST_OF_MANY)])
def test_the_more_functions_are_called_the_less_is_known(called, first):
    """First calls take so long in all, whatever the others have taken."""
    for whole in (10**9, 10**12):
        found = COSTS.in_use(called, whole * UNIT).doubt
        assert found == pytest.approx(DOUBT + first * called / whole)


def test_what_was_measured_to_be_worse_stays():
    assert COSTS.doubted(0.5).in_use(1, 0).doubt == 0.5


def test_all_slows_down_more_than_trials_do():
    slower = COSTS.at_pace(75)
    assert slower.whole == (1 + SLOWED / 2) * COSTS.whole
    assert slower.inside == (1 + SLOWED_INSIDE / 2) * COSTS.inside
