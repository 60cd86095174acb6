"""What is taken for too much, from made-up hits."""

from types import SimpleNamespace

import pytest

from anyprobe.probes import overhead
from anyprobe.probes.overhead import OverheadWatch
from anyprobe.splice.banks import Hook, TimingGroup
from anyprobe.splice.neighbourhood import NearBank
from anyprobe.splice.patchcode import ActionKind

SECOND = 1e9


class StandIn:
    """A probe that has cost what it is told."""

    def __init__(self, spec, *, armed=True):
        self.spec, self.armed, self.spent = spec, armed, 0.0


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(OverheadWatch, "spent_ns", lambda self, probe, values: probe.spent)
    return OverheadWatch(_since=100.0)


def test_only_what_exceeds_the_limit_is_named(watch):
    dear, cheap = StandIn("libc:malloc"), StandIn("libc:open")
    dear.spent, cheap.spent = 0.2 * SECOND, 0.01 * SECOND
    (excess,) = watch.look([dear, cheap], 5, now=102.0)
    assert excess.probe is dear
    assert excess.percent == pytest.approx(10)
    assert "libc:malloc" in str(excess)
    assert "10 %" in str(excess)


def test_each_look_sees_what_came_since_the_last(watch):
    probe = StandIn("libc:malloc")
    probe.spent = 0.01 * SECOND
    assert watch.look([probe], 5, now=101.0) == []
    probe.spent += 0.2 * SECOND
    assert [each.probe for each in watch.look([probe], 5, now=102.0)] == [probe]
    assert watch.look([probe], 5, now=103.0) == []


def test_what_is_out_already_is_left_alone(watch):
    probe = StandIn("libc:malloc", armed=False)
    probe.spent = SECOND
    assert watch.look([probe], 5, now=101.0) == []


class Values:
    def hits(self, hook):
        return 1000

    def reader(self, bank):
        return SimpleNamespace(record=lambda offset: SimpleNamespace(count=10, tail=20, missed=30))


def place(strategy="jump", bank="slots"):
    return SimpleNamespace(hook=Hook(ActionKind.COUNT, bank=bank, strategy=strategy))


def probe_of(*places, timed=()):
    return SimpleNamespace(places=places, timed=timed)


@pytest.mark.parametrize(
    ("strategy", "bank", "cost"),
    [
        ("jump", "slots", overhead.COUNT_NS),
        ("jump", NearBank(None, None, None), overhead.ATOMIC_COUNT_NS),
        ("trap", "slots", overhead.COUNT_NS + overhead.TRAP_NS),
    ],
)
def test_what_a_hit_costs_depends_on_how_it_is_counted(strategy, bank, cost):
    assert OverheadWatch().spent_ns(probe_of(place(strategy, bank)), Values()) == 1000 * cost


def test_what_is_not_placed_costs_nothing():
    assert OverheadWatch().spent_ns(probe_of(place(bank=None)), Values()) == 0


def test_calls_are_timed_at_one_price():
    timed = SimpleNamespace(group=TimingGroup("slots", 8), refusal=None, places=[place(), place()])
    assert OverheadWatch(timing_ns=7).spent_ns(probe_of(timed=[timed]), Values()) == 60 * 7
