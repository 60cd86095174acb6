"""Threads whose stacks of open calls become full: what makes room there changes nothing of what is told."""

import pytest

import anyprobe
from anyprobe.data.findings.calltree import by_caller
from support.results import timing

FUNCTIONS = ("round_of", "starts", "resumes", "body", "leaf", "deep", "after")


KINDS = ("self", "self"), ("outermost", "all")
"""What is told, and the program's record of the same."""


def shares(nested, field):
    """Return what part of all time each function has."""
    whole = sum(each.self_ns for each in nested.values())
    return {f"{name} {field}": getattr(each, field) / whole for name, each in nested.items()}


@pytest.mark.parametrize(
    ("coroutines", "room", "tree", "linked"),
    [(40, 128, True, ()), (40, 128, True, ("linked",)), (40, 4096, True, ()), (700, 2048, False, ())],
)
def test_calls_of_coroutines_stay_what_they_are_when_others_are_dropped(run_target, coroutines, room, tree, linked):
    """Each waits in a call while others begin and end, so the stack is full of what is over, again and again."""
    target = run_target("full_tables.c", str(coroutines), "0", *linked, options=("-O2",))
    # raw: what probes take, to find a stack among hundreds for one, is in the program's own record
    measured = {"maxactive": room, "self_time": True, "call_tree": tree, "raw": True}
    named = FUNCTIONS[:5] + FUNCTIONS[6:]
    for last in (False, False, False, False, True):
        start = dict(target.counts.calls)
        with anyprobe.attach(target.pid, **measured) as session:
            session.time(*(f"a.out:{name}" for name in named))
            assert not session.refused
            counts = {name: calls - start.get(name, 0) for name, calls in target.go(10).calls.items()}
            snapshot = session.snapshot()
        for name in named:
            found = timing(snapshot, name)
            lost = found.nmissed, found.unmatched, found.left, found.in_flight
            assert (found.count, *lost) == (counts[name], 0, 0, 0, 0)
            assert found.nested.self_ns <= found.sum_ns * (1 + 1e-9)
        nested = {name: timing(snapshot, name).nested for name in named}
        own, roots = sum(each.self_ns for each in nested.values()), sum(each.root_ns for each in nested.values())
        assert own == pytest.approx(roots, rel=1e-9)
        # who is kept from running between the two clocks' looks waits in another function for each
        told = shares(nested, "self_ns") | shares(nested, "outermost_ns")
        ticks = sum(counts[f"{name}_self"] for name in named)
        wanted = {f"{name} {kind}_ns": counts[f"{name}_{of}"] / ticks for kind, of in KINDS for name in named}
        wanted = pytest.approx(wanted, abs=0.03)
        if last or told == wanted:
            assert told == wanted
            break
    if tree:  # on each stack
        each = 10 * coroutines
        assert {(each.caller, each.function): each.count for each in by_caller(snapshot.tree)} == {
            ("", "round_of"): 10, ("round_of", "starts"): each, ("round_of", "resumes"): 2 * each, ("", "body"): each,
            ("body", "leaf"): 2 * each, ("resumes", "leaf"): 2 * each, ("", "after"): 200, ("after", "leaf"): 200,
        }  # fmt: skip
    target.finish()


@pytest.mark.parametrize("coroutines", [0, 25])
def test_what_longjmp_has_left_of_a_recursion_keeps_no_place(run_target, coroutines):
    """Deeper than there is room for: only calls that are too deep are missed, none of those that follow."""
    target = run_target("full_tables.c", str(coroutines), "100", options=("-O1",))
    with anyprobe.attach(target.pid, maxactive=64, self_time=True) as session:
        session.time(*(f"a.out:{name}" for name in FUNCTIONS))
        assert not session.refused
        target.go(1)
        counts = target.go(20).calls
        snapshot = session.snapshot()
    for name in FUNCTIONS:
        found = timing(snapshot, name)
        told = name, found, counts[name]
        assert (found.unmatched, found.tail_exits, found.in_flight) == (0, 0, 0), told
        if name == "deep":
            assert (found.count, found.left, found.nmissed) == (0, 21 * 64, 21 * (101 - 64)), told
        else:
            assert (found.count, found.left, found.nmissed) == (counts[name], 0, 0), told
    nested = [each.nested for each in snapshot.functions]
    assert sum(each.self_ns for each in nested) == pytest.approx(sum(each.root_ns for each in nested), rel=1e-9)
    target.finish()


def test_calls_that_nobody_sees_left_behind_hide_no_later_ones(run_target):
    """__builtin_longjmp calls no function: what it has left is told from calls that go on by where the stack is."""
    target = run_target("unseen_jumps.c", options=("-O1",))
    with anyprobe.attach(target.pid, self_time=True) as session:
        session.time("a.out:work")
        counts = target.go(30).calls
        found = timing(session.snapshot(), "work")
    assert found.count == counts["work"] == 600
    assert found.nested.outermost_ns == pytest.approx(found.nested.self_ns, rel=1e-9)
    target.finish()
