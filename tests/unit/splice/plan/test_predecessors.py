"""Instructions without room, counted where control comes from. The assembly stands beside the bytes."""

from dataclasses import replace

import pytest

from anyprobe.core.refusal import Refusal
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import ActionSource, emit_patch, estimate
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.plan import predecessor_edits
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import PlanDraft, SpliceDraft
from anyprobe.splice.plan.predecessors import Predecessors, cannot_fault
from anyprobe.splice.plan.splices import AUTO, Clobbers, Pun, Strategy, Want, WantKind
from support.planning import claimed_plan, planner_for

BASE, BIAS, PATCH = 0x401000, 0x500000, 0xA00000

HEAD = "b8 01 00 00 00  85 ff  74 0a"
"""mov eax, 1; test edi, edi; je 19"""
ABOVE = "b9 02 00 00 00  ba 03 00 00 00"  # 9: mov ecx, 2; mov edx, 3
LINE = "ff c0"  # 19: inc eax
NEXT = "83 c0 01  ff c9  75 f9  c3"  # 21: add eax, 1; dec ecx; jne 21; ret
CODE = HEAD + ABOVE + LINE + NEXT
AT, BEHIND = 19, 21


def planner_of(code_map, code=CODE, more="", entries=(), **settings):
    settings.setdefault("allowed", AUTO - {Strategy.SHORT})  # what is nearby would be evicted for a short jump
    content = bytes.fromhex(code)
    bounds = [(0, len(content))]
    if more:
        content += b"\x90"  # right behind, it would be planned together with this one
        bounds.append((len(content), len(content) + len(bytes.fromhex(more))))
    module = code_map(BASE, content + bytes.fromhex(more), bounds, entries=entries)
    return planner_for(module, Claims(), settings.pop("reachable", lambda _: False), **settings)


def plan_of(planner, *offsets, kind=WantKind.OFFSET):
    return claimed_plan(planner, planner.context.code.function_at(BASE), [Want(BASE + at, kind) for at in offsets])


def draft_of(planner, *offsets):
    """Return the plan as it is before it is finished."""
    return planner.draft(planner.context.code.function_at(BASE), [Want(BASE + at, WantKind.OFFSET) for at in offsets])


def texts_of(planner, plan):
    """Return the instructions of each patch by offset, counters as ``count``; runs of counters are one per want."""
    bank = BankCode(slot=None, gate=0, near=0xB00000, routines=None)
    source = ActionSource(
        lambda want: (Action(ActionKind.COUNT, 8 * ((want.origin or want).address - BASE), bank),),
        lambda _: Clobbers(flags=True, registers=("rax",)),
    )
    found = {}
    for splice in plan.splices:
        patch = emit_patch(splice, PATCH, BIAS, source, {})
        assert not isinstance(patch, Refusal)
        assert len(patch.code) <= estimate(splice)
        found[splice.head - BASE] = [text for _, _, text in disassemble.format(patch.code, PATCH)]
    return found


def count(offset):
    return f"lock inc qword ptr [{0xB00000 + 8 * offset:#x}]"


def test_what_nothing_leads_to_stays_refused(code_map):
    planner = planner_of(code_map, code="85 ff  eb 01  cc  ff c0  83 c0 01  c3")  # jmp over an int3
    plan = plan_of(planner, 4)
    assert [want.address for want, _ in plan.refused] == [BASE + 4]


def test_each_way_counts_once(code_map):
    planner = planner_of(code_map)
    plan = plan_of(planner, AT, BEHIND)
    assert plan.refused == ()
    patches = texts_of(planner, plan)
    line = BASE + BIAS + AT
    every = [text for texts in patches.values() for text in texts]
    assert every.count(count(AT)) == 2
    branch = next(texts for texts in patches.values() if any(text.startswith("je ") for text in texts))
    assert branch[-2:] == [count(AT), f"jmp {line:#x}"]  # on the taken edge, and on to the line itself
    above = next(texts for texts in patches.values() if "inc eax" in texts)
    assert above[above.index(count(AT)) + 1 :] == ["inc eax", f"jmp {line + 2:#x}"]


def test_the_line_stays_as_it_is_and_all_can_be_taken_back(code_map):
    planner = planner_of(code_map)
    plan = plan_of(planner, AT, BEHIND)
    assert not planner.context.claims.written & {BASE + AT, BASE + AT + 1}
    assert draft_of(planner_of(code_map), AT, BEHIND).shared == {BASE + AT}
    for splice in plan.splices:
        planner.context.claims.release(splice)
    assert planner.context.claims == Claims()


def test_the_wanted_site_is_the_origin_of_what_counts_at_a_branch(code_map):
    plan = plan_of(planner_of(code_map), AT, BEHIND)
    served = {(want.origin or want).address - BASE for splice in plan.splices for want in splice.wants}
    assert served == {AT, BEHIND}


@pytest.mark.parametrize(
    ("code", "more", "entries"),
    [
        (CODE, "", (AT,)),  # a stored pointer leads there
        (CODE, "e9 f0 ff ff ff", ()),  # 30: another function jumps there
        (HEAD.replace("74 0a", "74 05") + "e8 00 10 00 00" + LINE + NEXT, "", ()),  # the return address of a call
    ],
)
def test_ways_that_cannot_be_spliced(code_map, code, more, entries):
    planner = planner_of(code_map, code, more or "c3", entries)
    line = code.replace(" ", "").index("ffc083c001") // 2
    plan = plan_of(planner, line, line + 2)
    assert [want.address - BASE for want, _ in plan.refused] == [line]
    assert all(want.origin is None for splice in plan.splices for want in splice.wants)


def test_a_branch_in_the_line_itself_is_no_way(code_map):
    # ...; 19: dec eax; jne 19; 23: add eax, 1; dec ecx; jne 23; ret
    planner = planner_of(code_map, HEAD + ABOVE + "ff c8 75 fc" + NEXT)
    plan = plan_of(planner, 19, 21, 23)
    assert [want.address - BASE for want, _ in plan.refused] == [19, 21]
    assert all(splice.head - BASE != 19 for splice in plan.splices)


def test_a_branch_that_runs_in_two_places_counts_for_nothing(code_map):
    # ...; 19: jmp 21 (a copy of which runs above, too); 21: inc eax, entered from there only
    planner = planner_of(code_map, HEAD + ABOVE + "eb 00" + LINE + NEXT)
    plan = plan_of(planner, 19, 21, 23)
    assert BASE + 19 in draft_of(planner_of(code_map, HEAD + ABOVE + "eb 00" + LINE + NEXT), 19, 21, 23).shared
    assert 19 in {want.address - BASE for splice in plan.splices for want in splice.wants}
    assert [want.address - BASE for want, _ in plan.refused] == [21]


def test_go_code_is_left_alone(code_map):
    plan = plan_of(planner_of(code_map, plain_jumps_only=True), AT)
    assert [want.address - BASE for want, _ in plan.refused] == [AT]


def test_puns_come_last(code_map):
    """A pun at the line would lock the first bytes of the loop behind it."""
    plan = plan_of(planner_of(code_map, reachable=lambda _: True), AT, BEHIND)
    assert plan.refused == ()
    assert Strategy.PUNNED not in {splice.strategy for splice in plan.splices}


@pytest.mark.parametrize(
    ("code", "harmless"),
    [
        ("ff c0", True),  # inc eax
        ("48 8d 04 0f", True),  # lea rax, [rdi+rcx]
        ("8b 07", False),  # mov eax, [rdi]
        ("53", False),  # push rbx
        ("f7 f1", False),  # div ecx
        ("8e d8", False),  # mov ds, eax
        ("74 00", False),  # je
        ("0f 05", False),  # syscall
    ],
)
def test_what_cannot_fault(code, harmless):
    (insn,) = decode_range(bytes.fromhex(code), BASE)
    assert cannot_fault(insn) == harmless


def test_what_only_a_signal_handler_leads_to_is_not_counted_by_its_ways(code_map):
    """mov eax, 1; ud2; inc eax; 9: mov ecx, 2; jmp 9: nothing branches to the inc, so its ways say nothing of it."""
    planner = planner_of(code_map, "b8 01 00 00 00  0f 0b  ff c0  b9 02 00 00 00  eb f9")
    plan = plan_of(planner, 7, 9)
    assert [want.address - BASE for splice in plan.splices for want in splice.wants] == [9]
    assert [want.address - BASE for want, _ in plan.refused] == [7]


def test_a_new_splice_above_does_not_carry_on_into_the_one_that_it_leans_on(code_map, monkeypatch):
    """Its patch would come back to 21, the middle of what the jump at 19 overwrites."""
    planner = planner_of(code_map)
    function = planner.context.code.function_at(BASE)
    insns = {insn.address - BASE: insn for insn in function.insns}
    below = SpliceDraft(Strategy.JUMP, BASE + AT, (insns[AT], insns[BEHIND]), [], 5, BASE + AT)
    pun = Pun(0, 3, 0x700000, b"\xe9")
    above = SpliceDraft(Strategy.PUNNED, BASE + 14, (insns[14],), [], 5, BASE + 14, pun=pun, leans_on=(below,))
    detour = predecessor_edits.detour

    def above_or_detour(context, part, address, *more, **options):
        return above if address == BASE + 14 else detour(context, part, address, *more, **options)

    monkeypatch.setattr(predecessor_edits, "detour", above_or_detour)
    plan = PlanDraft(scope=(function,))
    want = Want(BASE + AT, WantKind.OFFSET)
    assert Predecessors(replace(planner.context, plan=plan), function).splice([want]) == frozenset()
    assert (plan.splices, plan.shared, above.insns) == ([], set(), (insns[14],))
