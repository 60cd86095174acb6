"""What probes take is in no time that is shown: against what the same program takes without probes."""

import json
import subprocess
import sys

import pytest

import anyprobe
from support.results import timing

NAMES = ("tiny", "many", "alone", "fib")
ROUNDS, TRIES = 4, 40


def timed(target, **options):
    with anyprobe.attach(target.pid, self_time=True, **options) as session:
        session.time(*(f"a.out:{name}" for name in NAMES))
        assert not session.refused
        target.go(ROUNDS)
        return session.snapshot()


def test_totals_are_those_without_probes(run_target):
    """On a busy machine threads wait for a processor in the middle of a round, so the quickest of many counts."""
    target, whole = run_target("tiny_calls.c", options=("-O2",)), ("many", "alone", "fib")
    true, then = dict.fromkeys(whole, float("inf")), dict(target.go(1).calls)
    for _ in range(TRIES):
        now = dict(target.go(ROUNDS).calls)
        true = {name: min(true[name], now[f"{name}_ns"] - then[f"{name}_ns"]) for name in whole}
        then = now
    quickest = {}
    with anyprobe.attach(target.pid, self_time=True) as session:
        session.time(*(f"a.out:{name}" for name in NAMES))
        before = session.snapshot()
        for _ in range(TRIES):
            target.go(ROUNDS)
            after = session.snapshot()
            for name in whole:
                one, other = timing(after, name), timing(before, name)
                ns = one.nested.outermost_ns - other.nested.outermost_ns
                taken = one.taken.plus(other.taken, -1) if other.taken else one.taken
                quickest.setdefault(name, []).append((ns + taken.outermost_ns, ns, taken.outermost_error_ns))
            before = after
    for name in whole:
        measured, ns, error = min(quickest[name])
        told = name, measured, ns, error, true[name]
        assert abs(ns - true[name]) < max(2 * error + 0.2 * true[name], (measured - true[name]) / 3), told
        assert name == "alone" or measured > 3 * true[name], told
    target.finish()


@pytest.mark.parametrize("self_time", [True, False])
def test_what_takes_long_where_many_calls_are_open_is_subtracted(run_target, self_time):
    """Calls that there is no room for, and are looked for in vain; calls that all end at once."""
    target = run_target("open_calls.c", options=("-O2",))
    shares = {"outer_deep": [], "outer_chain": []}
    with anyprobe.attach(target.pid, self_time=self_time, maxactive=4096) as session:
        session.time(*(f"a.out:{name}" for name in ("deep", "is_even", "is_odd", *shares)))
        assert not session.refused
        target.go(1)
        session.pump(0.05)
        before = session.snapshot()
        for _ in range(TRIES):
            target.go(1)
            after = session.snapshot()
            for name, found in shares.items():
                one, other = timing(after, name), timing(before, name)
                ns, taken = one.sum_ns - other.sum_ns, one.taken.sum_ns - other.taken.sum_ns
                found.append(ns / (ns + taken))
            before = after
    # a thread may wait for a processor at any time, so one of many tells
    assert min(shares["outer_deep"]) < 0.2, shares
    assert min(shares["outer_chain"]) < 0.5, shares
    target.finish()


def test_the_cost_of_a_call_is_known_where_others_were_left_in_it(run_target):
    """That they were left is found out as it ends, once its own cost is known."""
    target = run_target("open_calls.c", options=("-O2",))
    with anyprobe.attach(target.pid, self_time=True) as session:
        session.time("a.out:caught", "a.out:inner")
        target.go(20)
        snapshot = session.snapshot()
    caught, inner = timing(snapshot, "caught"), timing(snapshot, "inner")
    assert (caught.count, inner.count) == (20, 2000)
    assert 0.9 * inner.taken.sum_ns < caught.taken.sum_ns < 5 * inner.taken.sum_ns
    assert caught.taken.error_ns > 0
    target.finish()


def test_what_was_measured_is_in_the_document(run_target):
    target = run_target("tiny_calls.c", options=("-O2",))
    snapshot = timed(target)
    document = snapshot.as_json()
    assert 0 < document["probe_share"] <= 1  # of calls as short as these nothing may be left on a busy machine
    assert {"waited", "stolen"} <= document.keys()
    for each in document["functions"]:
        assert each["raw_sum_ns"] > each["sum_ns"]
        assert each["raw_self_ns"] > each["self_ns"]
        assert min(each["error_ns"], each["self_error_ns"], each["outermost_error_ns"]) > 0
    many, tiny = timing(snapshot, "many"), timing(snapshot, "tiny")
    assert many.taken.sum_ns > tiny.count * 5  # of each call that it makes
    assert many.taken.sum_ns == pytest.approx(many.taken.self_ns + tiny.taken.sum_ns, rel=0.1)
    assert timing(snapshot, "alone").taken.sum_ns < many.taken.sum_ns / 100
    own, roots = (sum(getattr(each.nested, name) for each in snapshot.functions) for name in ("self_ns", "root_ns"))
    assert own == pytest.approx(roots, rel=1e-9, abs=1)
    target.finish()


def test_times_may_be_left_as_they_are_measured(run_target):
    target = run_target("tiny_calls.c", options=("-O2",))
    raw, snapshot = timed(target, raw=True), timed(target)
    assert timing(raw, "many").taken is None
    assert raw.probe_share is None
    assert not any("what probes take" in each for each in raw.warnings)
    assert timing(raw, "tiny").p50_ns > 2 * timing(snapshot, "tiny").p50_ns
    target.finish()


@pytest.mark.parametrize("raw", [False, True])
def test_the_heading_says_what_probes_took(compiled, tmp_path, raw):
    program, results = compiled("tiny_calls.c", "-O2"), tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "time", "--self", *["--raw"] * raw, "-o", results]
    specs = [f"a.out:{name}" for name in NAMES]
    done = subprocess.run(
        [*command, *specs, "--", program], input="go 5\nend\n", capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    text = results.read_text()
    assert ("probes took" in text.splitlines()[0]) is not raw


def test_by_the_vdso_s_clock_it_is_not_known(run_target):
    target = run_target("tiny_calls.c", options=("-O2",))
    snapshot = timed(target, clock="monotonic")
    assert timing(snapshot, "many").taken is None
    assert any("what probes take is in the times of" in each for each in snapshot.warnings)
    document = json.loads(json.dumps(snapshot.as_json()))
    assert document["probe_share"] is None
    assert "error_ns" not in document["functions"][0]
    target.finish()
