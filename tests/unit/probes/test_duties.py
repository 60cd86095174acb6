"""What is due is done when it is due, and what fails is tried again."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import TargetError
from anyprobe.probes import duties as module
from anyprobe.probes.duties import HANDLER_LOOKS, Duties, duties_of
from anyprobe.probes.scripts.hooks import Hooks


@pytest.fixture
def clock(monkeypatch):
    """Return the time, which goes on only as a test says."""
    clock = SimpleNamespace(now=100.0)
    time = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr("anyprobe.probes.scripts.hooks.time", time)
    return clock


def test_each_is_done_when_it_is_due(clock):
    done, duties = [], Duties()
    duties.every(1.0, lambda: done.append("first"))
    duties.every(0.3, lambda: done.append("second"), first=0.3)
    assert duties.next_moment() == 100.0
    assert duties.work() == 100.3
    assert done == ["first"]
    clock.now = 100.31
    assert duties.work() == pytest.approx(100.61)
    assert done == ["first", "second"]


def test_the_steady_do_not_drift(clock):
    duties = Duties()
    duties.every(1.0, lambda: None, first=1.0, steady=True)
    clock.now = 101.4
    assert duties.work() == 102.0


def test_what_fails_is_tried_again_at_its_next_moment(clock):
    tries, duties = [], Duties()

    def fail():
        tries.append(clock.now)
        raise TargetError("not now")

    duties.every(0.5, fail)
    with pytest.raises(TargetError):
        duties.work()
    assert duties.work() == 100.5
    assert tries == [100.0]


def test_nothing_is_due_where_there_is_nothing():
    assert Duties().work() is None
    assert Duties().next_moment() is None


def test_sessions_need_their_intervals_and_their_signal_handlers(clock):
    class Session:
        def __init__(self):
            self.hooks, self.looks, self.learnt = Hooks(), 0, 0

        def follow_handlers(self, *, often=False):
            assert often
            self.looks += 1

        def learn_return_points(self):
            self.learnt += 1

        def look_at_memory(self):
            """No memory is served by the program here."""

        def take_out_hit(self):
            """Nothing is covered here."""

    sessions = [Session(), Session()]
    called = []
    sessions[1].hooks.add_interval(lambda: called.append(clock.now), 0.01)
    duties = duties_of(sessions)
    assert duties.work() == 100.01
    clock.now = 100.011
    duties.work()
    assert ([each.looks for each in sessions], called) == ([1, 0], [100.011])
    for number, looks in enumerate(([1, 1], [2, 1], [2, 2]), 1):  # one after the other
        clock.now = 100.0 + 2 * number * HANDLER_LOOKS
        duties.work()
        assert [each.looks for each in sessions] == looks
    assert [each.learnt for each in sessions] == [5, 5]
