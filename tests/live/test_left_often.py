"""Calls that ``longjmp`` and exceptions leave behind over and over: no other call is lost for them."""

import pytest

import anyprobe
from support.results import timing

FUNCTIONS = ("deeper", "handled", "raises", "plain", "round_of")
ROUNDS, PLACES = 3000, 1024


@pytest.mark.parametrize("returns", ["auto", "exits", "callers"])
@pytest.mark.parametrize("options", ["longjmp 1", "longjmp 4", "throw 1", "throw 4"])
def test_no_call_is_missed_for_those_that_were_left(run_target, options, returns):
    target = run_target("left_often.cpp", *options.split(), options=("-O1", "-pthread"))
    with anyprobe.attach(target.pid, returns=returns) as session:
        session.time(*(f"a.out:{name}" for name in FUNCTIONS))
        assert not session.refused
        target.go(3)
        session.pump(0.1)
        own = target.go(ROUNDS)
        snapshot = session.snapshot()
    for name in FUNCTIONS:
        found, calls, returned = timing(snapshot, name), own.calls[name], own.returns[name]
        told = name, found, calls, returned
        assert (found.unmatched, found.tail_exits) == (0, 0), told
        assert found.count + found.learning == returned, told
        # at return points it is not known which have been left
        missed = found.nmissed if returns == "callers" else 0
        assert (found.nmissed, missed + found.left + found.in_flight) == (missed, calls - returned), told
    assert sum(each.in_flight for each in snapshot.functions) <= PLACES * int(options.split()[1])
    assert sum(each.left + each.nmissed for each in snapshot.functions) > 0
    target.finish()
