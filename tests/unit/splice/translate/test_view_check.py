"""What comes before a signal handler: nothing is written unless there is something to show."""

from dataclasses import replace

import pytest
from iced_x86 import Decoder

from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import Action, ActionKind
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.translate.patches import Bearings, Walk, overwritten, recipes
from anyprobe.splice.translate.routine import assemble_view
from anyprobe.splice.translate.routines import routine_positions
from anyprobe.splice.translate.steps import Op, Step, frame_index
from anyprobe.splice.translate.view_check import VIEW_NEEDS, assemble_check
from support.stack_depths import depth
from unit.splice.translate import test_steps as steps

VIEW, CHECK, ROOT = 0x620400, 0x620C00, 0x630000
BANK = replace(steps.SLOTS, view=VIEW, view_check=CHECK)
BEARINGS = Bearings(
    {**steps.BEARINGS.routines, VIEW: (None, 0), CHECK: (None, 0)}, steps.BEARINGS.slots, steps.BEARINGS.code
)
RAX, RDX, R13 = 0, 2, 13


def handler(*others):
    """Return the patch of a signal handler with other actions at its first instruction, and its walk."""
    wants = [Want(steps.LINK, WantKind.ENTRY, first=number == 0) for number in range(1 + len(others))]
    kinds = dict(zip(map(id, wants), (ActionKind.VIEW, *others), strict=True))
    insns = tuple(decode_range(bytes.fromhex("48 89 e5 90 90"), steps.LINK))
    planned = PlannedSplice(Strategy.JUMP, steps.LINK, insns, wants, 5, steps.LINK)
    source = ActionSource(lambda want: (Action(kinds[id(want)], 0x1000, BANK),), lambda _: Clobbers())
    emitted = emit_patch(planned, steps.PATCH, steps.BIAS, source, {})
    walk = Walk(planned, steps.BIAS, emitted, BEARINGS)
    assert walk.run()
    return emitted, walk


@pytest.mark.parametrize("others", [(), (ActionKind.COUNT,), (ActionKind.COUNT, ActionKind.ENTER)], ids=len)
def test_other_handlers_can_be_shown_its_first_instruction(others):
    emitted, walk = handler(*others)
    found = recipes(walk, overwritten(walk))
    lines = [(at - steps.PATCH, text) for at, _, text in disassemble.format(emitted.code, steps.PATCH)]
    assert [text for at, text in lines if at not in found] == []
    raised = next(at for at, text in lines if text == "cmp rdx, rsi")
    assert found[raised][0] == Step(Op.RAISE, frame_index(RDX), -0x130)
    after = next(at for at, text in lines if text.startswith("mov r13"))
    assert (found[after][0].op, found[after][0].a) == (Op.LOAD, frame_index(R13))
    assert found[after][-2].op is Op.SITE


def test_nothing_is_pushed_where_the_kernel_calls_and_nothing_is_to_be_shown():
    emitted, walk = handler(ActionKind.COUNT)
    lines = {at: text for at, _, text in disassemble.format(emitted.code, steps.PATCH)}
    called = next(at for at, text in lines.items() if text.startswith("lea rdx, [rdx+"))
    way, at = [], called
    while at not in dict(walk.patch.copies).values():
        one = walk.insns[at]
        way.append(lines[at])
        jumps = way[-1].startswith("jmp") and one.near_branch_target != CHECK
        at = one.near_branch_target if jumps else at + one.len
    assert not [text for text in way if "push" in text or "call" in text or "rsp-" in text]
    assert any(text.startswith("inc qword ptr [rax+") for text in way)
    assert way[-2] == "mov rax, [rsp+0x10]"  # which the kernel clears, as it does rax


def test_the_check_gives_all_back_wherever_it_is_interrupted():
    code, stretches = assemble_check(CHECK, ROOT)
    found = routine_positions(code, CHECK, stretches)
    insns = list(Decoder(64, code, ip=CHECK))
    assert set(found) == {one.ip - CHECK for one in insns}
    assert all([step.op for step in recipe][-2:] == [Op.HELD, Op.AGAIN] for recipe in found.values())
    assert depth(code, CHECK, CHECK) == 0
    written = [str(one) for one in insns if one.op_count and "[" in str(one).split(",")[0] and str(one)[:3] != "cmp"]
    assert written == []


def test_the_view_takes_no_more_than_is_looked_for():
    view = assemble_view(VIEW, ROOT)[0]
    routine = depth(view, VIEW, VIEW)
    finished = 64  # what a step has pushed that calls a copy of another routine, or of this one
    assert 144 + routine + finished + routine + finished <= VIEW_NEEDS
