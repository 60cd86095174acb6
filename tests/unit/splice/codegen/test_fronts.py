"""What is worked out once for many patches says of each what following it as a whole would say."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anyprobe.core.checkpoints import interruptible
from anyprobe.isa.decode import Flow, decode_range
from anyprobe.splice.codegen.counter_template import CounterTemplates
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.fronts import Fronts, form_of
from anyprobe.splice.codegen.patch import Action, ActionKind
from anyprobe.splice.codegen.timing.exit_template import ExitTemplates
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.userspace.signal_view import _Described
from unit.splice.translate.test_routine import Pages
from unit.splice.translate.test_steps import BEARINGS, BIAS, LINK, PATCH, SLOTS, patch_positions

CODES = [
    "55 48 89 e5 90",  # push rbp; mov rbp, rsp; nop
    "90 48 89 f8 90",  # as many bytes, and other instructions
    "53 48 89 fb 50",
    "41 57 41 56 55",  # push r15; push r14; push rbp
    "48 83 ec 18 50",  # sub rsp, 24; push rax
    "48 83 c6 18 50",
    "48 89 4c 24 f8",  # mov [rsp-8], rcx
    "48 89 4c 26 f8",
    "48 8b 05 10 00 00 00",  # mov rax, [rip+0x10]
    "31 c0 c3 90 90",  # xor eax, eax; ret
    "48 85 ff 74 20 90",  # test rdi, rdi; je
    "e8 10 00 00 00",
    "0f 05 48 89 c7",  # syscall; mov rdi, rax
    "05 10 00 00 00",  # add eax, 16, and other numbers
    "05 11 00 00 00",
    "04 7f b0 01 90",  # add al, 0x7f; mov al, 1
    "04 70 b0 01 90",
    "48 8d 64 24 f0",  # lea rsp, [rsp-16]
    "48 8d 64 24 e0",
    "48 8d 44 24 f0",
    "c1 e0 00 31 c0",  # shl eax, 0; xor eax, eax
    "c1 e0 01 31 c0",
    "89 47 08 89 f0",  # mov [rdi+8], eax; mov eax, esi
    "89 47 10 89 f0",
    "8b 47 08 89 f0",
    "8b 04 24 89 f0",
    "64 8b 04 25 28 00 00 00",  # mov eax, fs:[0x28]
    "f0 ff 07 31 c0",
    "48 0f af c7 50",
    "48 6b c7 05 50",
    "48 6b c7 06 50",
    "48 8b 05 20 00 00 00",  # mov rax, [rip+0x20]
    "48 8d 3d 20 00 00 00",  # lea rdi, [rip+0x20]
    "48 8d 3d 30 00 00 00",
    "90 e8 10 00 00 00",  # nop; call
    "90 e8 20 00 00 00",
    "89 f8 e8 20 00 00 00",  # mov eax, edi; call
    "89 f8 ff 15 20 00 00 00",  # mov eax, edi; call [rip+0x20]
    "89 f8 ff 15 30 00 00 00",
    "ff d0",
    "31 c0 c2 08 00",  # xor eax, eax; ret 8
    "31 c0 90 f3 a4",  # xor eax, eax; nop; rep movsb
    "31 c0 90 f3 90",
    "85 ff 74 20 90",  # test edi, edi; je; nop
    "85 ff 75 20 90",
    "85 ff 74 30 90",
    "85 ff 0f 84 20 00 00 00",
    "85 f6 0f 84 30 00 00 00",
]
BRANCHES = [
    "e9 10 00 00 00",
    "e9 20 00 00 00",
    "e8 10 00 00 00",
    "e8 20 00 00 00",
    "e9 fb ff ff ff",
    "f2 e9 10 00 00 00",
]
"""Jumps and calls, one to itself, one with a prefix."""
DEAD = [Clobbers(), Clobbers((), flags=True), Clobbers(("rax",), flags=True), Clobbers(("r10", "r11"))]
KINDS = [
    (WantKind.ENTRY, ActionKind.COUNT),
    (WantKind.OFFSET, ActionKind.COUNT),
    (WantKind.ENTRY, ActionKind.ENTER),
]


def splice_of(code, kind):
    insns, whole = [], tuple(decode_range(bytes.fromhex(code), LINK))
    for insn in whole:
        insns.append(insn)
        if insn.end - LINK >= 5 or not insn.may_go_on:
            break
    return PlannedSplice(Strategy.JUMP, LINK, tuple(insns), [Want(LINK, kind)], 5, LINK)


def branch_of(code, kind):
    insns = tuple(decode_range(bytes.fromhex(code), LINK))
    return PlannedSplice(Strategy.RETARGET, LINK, insns, [Want(LINK, kind)], 4, insns[0].end - 4)


def patch_of(splice, dead, address, templates, does=ActionKind.COUNT):
    action = Action(does, 0x40 + address % 0x1000, SLOTS)
    source = ActionSource(lambda want: (action,), lambda want: dead)
    return templates.fill(splice, address, BIAS, action, lambda: dead) or emit_patch(splice, address, BIAS, source, {})


def patches():
    templates = CounterTemplates()
    for number, (dead, (kind, does), code) in enumerate(itertools.product(DEAD, KINDS, CODES)):
        splice = splice_of(code, kind)
        yield splice, patch_of(splice, dead, PATCH + 0x100 * number, templates, does)


@pytest.mark.parametrize("looped", [False, True])
def test_every_patch_has_the_recipes_that_it_has_alone(looped):
    fronts, shared = Fronts(), 0
    for splice, patch in patches():
        front, own = fronts.positions(splice, BIAS, patch, BEARINGS, looped=looped)
        found = {**(front.positions if front is not None else {}), **own}
        assert found == patch_positions(splice, BIAS, patch, BEARINGS, looped=looped)
        assert found
        shared += front is not None
    assert shared == len(DEAD) * len(KINDS) * len(CODES)


def branch_patches(after):
    for number, (dead, kind, code) in enumerate(itertools.product(DEAD, [WantKind.OFFSET, WantKind.EXIT], BRANCHES)):
        splice = branch_of(code, kind)
        action = Action(ActionKind.COUNT, 0x40 + number, SLOTS)
        source = ActionSource(lambda want, action=action: (action,), lambda want, dead=dead: dead)
        yield splice, emit_patch(splice, PATCH + 0x8000 + 0x100 * number, BIAS, source, after)


@pytest.mark.parametrize("kind", [WantKind.ENTRY, WantKind.OFFSET])
def test_what_a_branch_s_displacement_says_is_not_taken_for_its_opcode(kind):
    """One of its bytes is that of ``loop``."""
    splice = splice_of("89 f8 0f 84 f8 6f f2 00", kind)
    patch = patch_of(splice, DEAD[1], PATCH, CounterTemplates())
    (*_, (_, back)) = patch.copies
    assert patch.code[back - PATCH - 2] in range(0xE0, 0xE4)
    found = patch_positions(splice, BIAS, patch, BEARINGS)
    assert {at - PATCH for _, at in patch.copies} <= found.keys()


TIMED_CODES = [
    *CODES,
    "89 f8 0f 84 10 00 00 00",  # mov eax, edi; je
    "89 f8 0f 84 20 00 00 00",
    "89 f8 0f 85 20 00 00 00",  # jne: it reads the same flag
    "89 f8 0f 8c 20 00 00 00",  # jl: others
    "89 f8 74 20 90",
    "89 f8 90 74 fa",  # je back to what comes behind the entry
    "89 f8 90 74 fb",  # je to itself
    "89 f8 e9 10 00 00 00",  # mov eax, edi; jmp
    "89 f8 e9 20 00 00 00",
    "89 f8 90 eb f8",  # jmp back to the entry
    "89 f8 90 e2 20",  # loop
    "89 f8 ff 64 24 08",  # jmp [rsp+8]
    "5b 5d 41 5c c3",  # pop rbx; pop rbp; pop r12; ret
    "41 5c 41 5d c3",
    "5b 41 5c 41 5d",
]
ENTER, LEAVE, TAIL = ActionKind.ENTER, ActionKind.LEAVE, ActionKind.LEAVE_TAIL
ACTIONS = [
    [(0, WantKind.ENTRY, ENTER, 0x40)],
    [(0, WantKind.EXIT, LEAVE, 0x40)],
    [(-1, WantKind.EXIT, TAIL, 0x48)],
    [(-1, WantKind.EXIT, LEAVE, 0x50)],
    [(0, WantKind.ENTRY, ENTER, 0x58), (-1, WantKind.EXIT, LEAVE, 0x58)],
    [(0, WantKind.ENTRY, ENTER, 0x58), (-1, WantKind.EXIT, TAIL, 0x60)],
    [(0, WantKind.ENTRY, ENTER, 0x58), (0, WantKind.ENTRY, TAIL, 0x58)],
    [(0, WantKind.OFFSET, ActionKind.COUNT, 0x58), (-1, WantKind.OFFSET, ActionKind.COUNT, 0x58)],
    [(0, WantKind.OFFSET, ActionKind.COUNT, 0x58), (-1, WantKind.OFFSET, ActionKind.COUNT, 0x60)],
    [(0, WantKind.ENTRY, ENTER, 0x58), (0, WantKind.OFFSET, ActionKind.COUNT, 0x60)],
]
"""At which of the displaced instructions what is wanted for what, and where in the block."""


def timed_patches():
    """Yield patches in which calls begin and end, each at two places with other offsets."""
    exits = ExitTemplates()
    combinations = itertools.product([0, 0x100], DEAD[:3], ACTIONS, TIMED_CODES, [{}, {LINK + BIAS: PATCH + 0x40}])
    for number, (more, dead, wanted, code, after) in enumerate(combinations):
        splice = splice_of(code, WantKind.ENTRY)
        actions = {}
        for index, kind, action, offset in wanted:
            insn = splice.insns[index]
            conditional = kind is WantKind.EXIT and insn.flow is Flow.JCC
            actions[Want(insn.address, kind, conditional=conditional)] = Action(action, offset + more, SLOTS)
        splice = replace(splice, wants=tuple(actions))
        source = ActionSource(lambda want, actions=actions: (actions[want],), lambda want, dead=dead: dead)
        at, (action, *others) = PATCH + 0x80 * (number % 900 + 2), actions.values()
        filled = None if others else exits.fill(splice, at, BIAS, action, after)
        patch = filled or emit_patch(splice, at, BIAS, source, after)
        if isinstance(patch, EmittedPatch):
            yield splice, patch


@pytest.mark.parametrize("looped", [False, True])
def test_of_timed_calls_the_table_has_what_was_worked_out_for_each_patch(looped):
    described, known, made = described_patches(1 << 20), set(), 0
    sites = frozenset([LINK + BIAS] if looped else [])
    for splice, patch in timed_patches():
        live = SimpleNamespace(patch=patch, planned=splice, bias=BIAS)
        alone = described.table.positions(patch_positions(splice, BIAS, patch, BEARINGS, looped=looped))
        assert described._positions_of(live, BEARINGS, sites) == alone != 0
        known.add(form_of(splice, patch, BEARINGS.code, looped=looped))
        made += 1
    assert made > 2000
    assert len(known) < made // 3


def described_patches(size):
    home = SimpleNamespace(
        arena=Pages(size), code=SimpleNamespace(address=PATCH, end=PATCH + size, size=size, offset=0),
        limit=PATCH, view=0, blobs=[],
    )  # fmt: skip
    return _Described(home)


def test_routines_are_described_after_a_change_that_was_ended():
    described, added = described_patches(1 << 16), []
    described.table.add = lambda entries: added.append(entries) or set()
    described._home.described = lambda *_: None
    described._home.blobs.append(
        SimpleNamespace(facts=None, routines=None, code=b"\xc3", address=PATCH, stretches=(), finish=None)
    )
    splice, patch = next(iter(timed_patches()))
    live = SimpleNamespace(patch=patch, planned=splice, bias=BIAS)

    def end():
        raise InterruptedError

    with interruptible(end), pytest.raises(InterruptedError):
        described.add([live], frozenset())
    assert not added
    described.add([live], frozenset())
    described.add([live], frozenset())
    assert [[at for at, _, _ in entries] for entries in added] == [[PATCH, patch.address], [patch.address]]


def test_the_table_has_for_each_patch_what_was_worked_out_for_it():
    """Patches of one front and of equal lengths may differ in where registers are between their displaced copies."""
    described = described_patches(1 << 16)
    into_ours = {LINK + BIAS + 0x15: PATCH + 0x40}
    """A branch back to an entry goes behind its handlers, in a patch of ours."""
    made = [*patches(), *branch_patches({}), *branch_patches(into_ours)]
    for splice, patch in [*made, *made]:
        live = SimpleNamespace(patch=patch, planned=splice, bias=BIAS)
        alone = described.table.positions(patch_positions(splice, BIAS, patch, BEARINGS))
        assert described._positions_of(live, BEARINGS, frozenset()) == alone != 0
    assert len(described._known) < len(made) // 2


def test_forms_of_calls_tell_how_long_their_copies_are():
    """Far from address 0 a return address is pushed in two steps."""
    forms = set()
    for bias, code in itertools.product(
        [BIAS, BIAS + 0x10, (1 << 31) - LINK], ["90 e8 10 00 00 00", "90 e8 20 00 00 00"]
    ):
        splice = splice_of(code, WantKind.OFFSET)
        source = ActionSource(lambda want: (Action(ActionKind.COUNT, 0x40, SLOTS),), lambda want: DEAD[1])
        patch = emit_patch(splice, 0x7000_0000, bias, source, {})
        forms.add(form_of(splice, patch, BEARINGS.code))
    assert len(forms) == 2
