"""Which clock timing probes read."""

import os
from itertools import count
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import UsageError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes import clock
from anyprobe.probes.clock import ClockChoice, NanosecondClock, TickClock

BASE = 0x7FFF_0000_0000
UNEVEN = Refusal(Reason.NO_INVARIANT_TSC, 0, "uneven")


class Functions:
    def lookup(self, name):
        return [SimpleNamespace(start=0x650)] if name == "__vdso_clock_gettime" else []


VDSO = SimpleNamespace(name="[vdso]", image=SimpleNamespace(functions=Functions()), runtime=lambda at: BASE + at)
LIBC = SimpleNamespace(name="libc.so.6", image=SimpleNamespace(functions=Functions()), runtime=lambda at: at)


@pytest.fixture
def even(monkeypatch):
    def choose(answer):
        monkeypatch.setattr(clock, "tsc_refusal", lambda: answer)

    choose(None)
    return choose


def test_the_tsc_where_it_ticks_evenly(even):
    choice = ClockChoice("auto", os.getpid())
    assert choice.choose([LIBC, VDSO], probed=False) is None
    assert choice.address == 0
    assert isinstance(choice.start(), TickClock)


def test_the_vdso_where_it_does_not(even):
    even(UNEVEN)
    choice = ClockChoice("auto", os.getpid())
    assert choice.choose([LIBC, VDSO], probed=False) is None
    assert choice.address == BASE + 0x650
    assert isinstance(choice.start(), NanosecondClock)
    assert choice.start().ns_per_tick() == 1.0


def test_each_on_demand(even):
    assert ClockChoice("monotonic", os.getpid()).choose([VDSO], probed=False) is None
    even(UNEVEN)
    assert ClockChoice("tsc", os.getpid()).choose([VDSO], probed=False) is UNEVEN
    with pytest.raises(UsageError, match="sundial"):
        ClockChoice("sundial", os.getpid())


def test_no_vdso_no_clock(even):
    refusal = ClockChoice("monotonic", os.getpid()).choose([LIBC], probed=False)
    assert refusal.reason is Reason.NO_INVARIANT_TSC
    assert "no vdso" in refusal.detail


@pytest.mark.parametrize(("source", "refused"), [("hpet", True), ("tsc", False), ("unknown", True)])
def test_a_system_call_under_a_filter_is_not_risked(even, monkeypatch, source, refused):
    monkeypatch.setattr(clock, "clock_source", lambda: source)
    monkeypatch.setattr(clock.procfs, "read_status", lambda pid: {"Seccomp": "2"})
    refusal = ClockChoice("monotonic", os.getpid()).choose([VDSO], probed=False)
    assert (refusal is not None) == refused


def test_probed_code_cannot_be_the_clock(even):
    refusal = ClockChoice("monotonic", os.getpid()).choose([VDSO], probed=True)
    assert refusal.reason is Reason.OWN_CLOCK
    assert ClockChoice("tsc", os.getpid()).choose([VDSO], probed=True) is None


@pytest.mark.parametrize(("step", "cost"), [(1, 31), (20, 27), (2, 25), (36, 7), (1, 0)])
def test_the_step_of_a_counter_is_what_all_readings_are_apart_by(monkeypatch, step, cost):
    readings = (1_000_007 + (number * cost + number % 5) * step for number in count())
    monkeypatch.setattr(clock, "_rdtsc", lambda: lambda: next(readings))
    assert clock._step_of_ticks.__wrapped__() == step


def test_the_step_of_a_clock_that_is_read_in_between(monkeypatch):
    readings = (number // 3 * 279 for number in count())
    monkeypatch.setattr(clock.time, "monotonic_ns", lambda: next(readings))
    assert clock._step_of_monotonic.__wrapped__() == 279.0


def test_clocks_know_their_steps(monkeypatch):
    monkeypatch.setattr(clock, "_step_of_ticks", lambda: 20)
    monkeypatch.setattr(clock, "step_of_handlers", clock.step_of_handlers.__wrapped__)  # which would keep what it made
    ticks = clock.TickClock()
    assert ticks.step_ns() == pytest.approx(20 * ticks.ns_per_tick(), rel=0.05)
    assert clock.NanosecondClock().step_ns() >= 1.0
