"""Go functions that end in jumps to others, as methods' wrappers do: their calls last until those return."""

import pytest

import anyprobe
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.findings.calltree import by_caller
from anyprobe.splice import planning
from anyprobe.splice.codegen.patch import ActionKind
from support.learning import copied
from support.results import timing

pytestmark = pytest.mark.live

DERIVED, FURTHER, BASE = (f"main.(*{name}).Do" for name in ("Derived", "Further", "Base"))
OF_ALL = 4 / 5
"""One call in five panics."""


@pytest.fixture(
    params=[(), ("-buildmode=pie",), ("-ldflags=-s -w",)], ids=["plain", "position independent", "stripped"]
)
def target(request, run_target):
    return run_target("go_wrappers.go", options=request.param)


def rounds(target, session):
    """Return what was called while the program ran some rounds, and what was timed."""
    before = copied(target.counts)
    after = target.go(3)
    snapshot = session.snapshot()
    return {name: after.calls[name] - before.calls.get(name, 0) for name in after.calls}, snapshot


@pytest.mark.parametrize("names", [(DERIVED,), (FURTHER, DERIVED), (BASE, DERIVED, FURTHER), (DERIVED, BASE)])
@pytest.mark.parametrize("options", [{}, {"call_tree": True}])
def test_calls_of_wrappers_end_where_the_method_returns(target, names, options):
    """Whether that is timed, too, and whatever was placed first."""
    target.go(1)
    with anyprobe.attach(target.pid, **options) as session:
        for name in names:
            session.time(f"a.out:{name}")
        assert not session.refused
        own, snapshot = rounds(target, session)
    calls = {DERIVED: own["derived"], FURTHER: own["further"], BASE: own["base"]}
    for name in names:
        found = timing(snapshot, name)
        told = name, calls[name], found.count, found.left, found.in_flight
        assert found.count == calls[name] * OF_ALL, told
        assert found.left + found.in_flight == calls[name] / 5, told
        assert found.tail_exits == found.unmatched == found.nmissed == 0, told
        assert found.max_ns > 1e6, told  # some have waited for so long
    if BASE in names:
        waited = timing(snapshot, BASE).sum_ns
        assert own["waited"] * 0.5 < waited
        within = sum(timing(snapshot, name).sum_ns for name in names if name != BASE)
        assert 0 < within < waited * 1.05
    if options:
        nested = [each.nested for each in snapshot.functions]
        own_ns, roots = sum(each.self_ns for each in nested), sum(each.root_ns for each in nested)
        assert own_ns == pytest.approx(roots, rel=1e-9, abs=1e-3)
        pairs = {(each.caller, each.function): each.count for each in by_caller(snapshot.tree)}
        if BASE in names:
            assert {caller: count for (caller, function), count in pairs.items() if function == BASE} == {
                name: count * OF_ALL
                for name, count in {**{each: calls[each] for each in names if each != BASE}, "": 0}.items()
            } | {"": (calls[BASE] - sum(calls[each] for each in names if each != BASE)) * OF_ALL}
    target.go(1)
    target.finish()


def test_calls_that_are_under_way_when_a_wrapper_is_no_longer_timed(target):
    with anyprobe.attach(target.pid) as session:
        (whole,) = session.time(f"a.out:{BASE}")
        for _ in range(3):
            (probe,) = session.time(f"a.out:{DERIVED}")
            own, _ = rounds(target, session)
            session.remove(probe)
        assert own["derived"] > 0
        own, snapshot = rounds(target, session)
        found = timing(snapshot, BASE)
        assert found.unmatched == 0
        assert whole.armed
    target.go(1)
    target.finish()


@pytest.mark.parametrize("kind", [ActionKind.LEAVE_CALLER, ActionKind.ARRIVE])
def test_where_a_method_s_return_cannot_be_spliced_calls_are_tail_exits(target, monkeypatch, kind):
    original = planning._without_slots

    def refusing(edit, want, hook, calls):
        if hook.kind is kind:
            return Refusal(Reason.TOO_SHORT, want.address, "not here")
        return original(edit, want, hook, calls)

    monkeypatch.setattr(planning, "_without_slots", refusing)
    target.go(1)
    with anyprobe.attach(target.pid) as session:
        session.time(f"a.out:{DERIVED}", f"a.out:{BASE}")
        own, snapshot = rounds(target, session)
    found, base = timing(snapshot, DERIVED), timing(snapshot, BASE)
    assert (found.count, found.tail_exits, found.in_flight) == (0, own["derived"], 0)
    assert base.count == own["base"] * OF_ALL
    target.go(1)
    target.finish()
