"""Thousands of functions timed in dozens of threads, for each of which there is a block."""

import pytest

import anyprobe
from live.targets.many_functions import source

CASES = [
    pytest.param(100, 64, {}, id="a-hundred"),
    pytest.param(5000, 64, {}, id="five-thousand", marks=pytest.mark.torture),
    pytest.param(5000, 64, {"self_time": True}, id="five-thousand-self-times", marks=pytest.mark.torture),
]


@pytest.mark.parametrize(("functions", "threads", "options"), CASES)
def test_each_call_of_each_thread_is_timed(run_target, functions, threads, options):
    text = source(functions)
    target = run_target(f"many_functions_{functions}.c", "0", str(threads), text=text, options=("-O1", "-pthread"))
    with anyprobe.attach(target.pid, **options) as session:
        session.time("a.out:busy_*")
        refused = len(session.refused)  # where bytes cross a page, which depends on where the program lies
        assert refused <= functions // 100
        calls = target.go(2, patience=500).calls["passes"]
        assert calls == 2 * threads
        found = session.snapshot().functions
        assert len(found) == functions - refused
        assert {(each.count, each.nmissed, each.in_flight) for each in found} == {(calls, 0, 0)}
    target.finish()
