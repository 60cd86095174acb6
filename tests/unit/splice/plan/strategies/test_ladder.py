"""The ladder as one list: what is tried at a site, in which order, from which head."""

import pytest

from anyprobe.isa.decode import decode_range
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Manner, Site
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.plan.strategies.ladder import LADDER, LIVE, tries

BASE = 0x401000
CODE = bytes.fromhex("31 c0  ff c0  39 f8  c3")
"""xor eax, eax; inc eax; cmp eax, edi; ret"""


@pytest.fixture
def site(code_map):
    context = PlanContext(code_map(BASE, CODE, [(0, len(CODE))]), Claims(), lambda _: False)
    function = context.code.function_at(BASE)
    run = function.lines.around(BASE + 4, BASE)
    return lambda **more: Site(context, function, run, 2, 2, BASE, **{"want": Want(BASE + 4, WantKind.OFFSET), **more})


def tried(site, ladder=LADDER):
    return [(type(strategy).__name__, at.start) for _, strategy, at in tries(site, ladder)]


def test_near_heads_come_before_those_further_up(site):
    found = tried(site())
    assert found[:4] == [("Retarget", 2), ("Jump", 2), ("Jump", 1), ("Jump", 0)]
    assert found[-4:] == [("Punned", 2), ("Punned", 1), ("Punned", 0), ("Trap", 2)]
    assert {name for name, _ in found} >= {"Short", "Nesting", "Eviction", "Wedge", "Successor", "ChainedPun", "PunRow"}
    assert not {"Growth", "Absorption"} & {name for name, _ in found}


def test_bytes_of_the_next_function_are_not_borrowed_for_an_exit_before_what_leads_to_it_was_tried(site):
    last = [name for name, _ in tried(site(want=Want(BASE + 4, WantKind.EXIT)))][-2:]
    assert last == ["PunRow", "Trap"]


@pytest.mark.parametrize(
    ("strategy", "name"), [(Strategy.JUMP, "Growth"), (Strategy.RETARGET, "Absorption"), (Strategy.TRAP, None)]
)
def test_the_splice_in_front_carries_on(site, strategy, name):
    insns = tuple(decode_range(CODE[:2], BASE))
    last = SpliceDraft(strategy, BASE, insns, [], 2, BASE)
    one = site(last=last)
    one.run = (*insns, *one.run[1:])
    found = [(type(each).__name__, kind) for kind, each, _ in tries(one, LADDER)]
    assert [each for each in found if each[0] in ("Growth", "Absorption")] == ([(name, Strategy.JUMP)] if name else [])
    one.manner = Manner(whole_lines=True)
    assert (tried(one)[0] == ("Growth", 2)) == (name == "Growth")


def test_chained_puns_begin_with_the_whole_line(site):
    found = tried(site(manner=Manner(chained=True)))
    assert [start for name, start in found if name == "KnownBytes"][:3] == [0, 1, 2]
    assert found.index(("KnownBytes", 0)) < found.index(("Punned", 2))


def test_one_instruction_at_a_time_while_the_program_runs(site):
    assert tried(site(), LIVE) == [("OneByte", 2), ("InPlace", 2), ("Punned", 2)]
