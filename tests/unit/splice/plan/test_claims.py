"""Which bytes are spoken for: what a look at all of them at once says is what a look at each says."""

import contextlib
import dataclasses
import sys
from itertools import count
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyprobe.core.addressset import AddressSet
from anyprobe.core.errors import InternalError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import decode_range
from anyprobe.splice.edits import Edit, FunctionState, Module, Planned
from anyprobe.splice.emitted import EmittedSplice
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import PlanDraft, SpliceDraft
from anyprobe.splice.plan.splices import FunctionPlan, PlannedSplice, Pun, Strategy, Want, WantKind

BASE = 0x1000
some = st.sets(st.integers(BASE, BASE + 15), max_size=4)


def expected(claims, start, written, borrowed):
    for at in range(start, start + written):
        if at in claims.written:
            return Reason.OVERLAP, at
        if claims.borrowed[at]:
            return Reason.BORROWED_BYTES, at
        if at in claims.displaced or (at != start and at in claims.landings):
            return Reason.OVERLAP, at
    return next(
        ((Reason.OVERLAP, at) for at in range(start + written, start + written + borrowed) if at in claims.written),
        None,
    )


@settings(deadline=None)
@given(some, some, some, some, some, st.integers(0, 5), st.integers(0, 4))
def test_the_first_byte_that_is_taken_is_named(written, borrowed, given_back, displaced, landings, size, after):
    claims = Claims(AddressSet(written), displaced=AddressSet(displaced), landings=AddressSet(landings))
    for at in borrowed | given_back:
        claims.borrowed.add_range(at, at + 1)
    for at in given_back:
        claims.borrowed.discard_range(at, at + 1)
    found = claims.conflict(BASE + 4, size, after)
    assert (None if found is None else (found.reason, found.address)) == expected(claims, BASE + 4, size, after)


@settings(deadline=None)
@given(some, some)
def test_what_is_displaced_has_been_written_to_by_nobody(written, displaced):
    claims = Claims(AddressSet(written), displaced=AddressSet(displaced))
    insns = tuple(decode_range(b"\x90" * 9, BASE))
    found = claims.overwritten(PlannedSplice(Strategy.JUMP, BASE, insns, [], 5, BASE))
    taken = [at for at in range(BASE + 5, BASE + 9) if at in written or at in displaced]
    assert (None if found is None else found.address) == (taken[0] if taken else None)


HOST = PlannedSplice(Strategy.JUMP, BASE, tuple(decode_range(b"\x90" * 9, BASE)), [], 5, BASE)
PUN = PlannedSplice(
    Strategy.PUNNED, BASE + 16, tuple(decode_range(b"\x90", BASE + 16)), [], 1, BASE + 16, 4, Pun(0, 0, BASE + 0x100)
)


def short_on(host, kind=PlannedSplice):
    insns = tuple(decode_range(b"\x90", BASE + 32))
    return kind(
        Strategy.SHORT, BASE + 32, insns, [], 1, BASE + 32, 1,
        dead_springboard=BASE + 64, leans_on=(host,), pun=PUN.pun,
    )  # fmt: skip


def claimed(*splices):
    return Claims().replaced((), splices)


def test_a_trial_takes_nothing_whatever_ends_it():
    claims, places = claimed(HOST, PUN), Mock()
    short = short_on(HOST, SpliceDraft)
    with contextlib.suppress(KeyboardInterrupt), claims.trial([HOST, PUN]) as trial:
        trial.places = places
        assert trial.conflict(BASE + 17, 4, 0) is None
        trial.claim(short)
        raise KeyboardInterrupt
    assert claims == claimed(HOST, PUN)
    assert claims.conflict(BASE + 17, 4, 0).reason is Reason.BORROWED_BYTES
    places.give_back.assert_called_once_with(short)


def test_a_splice_of_two_writes_gives_its_bytes_back_once():
    """A short jump and its springboard are two writes; what another pun borrows, too, stays protected."""
    short = short_on(HOST)
    beside = PlannedSplice(
        Strategy.PUNNED, BASE + 28, tuple(decode_range(b"\x90", BASE + 28)), [], 1, BASE + 28, 6, PUN.pun
    )
    claims = claimed(HOST, beside).replaced((), [short])
    assert claims.borrowed[BASE + 33] == 2
    assert claims.replaced([short, short], ()).borrowed[BASE + 33] == 1
    assert claims.replaced([short, short], [short, short]) == claims


def test_how_far_springboards_reach_in_a_host_is_what_the_plan_says():
    host = SpliceDraft(Strategy.JUMP, BASE, HOST.insns, [], 5, BASE)
    plan = PlanDraft([host, short_on(host, SpliceDraft)])
    assert [each.hosts_until for each in plan.finished().splices] == [BASE + 64 + JUMP_BYTES, 0]
    plan.splices.pop()
    assert [each.hosts_until for each in plan.finished().splices] == [0]


def test_nothing_changes_what_is_planned():
    """Not the draft, either, that it comes of; what it leans on is what the plan has, too."""
    host = SpliceDraft(Strategy.JUMP, BASE, HOST.insns, [Want(BASE, WantKind.ENTRY)], 5, BASE)
    draft = PlanDraft([host, short_on(host, SpliceDraft)])
    plan = draft.finished()
    host.wants.clear()
    draft.refused.append((Want(BASE, WantKind.ENTRY), Refusal(Reason.OVERLAP, BASE, "")))
    first, second = plan.splices
    assert (len(first.wants), plan.refused, second.leans_on) == (1, (), (first,))
    for value, name in ((plan, "splices"), (first, "springboard"), (first, "wants")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, ())


def test_a_springboard_has_the_place_that_was_planned():
    """Where others have it, or none was planned, the jump would lead astray: that is no plan to carry out."""
    claims, places = claimed(), Mock()
    claims.places, places.take.return_value = places, BASE + 0x180
    draft = SpliceDraft(Strategy.PUNNED, BASE + 16, PUN.insns, [], 1, BASE + 16, 4, PUN.pun)
    with claims.trial() as trial:
        trial.claim(draft)
    (splice,) = PlanDraft([draft]).finished().splices
    claims.claim(splice)
    assert splice.springboard == BASE + 0x180
    with pytest.raises(InternalError, match="without a place"):
        claims.claim(PUN)


def interrupts(steps):
    """Return a function for ``sys.settrace`` that interrupts after so many steps in this repository's planning."""
    left = [steps]

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(("edits.py", "claims.py")):
            return trace
        frame.f_trace_opcodes = True
        left[0] -= event == "opcode"
        if left[0] == 0:
            raise KeyboardInterrupt
        return trace

    return trace


def test_an_edit_is_interrupted_anywhere(code_map):
    """Between any two instructions of claiming and of giving back: what is armed is claimed in the end, once."""
    code = code_map(BASE, b"\x90" * 64, [(0, 64)])
    function, was, will_be = code.function_at(BASE), claimed(HOST, PUN), claimed(short_on(HOST))
    armed, wanted = [EmittedSplice(each, 0, each.write_at, b"", b"", None) for each in (HOST, PUN)], short_on(HOST)
    for steps in count(1):
        state = FunctionState(function, splices=list(armed))
        module = Module("", code, 0, 0, 0, claims=claimed(HOST, PUN))
        edit = Edit(module, state)
        before = sys.gettrace()
        sys.settrace(interrupts(steps))
        try:
            edit.claim(Planned([], FunctionPlan([wanted])))
            edit.give_back()
            ended = True
        except KeyboardInterrupt:
            ended = False
        finally:
            sys.settrace(before)
        assert module.claims in (was, will_be)
        edit.give_back()
        assert module.claims == was
        if ended:
            assert steps > 100
            return


@settings(deadline=None)
@given(some, some, some, some, st.integers(0, 4))
def test_bytes_are_taken_if_they_are_free(written, borrowed, displaced, landings, after):
    claims = Claims(AddressSet(written), displaced=AddressSet(displaced), landings=AddressSet(landings))
    for at in borrowed:
        claims.borrowed.add_range(at, at + 1)
    free = expected(claims, BASE + 4, JUMP_BYTES, 0) is None
    middle = BASE + 4 + JUMP_BYTES
    assert claims.take(BASE + 4, middle, middle + after) == free
    assert set(claims.written) == written | set(range(BASE + 4, middle) if free else ())
    assert set(claims.displaced) == displaced | set(range(middle, middle + after) if free else ())
