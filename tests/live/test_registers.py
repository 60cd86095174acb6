"""Acceptance: all registers, flags, x87, MXCSR, vector and mask state and the red zone survive probes."""

import pytest

import anyprobe
from live.results import hits, refusals
from live.situations import REGISTERS


@pytest.mark.parametrize("mode", ["entry", "return", "both", "time"])
def test_state_is_equal(run_target, mode):
    """The program compares the whole state behind each probed function with that behind an unprobed copy."""
    target = run_target(REGISTERS.source, "abi")
    functions = [f for f in REGISTERS.functions if f in target.go(1).calls]
    before = dict(target.counts.calls)
    specs = [f"a.out:{f}" for f in functions]
    with anyprobe.attach(target.pid) as session:
        if mode == "time":
            session.time(*specs)
        else:
            session.count(*(specs if mode != "return" else ()), *(f"{s}%return" for s in specs if mode != "entry"))
        assert refusals(session.refused) == {}
        counts = target.go(REGISTERS.rounds)
        if mode in ("entry", "both"):
            snapshot = session.snapshot()
            assert {f: hits(snapshot, f) for f in functions} == {f: counts.calls[f] - before[f] for f in functions}
    target.go(10)
    target.finish()


@pytest.mark.parametrize("strategy", ["jump", "punned"])
def test_state_is_equal_by_demanded_strategy(run_target, strategy):
    """The same with one strategy demanded; sites that cannot have it are refused and the rest holds."""
    target = run_target(REGISTERS.source, "abi")
    with anyprobe.attach(target.pid, strategy=strategy) as session:
        session.count(*(f"a.out:{f}" for f in REGISTERS.functions), *(f"a.out:{f}%return" for f in REGISTERS.functions))
        target.go(REGISTERS.rounds)
    target.finish()
