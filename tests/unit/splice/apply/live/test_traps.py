"""For how long a moment is waited for in which an int3 may stand."""

from types import SimpleNamespace

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.splice.apply.live import traps as livetraps

TID = 7


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(livetraps, "time", made)
    return made


def process(state, monkeypatch, clock, *, until):
    """A process with one thread in ``state``, which has SIGTRAP blocked until some time."""
    monkeypatch.setattr(livetraps, "blocked_now", lambda _: TID if clock.now < until else 0)
    monkeypatch.setattr(livetraps.procfs, "read_stat", lambda *_: SimpleNamespace(running=state == "R"))
    return SimpleNamespace(pid=1, relatives=SimpleNamespace(find=list))


@pytest.mark.parametrize(
    ("state", "until", "taken"),
    [("R", 0.5, False), ("S", 0.02, False), ("S", 0.5, True), ("R", 5.0, True), ("R", 0.0, False)],
)
def test_who_runs_is_waited_for_longer(monkeypatch, clock, state, until, taken):
    """It has signals blocked for a moment of its own time: on a busy machine that is long."""
    why = livetraps.disturbed(process(state, monkeypatch, clock, until=until), 0x1000)
    assert (why is not None) == taken
    if why is not None:
        assert why.reason is Reason.TRAP_UNSAFE
        assert f"thread {TID} has SIGTRAP blocked" in why.detail
    assert clock.now < 1.1
