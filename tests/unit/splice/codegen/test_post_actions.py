"""Actions behind instructions, read back as assembly. Link-time addresses are ``LINK``-based, ``BIAS`` lower."""

from dataclasses import replace

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.timing.trampoline import Trampolines
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.post_actions import no_after
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.translate.patches import Bearings
from anyprobe.splice.translate.steps import Op, Step
from support.planning import planner_for
from unit.splice.translate.test_steps import patch_positions

LINK, BIAS, PATCH, HANDLER, FUNCTION = 0x1000, 0x500000, 0x600000, 0x620400, 0x500FF0
SITE = LINK + BIAS
BANK = BankCode(0x208, 0x610000, 0, None, handler=HANDLER)
CALL = ["lea rsp, [rsp-0x80]", "push 0x1000", f"call {HANDLER:#x}", "lea rsp, [rsp+0x88]"]
PUSHED = ["push 0x1000", f"call {HANDLER:#x}", "lea rsp, [rsp+0x90]"]


def patch_of(code, *, strategy=Strategy.JUMP, takes_target=False, function=0, before=False):
    insns = tuple(decode_range(bytes.fromhex(code), LINK))
    wants = [Want(LINK, WantKind.OFFSET, after=True), *([Want(LINK, WantKind.OFFSET)] if before else [])]
    at = insns[0].end - 4 if strategy is Strategy.RETARGET else LINK
    planned = PlannedSplice(strategy, LINK, insns, wants, 4 if strategy is Strategy.RETARGET else 5, at)
    action = Action(ActionKind.HANDLER, 0x1000, BANK, 0x666 if function else 0, function, takes_target)
    source = ActionSource(lambda _: (action,), lambda _: Clobbers(("rax",), True))
    return planned, emit_patch(planned, PATCH, BIAS, source, {})


def listing(code, **options):
    _, patch = patch_of(code, **options)
    assert not isinstance(patch, Refusal), patch
    return [text for _, _, text in disassemble.format(patch.code, PATCH)]


def test_behind_a_plain_instruction():
    assert listing("48 89 f8 90 90") == ["mov rax, rdi", *CALL, "nop", "nop", f"jmp {SITE + 5:#x}"]


def test_before_and_behind():
    lines = listing("48 89 f8 90 90", before=True)
    assert lines == [*CALL, "mov rax, rdi", *CALL, "nop", "nop", f"jmp {SITE + 5:#x}"]


def test_the_handler_is_told_what_comes_next():
    lines = listing("48 89 f8 90 90", function=FUNCTION)
    assert lines[5:7] == [f"nop [{SITE + 3:#x}]", f"nop [{FUNCTION:#x}]"]


def test_both_edges_of_a_branch():
    lines = listing("74 10 90 90 90", function=FUNCTION)  # je +16
    cold = lines.index(f"jmp {SITE + 5:#x}") + 1
    assert lines[0].startswith("je ")
    assert lines[1:6] == [*CALL, f"nop [{SITE + 2:#x}]"]
    assert lines[cold : cold + 5] == [*CALL, f"nop [{SITE + 18:#x}]"]
    assert lines[-1] == f"jmp {SITE + 18:#x}"


def test_both_edges_of_a_counted_loop():
    lines = listing("e2 f0 90 90 90")  # loop -16
    assert [line.split()[0] for line in lines[:3]] == ["loop", "jmp", "jmp"]
    assert lines[3:7] == CALL
    assert lines[-5:] == [*CALL, f"jmp {SITE + 2 - 16:#x}"]


def test_behind_a_return_the_stack_is_the_callers():
    lines = listing("c3")
    assert lines == ["lea rsp, [rsp+0x8]", *CALL, "lea rsp, [rsp-0x8]", "ret"]
    lines = listing("c2 10 00", takes_target=True)
    popped = ["lea rsp, [rsp+0x18]", "lea rsp, [rsp-0x80]", "push qword ptr [rsp+0x68]"]
    assert lines == [*popped, *PUSHED, "lea rsp, [rsp-0x18]", "ret 0x10"]


@pytest.mark.parametrize(
    ("code", "pushed", "jump"),
    [
        ("ff e0", "push rax", "jmp rax"),
        ("ff 64 24 08", "push qword ptr [rsp+0x88]", "jmp qword ptr [rsp+0x8]"),
        ("ff 24 c7", "push qword ptr [rdi+rax*8]", "jmp qword ptr [rdi+rax*8]"),
        ("ff 25 10 00 00 00", f"push [{SITE + 22:#x}]", f"jmp [{SITE + 22:#x}]"),
    ],
)
def test_behind_an_indirect_jump(code, pushed, jump):
    lines = [line.replace("qword ptr [0x", "[0x") for line in listing(code, takes_target=True)]
    assert lines == ["lea rsp, [rsp-0x80]", pushed, *PUSHED, jump]


def test_behind_a_call():
    assert listing("e8 0b 00 00 00")[:6] == [f"push {SITE + 5:#x}", *CALL, f"jmp {SITE + 16:#x}"]
    assert listing("e8 0b 00 00 00", strategy=Strategy.RETARGET) == [*CALL, f"jmp {SITE + 16:#x}"]


@pytest.mark.parametrize(
    ("code", "pushed", "jump"),
    [
        ("ff d0 90 90 90", "push rax", "jmp rax"),
        ("ff 54 24 10 90", "push qword ptr [rsp+0x98]", "jmp qword ptr [rsp+0x18]"),
        ("ff 15 10 00 00 00", f"push [{SITE + 22:#x}]", f"jmp [{SITE + 22:#x}]"),
    ],
)
def test_behind_an_indirect_call(code, pushed, jump):
    lines = [line.replace("qword ptr [0x", "[0x") for line in listing(code, takes_target=True)]
    assert lines[1:7] == ["lea rsp, [rsp-0x80]", pushed, *PUSHED, jump]


def test_a_handler_before_a_retargeted_call_sees_the_stack_as_it_was():
    lines = listing("e8 0b 00 00 00", strategy=Strategy.RETARGET, before=True)
    assert lines == ["lea rsp, [rsp+0x8]", *CALL, "lea rsp, [rsp-0x8]", *CALL, f"jmp {SITE + 16:#x}"]


@pytest.mark.parametrize("kind", [ActionKind.ENTER_RETURN, ActionKind.COUNT_RETURN, ActionKind.HANDLE_RETURN])
def test_what_replaces_a_return_address_before_a_retargeted_call_replaces_the_callers(kind):
    insns = tuple(decode_range(bytes.fromhex("e8 0b 00 00 00"), LINK))
    planned = PlannedSplice(Strategy.RETARGET, LINK, insns, [Want(LINK, WantKind.ENTRY)], 4, LINK + 1)
    trampolines = Trampolines(PATCH + 0x1000, 8, 0x700000, PATCH + 0x1100, PATCH + 0x1200)
    bank = replace(BANK, trampolines=trampolines, at_return=PATCH + 0x1300)
    source = ActionSource(lambda _: (Action(kind, 0x1000, bank),), lambda _: Clobbers(("rax",), True))
    patch = emit_patch(planned, PATCH, BIAS, source, {})
    assert not isinstance(patch, Refusal), patch
    lines = [text for _, _, text in disassemble.format(patch.code, PATCH)]
    argument = {ActionKind.ENTER_RETURN: 0x1000, ActionKind.COUNT_RETURN: 0x1001, ActionKind.HANDLE_RETURN: 0x302}[kind]
    called = trampolines.enter if kind is ActionKind.ENTER_RETURN else trampolines.enter_counted
    call = ["lea rsp, [rsp-0x80]", f"push {argument:#x}", f"call {called:#x}", "lea rsp, [rsp+0x88]"]
    assert lines == ["lea rsp, [rsp+0x8]", *call, "lea rsp, [rsp-0x8]", f"jmp {SITE + 16:#x}"]


def test_what_has_no_behind():
    (begin,) = decode_range(bytes.fromhex("c7 f8 00 00 00 00"), LINK)  # xbegin
    refusal = no_after(begin)
    assert refusal is not None
    assert refusal.reason is Reason.NO_DISPLACED_FORM
    pops_much = decode_range(bytes.fromhex("c2 00 10"), LINK)[0]
    assert isinstance(no_after(pops_much), Refusal)
    assert no_after(pops_much.at(LINK)) is not None


def test_a_signal_handler_is_shown_the_return():
    planned, patch = patch_of("c3")
    positions = patch_positions(planned, BIAS, patch, Bearings({}, {}, range(PATCH, 0x640000)))
    lines = [(at - PATCH, text) for at, _, text in disassemble.format(patch.code, PATCH)]
    at = {text: positions.get(offset) for offset, text in lines}
    assert at["lea rsp, [rsp+0x8]"] == (Step(Op.SITE), Step(Op.AGAIN))
    assert at["lea rsp, [rsp-0x80]"] == (Step(Op.STACK, b=-8), Step(Op.SITE), Step(Op.AGAIN))
    assert at["push 0x1000"] == (Step(Op.STACK, b=120), Step(Op.SITE), Step(Op.AGAIN))
    assert at["lea rsp, [rsp+0x88]"] is None  # the handler has run


@pytest.mark.parametrize("others", [(4,), (0, 2, 4)])
def test_where_nothing_can_be_done_behind_a_wanted_instruction_it_is_refused_whatever_else_is_wanted(code_map, others):
    """With few wants by the patch that has it already, with many as part of a line."""
    code = bytes.fromhex("31 c0 31 c9 31 d2 c2 00 02")  # xor eax, eax; xor ecx, ecx; xor edx, edx; ret 512
    planner = planner_for(code_map(LINK, code, [(0, len(code))]), Claims(), lambda _: False)
    wants = [*(Want(LINK + at, WantKind.OFFSET) for at in others), Want(LINK + 6, WantKind.OFFSET, after=True)]
    plan = planner.plan(planner.context.code.function_at(LINK), wants)
    assert [(want.address - LINK, why.reason) for want, why in plan.refused] == [(6, Reason.NO_DISPLACED_FORM)]
    assert sum(len(splice.wants) for splice in plan.splices) == len(others)
