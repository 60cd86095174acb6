"""Sessions that time functions again and again: memory for patches is not used up, and nothing is missed."""

import pytest

import anyprobe
from support.driver import build, started
from support.learning import after_learning, since

ALL = ("ends", "by_pointer", "deep", "joined", "leaps", "ping", "pong")
CYCLES, ROUNDS = 24, 50


@pytest.mark.parametrize("live", [False, True], ids=["stop", "live"])
def test_what_sees_exceptions_and_longjmp_is_there_for_what_is_timed_now_alone(live):
    with started(build("return_points.c", "-O2")) as target, anyprobe.attach(target.pid, live=live) as session:
        holdings = session.splicing.holdings
        for _ in range(CYCLES):
            probes = session.time(*(f"a.out:{name}" for name in ALL))
            assert not session.refused
            session.remove(*probes)
            session.enable(*probes)
            session.remove(*probes)
        probes = session.time(*(f"a.out:{name}" for name in ALL))
        start, end, before, counts = after_learning(session, target, ROUNDS)
        assert all(each.armed for each in probes)
    for name, then, now in zip(ALL, start.functions[-len(ALL) :], end.functions[-len(ALL) :], strict=True):
        calls = since(before, counts, name)
        if name != "leaps":  # what longjmp has left is no call that came back
            assert (now.count - then.count, now.nmissed - then.nmissed) == (calls["calls"], 0), name
    assert len(holdings.banks) < CYCLES / 3
    assert len(holdings.code_regions) < CYCLES / 3
