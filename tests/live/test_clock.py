"""Timing by the vdso's clock: it agrees with the TSC, disturbs nothing, and can be taken out at any moment."""

import statistics
import time

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from anyprobe.probes import clock
from support.driver import wait_until
from support.results import refusals, timing
from support.situations import REGISTERS

ROUNDS = 50


def naps(target, which):
    with anyprobe.attach(target.pid, clock=which) as session:
        session.time("a.out:nap", "a.out:nothing", "a.out:reads_clock")
        assert refusals(session.refused) == {}
        target.go(ROUNDS)
        snapshot = session.snapshot()
        assert timing(snapshot, "nothing").count == 100 * ROUNDS
        assert timing(snapshot, "reads_clock").count == ROUNDS
        return timing(snapshot, "nap"), timing(snapshot, "nothing")


def test_it_agrees_with_the_tsc(run_target):
    target = run_target("naps.c")
    slow = {}

    def agree():
        """Whether the shortest naps of both are alike; on a busy machine a nap may be long."""
        for which in ("tsc", "monotonic"):
            nap, nothing = naps(target, which)
            assert nap.count == ROUNDS
            assert nap.min_ns >= 2_000_000 * 0.99
            assert nothing.sum_ns / nothing.count < 1_000_000
            slow[which] = min(nap.min_ns, slow.get(which, nap.min_ns))
        return statistics.mean(slow.values()) == pytest.approx(slow["tsc"], rel=0.1)

    wait_until(agree, "a nap of each is short")
    target.finish()


def test_registers_survive_it(run_target):
    """The program compares the whole state behind each probed function with that behind an unprobed copy."""
    target = run_target(REGISTERS.source)
    functions = [f for f in REGISTERS.functions if f in target.go(1).calls]
    with anyprobe.attach(target.pid, clock="monotonic") as session:
        session.time(*(f"a.out:{f}" for f in functions))
        target.go(max(REGISTERS.rounds, 128))
    target.go(10)
    target.finish()


@pytest.mark.parametrize("source", ["naps.c", "recursion.c", "timer_signals.c", "counts.c"])
def test_it_is_taken_out_while_threads_read_it(run_target, source):
    target = run_target(source)
    target.go(0)
    target.run_freely()
    for _ in range(15):
        with anyprobe.attach(target.pid, clock="monotonic") as session:
            session.time("a.out:*")
            target.check_alive()
    target.halt()
    target.go(1)
    target.finish()


def test_it_is_the_fallback(run_target, monkeypatch):
    from anyprobe.core.refusal import Refusal

    monkeypatch.setattr(clock, "tsc_refusal", lambda: Refusal(Reason.NO_INVARIANT_TSC, 0, "uneven"))
    target = run_target("naps.c")
    nap, _ = naps(target, "auto")
    assert nap.min_ns >= 2_000_000 * 0.99
    target.finish()


def test_code_that_it_runs_is_not_probed_with_it(run_target):
    target = run_target("naps.c")
    with anyprobe.attach(target.pid, clock="monotonic") as session:
        session.time("a.out:nap")
        session.count("vdso:__vdso_clock_gettime")
        assert {why.reason for _, why in session.refused} == {Reason.OWN_CLOCK}
        target.go(1)
    with anyprobe.attach(target.pid, clock="monotonic") as session:
        session.count("vdso:__vdso_clock_gettime")
        session.time("a.out:nap")
        assert {why.reason for _, why in session.refused} <= {Reason.OWN_CLOCK}
        assert session.snapshot().functions == ()
        target.go(1)
    target.finish()


@pytest.mark.parametrize("which", ["auto", "tsc", "monotonic"])
def test_a_program_that_may_not_read_the_counter_is_counted_and_not_timed(run_target, which):
    target = run_target("no_timestamps.c")
    before = target.go(1).calls["work"]
    with anyprobe.attach(target.pid, clock=which) as session:
        session.time("a.out:work")
        assert [why.reason for _, why in session.refused] == [Reason.TSC_FORBIDDEN]
        (probe,) = session.count("a.out:work")
        counts = target.go(20)
        assert [site.hits for site in session.snapshot().sites] == [counts.calls["work"] - before]
        assert probe.armed
    target.go(1)
    target.finish()


@pytest.mark.parametrize("which", ["tsc", "monotonic"])
@pytest.mark.parametrize("options", [{}, {"self_time": True}, {"call_tree": True}])
def test_calls_do_not_take_the_time_that_a_started_program_waits_for_its_probes(monkeypatch, which, options):
    """It is held in the C library's beginning, where the loader has chosen functions, until these are in place."""
    from anyprobe.probes.providers.function.handlers.handler_watch import HandlerWatch

    place = HandlerWatch.place_gate
    monkeypatch.setattr(HandlerWatch, "place_gate", lambda self: (time.sleep(2), place(self)))
    with anyprobe.run(["/bin/true"], clock=which, **options) as session:
        session.time("libc:getrlimit", "libc:__libc_early_init", "libc:str*")
        session.resume()
        assert session.wait(180) == 0
        snapshot = session.snapshot()
    held = timing(snapshot, "getrlimit")
    assert (held.count, held.nmissed, held.unmatched) == (1, 0, 0)
    assert 0 < held.max_ns < 1_000_000_000
