"""An edit on its way: a value for each stage, and the claims that go with it."""

import dataclasses
from types import SimpleNamespace

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import decode_range
from anyprobe.splice.apply.outcomes import give_up, settle
from anyprobe.splice.edits import Claiming, Edit, FunctionState, Module, Planned, joined
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import FunctionPlan, PlannedSplice, Pun, Strategy, Want, WantKind
from anyprobe.splice.planning import Planning

BASE = 0x1000
WHY = Refusal(Reason.OVERLAP, BASE, "for the test")


def splice_at(address):
    insns = tuple(decode_range(b"\x90" * 5, address))
    return PlannedSplice(Strategy.JUMP, address, insns, [], 5, address)


def live(planned):
    return EmittedSplice(planned, 0, planned.write_at, b"", b"", None)


class Taken(list):
    """The splices that have taken places for their springboards."""

    give_back = list.remove

    def take(self, splice):
        self.append(splice)
        return splice.springboard


@pytest.fixture
def edit(code_map):
    """A function with one armed splice, of which another one is wanted instead."""
    code, armed = code_map(BASE, b"\x90" * 64, [(0, 64)]), splice_at(BASE)
    state = FunctionState(code.function_at(BASE), [Want(BASE, WantKind.ENTRY)], [live(armed)])
    module = Module("", code, 0, 0, 0, claims=Claims().replaced((), [armed]))
    return Edit(module, state, [Want(BASE + 8, WantKind.OFFSET)])


def test_a_plan_that_is_given_up_leaves_everything_as_it_was(edit):
    was, other = edit.module.claims, splice_at(BASE + 8)
    edit.claim(Planned(edit.added, FunctionPlan([other])))
    assert (edit.plan.splices, [*edit.leaving], edit.given_up) == ([other], edit.state.splices, False)
    assert edit.module.claims == Claims().replaced((), [other])
    for _ in range(2):  # what fails while it is given up is given up again
        give_up(edit, WHY)
        assert (edit.given_up, edit.refusal, edit.wants, edit.plan.splices) == (True, WHY, edit.state.wants, ())
        assert edit.module.claims == was


def test_a_change_that_is_made_keeps_what_the_plan_claims(edit):
    other = splice_at(BASE + 8)
    edit.claim(Planned(edit.added, FunctionPlan([other])))
    settle(edit, FunctionChange(BASE, edit.leaving, (live(other),)), None)
    assert (edit.outcome is not None, edit.given_up, edit.refusal) == (True, False, None)
    assert [each.planned for each in edit.state.splices] == [other]
    assert edit.state.wants == edit.added
    assert edit.module.claims == Claims().replaced((), [other])


def test_what_stays_is_not_claimed_anew(edit):
    (armed,) = edit.state.splices
    edit.claim(Planned(edit.added, FunctionPlan([splice_at(BASE + 8)]), [armed]))
    assert not edit.leaving
    assert edit.module.claims == Claims().replaced((), [armed.planned, splice_at(BASE + 8)])


def test_plans_that_claim_together_tell_the_module_at_the_end(edit):
    was, first, second = edit.module.claims, splice_at(BASE + 8), splice_at(BASE + 16)
    beside = Edit(edit.module, FunctionState(edit.state.code), [Want(BASE + 16, WantKind.OFFSET)])
    with Claiming() as claiming:
        claiming.add(edit, Planned(edit.added, FunctionPlan([first])))
        claiming.add(beside, Planned(beside.added, FunctionPlan([second])))
        assert claiming.claims_of(edit.module) == Claims().replaced((), [first, second])
        assert edit.module.claims is was
    assert edit.module.claims == Claims().replaced((), [first, second])
    give_up(edit, WHY)
    assert edit.module.claims == Claims().replaced((), [edit.state.splices[0].planned, second])
    give_up(beside, WHY)
    assert edit.module.claims == was


def test_what_interrupts_plans_that_claim_together_leaves_everything_as_it_was(edit):
    was, places = edit.module.claims, Taken()
    was.places = places
    pun = dataclasses.replace(splice_at(BASE + 8), pun=Pun(0, 1, BASE))

    def interrupted():
        with Claiming() as claiming:
            claiming.add(edit, Planned(edit.added, FunctionPlan([pun])))
            assert places == [pun]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    give_up(edit, WHY)
    assert edit.module.claims is was
    assert (edit.plan.splices, [*edit.leaving], places) == ((), edit.state.splices, [])


def test_a_stage_is_replaced_never_changed(edit):
    with pytest.raises(dataclasses.FrozenInstanceError):
        edit.planned.wants = []
    change = FunctionChange(BASE, tuple(edit.state.splices))
    for emitted, name in ((change, "removed"), (change.removed[0], "borrowed")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(emitted, name, ())
    for name in ("wants", "plan", "staying", "given_up", "refusal"):
        with pytest.raises(AttributeError):
            setattr(edit, name, None)


def test_what_is_added_by_others_goes_with_the_edits_of_the_same_functions(edit, code_map):
    elsewhere = FunctionState(code_map(BASE, b"\x90" * 64, [(0, 64)]).function_at(BASE))
    same = Edit(edit.module, edit.state, [Want(BASE + 16, WantKind.OFFSET)])
    other = Edit(edit.module, elsewhere, [Want(BASE, WantKind.ENTRY)])
    found = joined([edit], [same, other])
    assert found == [edit, other]
    assert [each.address for each in edit.added] == [BASE + 8, BASE + 16]


def test_places_of_springboards_are_taken_by_all_plans_of_a_change(code_map):
    """The first plan may be made without a look at places, of which the claims of those after it are copies."""
    base = 0x400000
    bytes_ = bytes.fromhex("89 f8  c3  90  10 c0") + b"\x90" * 58  # mov eax, edi; ret | nop; adc al, al; nop; ...
    code = code_map(base, bytes_, [(0, 3), (3, 20), (20, 64)])
    gone = dataclasses.replace(splice_at(base + 20), wants=(Want(base + 20, WantKind.ENTRY),))
    ret = PlannedSplice(Strategy.TRAP, base + 2, tuple(decode_range(b"\xc3", base + 2)), (), 1, base + 2)
    module = Module("", code, 0, base, base + 0x1000, claims=Claims().replaced((), [gone, ret]))
    removal = Edit(module, FunctionState(code.function_at(base + 20), [*gone.wants], [live(gone)]))
    removal.removed += removal.state.wants
    addition = Edit(module, FunctionState(code.function_at(base), [Want(base + 2, WantKind.OFFSET)], [live(ret)]))
    addition.added.append(Want(base, WantKind.ENTRY))
    planning = Planning(SimpleNamespace(exited=lambda: False), allowed=frozenset({Strategy.PUNNED}), slots=False)
    planning.springboards.room = 100
    planning.plan_all([removal, addition], None)
    places = [each.springboard for each in addition.plan.splices]
    assert all(places)
    assert [planning.springboards.choose(place, 1) for place in places] == [None] * len(places)
