"""Calls of Go functions, timed by goroutine, against the program's own record of them."""

import os
from collections import Counter

import pytest

import anyprobe
from anyprobe import ptr, u64
from anyprobe.data.findings.calltree import by_caller
from support.driver import MissingTool, Target, build
from support.learning import copied
from support.results import counts, timing

pytestmark = pytest.mark.timeout(1200)  # a busy machine takes minutes to plan all of a Go program
FUNCTIONS = ("Block", "Grow", "Spin", "Risky", "Safe", "Quit", "Inner", "Outer")
SPECS = [f"a.out:main.{name}" for name in FUNCTIONS]
LEAVING = ("Quit", "Inner")
"""They never return: each call ends its goroutine."""

BEFORE_A_GOROUTINE = {"runtime.sigtrampgo", "runtime.sigfwdgo", "runtime.sigFetchG"}
"""What the runtime's signal handlers call on their stack with the goroutine of what they have interrupted."""


def built(source, *options):
    try:
        return str(build(source, *options))
    except MissingTool as missing:
        pytest.skip(f"{missing} is not installed")


def started(*arguments, options=(), **environment):
    return Target([built("go_calls.go", *options), *map(str, arguments)], env=dict(os.environ, **environment))


def added(before, after, field):
    return Counter({name: getattr(after, field)[name] - getattr(before, field).get(name, 0)
                    for name in getattr(after, field)})  # fmt: skip


def checked(snapshot, calls, returns):
    """Compare what was timed with the program's own record; goroutines that have ended may be seen as running."""
    for name in FUNCTIONS:
        found, own = timing(snapshot, f"main.{name}"), f"main.{name}"
        told = name, found.count, returns[own], calls[own], found.left, found.in_flight
        assert found.count == returns[own], told
        assert sum(count for *_, count in found.buckets) == returns[own], told
        assert found.nmissed == found.unmatched == found.tail_exits == found.learning == 0, told
        assert found.left + found.in_flight == calls[own] - returns[own], told
        assert name in LEAVING or found.in_flight == 0, told


def checked_tree(snapshot, returns):
    """Compare who called which of the timed functions with what the program's text says."""
    by_function, pairs = Counter(), Counter()
    for each in by_caller(snapshot.tree):
        by_function[each.function] += each.count
        pairs[each.caller.removeprefix("main."), each.function.removeprefix("main.")] += each.count
    for name in FUNCTIONS:
        assert by_function[f"main.{name}"] == returns[f"main.{name}"], name
    own = {name: returns[f"main.{name}"] for name in FUNCTIONS}
    expected = {
        ("", "Block"): own["Block"], ("", "Safe"): own["Safe"], ("", "Outer"): own["Outer"],
        ("Safe", "Risky"): own["Risky"], ("Risky", "Grow"): own["Risky"],
        ("Outer", "Spin"): own["Outer"], ("", "Spin"): own["Spin"] - own["Outer"],
    }  # fmt: skip
    grown = {("", "Grow"), ("Grow", "Grow")}
    assert {pair: count for pair, count in pairs.items() if pair not in grown} == expected
    assert sum(pairs[pair] for pair in grown) == own["Grow"] - own["Risky"]
    assert sum(node.sum_ns for node in snapshot.tree) == pytest.approx(
        sum(each.nested.root_ns for each in snapshot.functions), rel=0.02
    )  # those that were left behind are in no node


STRESS = [
    pytest.param((), {}, False, id="plain"),
    pytest.param((), {"GOGC": "1"}, True, id="always collecting"),
    pytest.param((), {"GODEBUG": "gcstoptheworld=1", "GOGC": "20"}, True, id="stopping the world"),
    pytest.param((), {"GODEBUG": "asyncpreemptoff=1", "GOMAXPROCS": "1"}, False, id="one processor"),
    pytest.param(("-race",), {"CGO_ENABLED": "1"}, True, id="race detector"),
    pytest.param(("-gcflags=-N -l",), {}, False, id="not optimised"),
    pytest.param(("-buildmode=pie",), {}, True, id="position independent"),
    pytest.param(("-ldflags=-s -w",), {}, False, id="stripped"),
]


@pytest.mark.parametrize(("options", "environment", "tree"), STRESS)
def test_every_call_is_timed_once(options, environment, tree):
    """Goroutines that block, migrate, grow their stacks, panic, recover and exit: each call has one time."""
    target = started(40, 24, options=options, **environment)
    try:
        before = copied(target.go(1))
        with anyprobe.attach(target.pid, call_tree=tree) as session:
            session.time(*SPECS[:5], SPECS[7])
            session.time(*SPECS[5:7])
            assert not session.refused
            after = target.go(2)
            snapshot = session.snapshot()
        calls, returns = added(before, after, "calls"), added(before, after, "returns")
        checked(snapshot, calls, returns)
        blocked = timing(snapshot, "main.Block").sum_ns
        assert 0.5 * calls["blocked"] < blocked <= 1.02 * calls["blocked"]
        if tree:
            checked_tree(snapshot, returns)
            nested = [each.nested for each in snapshot.functions]
            own, roots = sum(each.self_ns for each in nested), sum(each.root_ns for each in nested)
            assert own == pytest.approx(roots, rel=1e-9, abs=1e-3)
        target.go(1)
        target.finish()
    finally:
        target.close()


def test_calls_of_everything_while_it_comes_and_goes():
    """All of a program and its runtime is timed again and again; the program's results stay right, and none is lost."""
    target = started(20, 12)
    try:
        for _ in range(3):
            before = copied(target.go(1))
            with anyprobe.attach(target.pid, self_time=True) as session:
                session.time("a.out:*")
                after = target.go(2)
                snapshot = session.snapshot()
                calls, returns = added(before, after, "calls"), added(before, after, "returns")
                checked(snapshot, calls, returns)
                missed = {each.function for each in snapshot.functions if each.nmissed}
                assert missed <= BEFORE_A_GOROUTINE
        target.go(1)
        target.finish()
    finally:
        target.close()


@pytest.mark.parametrize(("options", "environment"), [each.values[:2] for each in STRESS], ids=[e.id for e in STRESS])
def test_what_a_call_s_entry_keeps_its_return_finds(options, environment):
    """Whatever the goroutine does in between, and however often its stack has been moved."""
    target = started(30, 18, options=options, **environment)
    begun, ended, wrong = anyprobe.Count("begun"), anyprobe.Count("ended"), anyprobe.Count("wrong")
    names = ("Block", "Grow", "Spin", "Risky", "Safe", "Outer")
    try:
        before = copied(target.go(1))
        with anyprobe.attach(target.pid) as session:

            @session.call(*(f"a.out:main.{name}" for name in names))
            def on_call(ctx):
                begun.add(key=ctx.func)
                ctx.data.func = ctx.func
                ctx.data.goroutine = u64(ctx.regs.r14)
                ctx.data.distance = ptr[u64](ctx.regs.r14)[1] - ctx.regs.rsp

            @on_call.ret
            def on_return(ctx):
                key = ctx.data.func
                ended[key].add()
                distance = ptr[u64](ctx.regs.r14)[1] - ctx.regs.rsp
                if ctx.data.goroutine != u64(ctx.regs.r14) or distance != ctx.data.distance:
                    wrong.add()

            assert not session.refused
            after = target.go(1)
            assert session.handling.misses() == {"fault": 0, "abandoned": 0, "division": 0}
            found = [{key[0].rpartition(".")[2]: number for key, number in counts(each).items()}
                     for each in (begun, ended)]  # fmt: skip
            assert not counts(wrong)
        calls, returns = added(before, after, "calls"), added(before, after, "returns")
        assert found == [{name: account[f"main.{name}"] for name in names} for account in (calls, returns)]
        target.go(1)
        target.finish()
    finally:
        target.close()


@pytest.mark.parametrize("many", [50_000, pytest.param(1_000_000, marks=pytest.mark.torture)])
def test_very_many_goroutines_wait_in_calls(many):
    """All of them at once, and their stacks grow in the middle: none is missed."""
    target = Target([built("go_many.go"), str(many)])
    try:
        before = copied(target.go(1))
        with anyprobe.attach(target.pid) as session:
            session.time("a.out:main.Wait", "a.out:main.Grow")
            after = target.go(2, patience=300)
            snapshot = session.snapshot()
        for name in ("main.Wait", "main.Grow"):
            found = timing(snapshot, name)
            told = name, found.count, found.nmissed, found.left, found.in_flight
            assert found.count == after.calls[name] - before.calls[name], told
            assert found.nmissed == found.unmatched == found.left == found.in_flight == 0, told
        target.finish()
    finally:
        target.close()
