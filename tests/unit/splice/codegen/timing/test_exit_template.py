"""Patches of exits that are filled in are those that are written one by one, byte for byte."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from anyprobe.isa.decode import Flow
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import Action, ActionKind
from anyprobe.splice.codegen.timing.exit_template import ExitTemplates
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.planner import Planner
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from support.kept_plans import BIAS, Planned
from unit.splice.codegen.test_fronts import branch_of, splice_of
from unit.splice.translate.test_steps import ATOMIC, SLOTS
from unit.splice.translate.test_steps import BIAS as NEAR_BIAS
from unit.splice.translate.test_steps import PATCH as NEAR

PATCH = BIAS - 0x4000_0000
FAR = replace(SLOTS, routines=replace(SLOTS.routines, leave=PATCH - 0x1000, leave_tail=PATCH - 0x800))
"""A bank whose routines are within reach of there."""
LIBC = next((str(each) for each in Path("/lib/x86_64-linux-gnu").glob("libc.so.6")), "/lib64/libc.so.6")
PROGRAMS = {"bash": 19, "perl": 29, "sqlite3": 3, "python3.11": 61, "gdb": 301, "git": 61, LIBC: 23}
"""With of how many functions one is planned."""
LEAVE, TAIL = ActionKind.LEAVE, ActionKind.LEAVE_TAIL
POPS = "5b 5d 41 5c c3"
"""``pop rbx; pop rbp; pop r12; ret``."""


def said_of(patch):
    """Return all that is said of a patch; also what is not compared where patches are, but for what it is made by."""
    parts = {} if patch.parts is None else {each.name: getattr(patch.parts, each.name) for each in fields(patch.parts)}
    parts.pop("is_shared", None)
    return patch, patch.front, parts


def written(splice, address, bias, action, after):
    source = ActionSource(lambda want: (action,), lambda want: Clobbers())
    return emit_patch(splice, address, bias, source, after)


@pytest.mark.parametrize("name", PROGRAMS)
def test_exits_of_programs_have_the_patches_that_are_written_one_by_one(name):
    path = Path(name if name.startswith("/") else f"/usr/bin/{name}")
    if not path.exists():
        pytest.skip(f"there is no {name} here")
    planned, templates, number, filled = Planned(path.resolve()), ExitTemplates(), 0, set()
    context = PlanContext(planned.code, planned.claims, planned.claims.places.reachable, bias=BIAS)
    for function in planned.functions(PROGRAMS[name]):
        plan = Planner(context).plan(function, planned.wants(function, {WantKind.EXIT}))
        for splice in plan.splices:
            number += 1
            returns = splice.insns[-1].flow is Flow.RET
            action = Action(LEAVE if returns else TAIL, 0x40 + 8 * number, FAR)
            for bias in (BIAS, BIAS + 0x7654_3000):  # the address of a patch and of what it leads to, each by itself
                address = PATCH + 0x80 * number + (bias - BIAS) // 2
                patch = templates.fill(splice, address, bias, action, {})
                if patch is not None:
                    assert said_of(patch) == said_of(written(splice, address, bias, action, {}))
                    filled.add(splice)
    assert len(filled) > number / 2 > 20


def exit_of(code, **wanted):
    splice = splice_of(code, WantKind.ENTRY)
    splice.wants[0] = Want(splice.insns[-1].address, WantKind.EXIT, **wanted)
    return splice


@pytest.mark.parametrize(
    ("splice", "action"),
    [
        (exit_of("48 8b 05 10 00 00 00 c3"), Action(LEAVE, 8, SLOTS)),  # not relative to where they are
        (exit_of("5b 48 8b 05 10 00 00 00"), Action(LEAVE, 8, SLOTS)),
        (exit_of("5b 41 5c ff e0"), Action(LEAVE, 8, SLOTS)),
        (exit_of("5b 90 eb 20 90"), Action(TAIL, 8, SLOTS)),
        (exit_of("5b 5d 90 74 20"), Action(TAIL, 8, SLOTS)),
        (exit_of(POPS, first=True), Action(LEAVE, 8, SLOTS)),
        (exit_of(POPS, after=True), Action(LEAVE, 8, SLOTS)),
        (exit_of(POPS), Action(TAIL, 8, SLOTS)),
        (exit_of(POPS), Action(ActionKind.COUNT, 8, SLOTS)),
        (exit_of(POPS), Action(LEAVE, 8, ATOMIC)),
        (splice_of(POPS, WantKind.ENTRY), Action(LEAVE, 8, SLOTS)),
        (splice_of(POPS, WantKind.EXIT), Action(LEAVE, 8, SLOTS)),  # at the first instruction
        (branch_of("e8 10 00 00 00", WantKind.EXIT), Action(TAIL, 8, SLOTS)),
        (branch_of("0f 84 10 00 00 00", WantKind.EXIT), Action(TAIL, 8, SLOTS)),
    ],
)
def test_what_is_no_plain_exit_is_written_one_by_one(splice, action):
    assert ExitTemplates().fill(splice, NEAR, NEAR_BIAS, action, {}) is None


def test_a_jump_back_to_the_entry_is_written_one_by_one():
    splice, action = branch_of("e9 10 00 00 00", WantKind.EXIT), Action(TAIL, 8, SLOTS)
    entry = splice.insns[0].target + NEAR_BIAS
    assert ExitTemplates().fill(splice, NEAR, NEAR_BIAS, action, {entry: NEAR + 0x100}) is None
    assert ExitTemplates().fill(splice, NEAR, NEAR_BIAS, action, {entry + 1: NEAR + 0x100}) is not None


def test_each_bank_has_exits_of_its_own():
    templates, routines = ExitTemplates(), replace(SLOTS.routines, leave=SLOTS.routines.leave + 0x800)
    for bank in (SLOTS, replace(SLOTS, routines=routines)):
        action = Action(LEAVE, 0x40, bank)
        made = templates.fill(exit_of(POPS), NEAR, NEAR_BIAS, action, {})
        assert said_of(made) == said_of(written(exit_of(POPS), NEAR, NEAR_BIAS, action, {}))
