"""How to show the program its own state: the recipes of patches, and what is proven of patches on the way."""

import pytest
from iced_x86 import Decoder

from anyprobe.data.layouts.layout import BankLayout
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import ActionSource, emit_patch
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.routines import RoutineFacts, Routines, assemble_routines
from anyprobe.splice.plan.splices import SCRATCH_ORDER, Clobbers, PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.translate.patches import Bearings, Walk, overwritten, recipes
from anyprobe.splice.translate.routines import routine_positions
from anyprobe.splice.translate.steps import BACK, FORWARD, EffectKind, Op, Step, frame_index

LINK, BIAS, PATCH = 0x1000, 0x500000, 0x600000
COUNT, ENTER, LEAVE, LEAVE_TAIL = 0x620000, 0x620100, 0x620200, 0x620300
SLOTS = BankCode(slot=0x208, gate=0x610000, near=0, routines=Routines(COUNT, ENTER, LEAVE, LEAVE_TAIL))
ATOMIC = BankCode(slot=None, gate=0, near=0x630000, routines=None)
BANK = 64
BEARINGS = Bearings(
    {
        COUNT: (EffectKind.COUNTED, BANK),
        ENTER: (EffectKind.ENTERED, BANK),
        LEAVE: (EffectKind.LEFT, BANK),
        LEAVE_TAIL: (EffectKind.LEFT, BANK),
    },
    {0x208: BANK},
    range(PATCH, 0x640000),
)
NUMBERS = "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()  # noqa: SIM905
SITE, DONE, AGAIN, FOLLOW = Step(Op.SITE), Step(Op.DONE), Step(Op.AGAIN), Step(Op.FOLLOW)


def patch_positions(planned, bias, patch, bearings, *, looped=False):
    """Return the recipes of a patch that is followed as a whole, by offset; none where its code is not understood."""
    walk = Walk(planned, bias, patch, bearings)
    return recipes(walk, overwritten(walk), looped=looped) if walk.run() else {}


class Patch:
    """An emitted patch, its recipes, and its instructions."""

    def __init__(self, code, *wants, strategy=Strategy.JUMP, kind=ActionKind.COUNT, bank=SLOTS, dead=None, **options):
        insns = tuple(decode_range(bytes.fromhex(code), LINK))
        made = [Want(LINK + offset, want, *rest) for offset, want, *rest in wants]
        retarget = strategy is Strategy.RETARGET
        at = insns[0].end - 4 if retarget else LINK
        self.planned = PlannedSplice(strategy, LINK, insns, made, 4 if retarget else 5, at)
        source = ActionSource(lambda want: (Action(kind, 0x1000, bank),), lambda want: dead or Clobbers())
        self.emitted = emit_patch(self.planned, PATCH, BIAS, source, {})
        self.positions = patch_positions(self.planned, BIAS, self.emitted, BEARINGS, **options)
        self.walk = Walk(self.planned, BIAS, self.emitted, BEARINGS)
        assert self.walk.run()
        self.lines = [(at - PATCH, text) for at, _, text in disassemble.format(self.emitted.code, PATCH)]

    def at(self, beginning, number=0):
        """Return the recipe in front of the n-th instruction that begins so."""
        return self.positions.get([at for at, text in self.lines if text.startswith(beginning)][number])


def ops(recipe):
    return None if recipe is None else [step.op for step in recipe]


def index(name):
    return frame_index(NUMBERS.index(name))


PUSH_MOV = "55 48 89 e5 90"  # push rbp; mov rbp, rsp; nop
ENTRY = (0, WantKind.ENTRY)


def test_nothing_is_to_be_done_at_the_first_instruction():
    assert Patch(PUSH_MOV, ENTRY).at("lea rsp") == (SITE, AGAIN)


def test_registers_are_taken_from_where_the_patch_keeps_them():
    patch = Patch(PUSH_MOV, ENTRY)
    assert patch.at("push rcx") == (Step(Op.STACK, b=136), SITE, AGAIN)
    load_rax, load_rcx = Step(Op.LOAD, index("rax"), 8), Step(Op.LOAD, index("rcx"), 0)
    assert patch.at("test") == (load_rax, load_rcx, Step(Op.STACK, b=144), SITE, AGAIN)


def test_flags_are_taken_from_where_the_patch_keeps_them():
    patch = Patch(PUSH_MOV, ENTRY, dead=Clobbers(("r10", "r11")))
    rax = Step(Op.MOVE, index("rax"), index("r10"))
    assert patch.at("je") == (Step(Op.FLAGS_IN, index("rax")), rax, SITE, AGAIN)
    place = next(at for at, text in patch.lines if text.startswith("inc")) + 3
    taken_back = Step(Op.UNCOUNT, b=BANK, c=place)
    assert patch.at("sahf") == (Step(Op.HIGH_FLAGS_IN, index("rax")), rax, taken_back, SITE, AGAIN)
    assert patch.at("mov rax") == (rax, taken_back, SITE, AGAIN)


def test_a_hit_is_taken_back_once_it_is_counted_and_not_before():
    patch = Patch(PUSH_MOV, ENTRY, dead=Clobbers(("rax",), flags=True))
    assert patch.at("inc") == (SITE, AGAIN)
    assert ops(patch.at("push rbp")) == [Op.IF_SYNCHRONOUS, Op.UNCOUNT, Op.SITE, Op.AGAIN, Op.SITE, Op.DONE]


def test_a_first_hit_is_taken_back_by_the_argument_of_its_routine():
    patch = Patch(PUSH_MOV, ENTRY, dead=Clobbers(("rax",), flags=True))
    argument = next(at for at, text in patch.lines if text.startswith("push 0x1000")) + 1
    assert patch.at("call") == (Step(Op.STACK, b=136), SITE, AGAIN)
    assert patch.at("lea rsp, [rsp+0x88]") == (
        Step(Op.STACK, b=136), Step(Op.UNCOUNT, b=BANK, c=argument), SITE, AGAIN,
    )  # fmt: skip


def test_atomic_counters():
    patch = Patch(PUSH_MOV, ENTRY, bank=ATOMIC, dead=Clobbers(flags=True))
    place = next(at for at, text in patch.lines if text.startswith("lock inc")) + 4
    assert Step(Op.UNCOUNT_NEAR, c=place) in patch.at("push rbp")


def test_the_way_back_is_followed():
    assert Patch(PUSH_MOV, ENTRY).at(f"jmp {LINK + BIAS + 5:#x}") == (FOLLOW, DONE)


def test_instructions_that_may_run_again_do():
    # push rbp; mov rbp, rsp; sub rsp, 0x10; mov [rsp+8], rdi; nop
    patch = Patch("55 48 89 e5 48 83 ec 10 48 89 7c 24 08 90", ENTRY, dead=Clobbers(("rax",), flags=True))
    rbp = Step(Op.LOAD, index("rbp"), 16)
    assert patch.at("mov [rsp+0x8]")[1:3] == (rbp, Step(Op.STACK, b=0x18))
    assert patch.at("nop") is None  # another thread may know the place, and have answered there


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("48 89 f2 48 89 fe bf 01 00 00 00 90", [("rdi", "rsi"), ("rsi", "rdx")]),  # mov rdx, rsi; mov rsi, rdi
        ("48 89 f8 48 89 f7 48 89 c6 90", [("rsi", "rdi"), ("rdi", "rax")]),  # mov rax, rdi; mov rdi, rsi; mov rsi, rax
        ("48 89 f8 48 89 f7 48 89 c6 31 c0 90", None),  # the same; xor eax, eax: each is where the other has to be
    ],
)
def test_a_register_is_brought_back_before_what_it_is_in_is_overwritten(code, steps):
    dead = Clobbers(("rax", "rdx", "rcx", "r11"), flags=True)
    recipe = Patch(code, ENTRY, dead=dead).at("nop")
    moves = None if recipe is None else [step for step in recipe if step.op is Op.MOVE]
    assert moves == (None if steps is None else [Step(Op.MOVE, index(to), index(source)) for to, source in steps])


@pytest.mark.parametrize("code", ["53 4c 8b 3c cc 31 db 90", "53 65 4c 8b 3c 24 31 db 90"])
def test_what_is_read_from_elsewhere_is_not_what_was_pushed(code):
    # push rbx; mov r15, [rsp+rcx*8] or gs:[rsp]; xor ebx, ebx; nop
    recipe = Patch(code, ENTRY, dead=Clobbers(("r15",), flags=True)).at("nop")
    assert Step(Op.LOAD, index("rbx"), 0) in recipe
    assert not [step for step in recipe if step.op is Op.MOVE]


@pytest.mark.parametrize(
    ("code", "again"),
    [
        ("5b 90 90 90 90", True),  # pop rbx
        ("48 01 f8 90 90", False),  # add rax, rdi
        ("89 f8 90 90 90", True),  # mov eax, edi: overwritten before it is read
        ("48 8b 07 90 90", True),  # mov rax, [rdi]
        ("48 ff 04 24 90", False),  # inc qword [rsp]
        ("0f 28 c1 90 90", False),  # movaps xmm0, xmm1
        ("c9 90 90 90 90", False),  # leave
        ("48 81 c4 00 02 00 00 90", True),  # add rsp, 0x200
        ("5b 48 81 c4 00 02 00 00 90", False),  # pop rbx; add rsp, 0x200: what was read may be overwritten by then
        ("48 81 c4 78 00 00 00 5b 90", True),
        ("5c 90 90 90 90", False),  # pop rsp
        ("66 50 90 90 90", False),  # push ax
        ("48 8b 04 cd 00 00 00 00 48 81 c4 00 02 00 00 90", False),  # mov rax, [rcx*8]; add rsp, 0x200
    ],
)
def test_what_may_run_again(code, again):
    patch = Patch(code, ENTRY, dead=Clobbers(("r11",), flags=True))
    assert (patch.at("nop") is not None) == again


def test_a_fault_behind_the_first_instruction_is_left_as_it_is():
    patch = Patch("55 48 8b 07 90", ENTRY)  # push rbp; mov rax, [rdi]; nop
    recipe = patch.at("mov rax, [rdi]")
    assert recipe[0] == Step(Op.IF_SYNCHRONOUS, b=8 * (len(recipe) - 2))
    assert recipe[-2:] == (AGAIN, DONE)


def test_a_fault_in_the_first_instruction_shows_the_site_and_stays_counted():
    recipe = Patch("48 8b 07 90 90", ENTRY).at("mov rax, [rdi]")
    skipped = recipe[0].b // 8
    assert recipe[0].op is Op.IF_SYNCHRONOUS
    assert recipe[1 + skipped :] == (SITE, DONE)


def test_calls_are_undone_as_long_as_they_have_not_happened():
    patch = Patch("ff 15 00 01 00 00", (0, WantKind.OFFSET), dead=Clobbers(("rax",), flags=True))
    recipe = patch.at("jmp qword")
    assert recipe[1:3] == (Step(Op.STACK, b=8), Step(Op.UNCOUNT, b=BANK, c=recipe[2].c))
    assert recipe[-3:] == (Step(Op.STACK, b=8), SITE, DONE)
    direct = Patch("e8 00 01 00 00", (0, WantKind.OFFSET))
    assert direct.at(f"jmp {LINK + BIAS + 0x105:#x}") == (FOLLOW, DONE)


def test_a_retargeted_call_has_pushed_already():
    patch = Patch("e8 00 01 00 00", (0, WantKind.OFFSET), strategy=Strategy.RETARGET)
    assert patch.at("lea rsp") == (Step(Op.STACK, b=8), SITE, AGAIN)
    assert patch.at("jmp") == (FOLLOW, DONE)


def test_a_recorded_exit_is_shown_as_over():
    patch = Patch("5b 5d c3", (2, WantKind.EXIT), kind=ActionKind.LEAVE)
    assert patch.at("lea rsp, [rsp+0x88]") == (Step(Op.STACK, b=136), Step(Op.RETURN), DONE)
    assert patch.at("ret") == (Step(Op.RETURN), DONE)
    tail = Patch("0f 84 00 01 00 00", (0, WantKind.EXIT, True), kind=ActionKind.LEAVE_TAIL)
    assert ops(tail.at("lea rsp, [rsp+0x88]")) == [Op.STACK, Op.FOLLOW, Op.DONE]


def test_an_entered_call_is_taken_back():
    patch = Patch(PUSH_MOV, ENTRY, kind=ActionKind.ENTER)
    assert ops(patch.at("lea rsp, [rsp+0x88]")) == [Op.STACK, Op.UNENTER, Op.SITE, Op.AGAIN]


def test_who_comes_by_a_branch_behind_the_counter_is_not_taken_back():
    patch = Patch(PUSH_MOV, ENTRY, looped=True)
    assert patch.at("push rbp")[0] == Step(Op.IF_INTERRUPTED)


def test_what_is_not_understood_is_not_taken_back():
    """Counters of a bank that nobody has heard of, routines that do who knows what: the true pc stays behind them."""
    patch = Patch(PUSH_MOV, ENTRY, kind=ActionKind.ENTER)
    found = patch_positions(patch.planned, BIAS, patch.emitted, Bearings({}, {}, BEARINGS.code))
    texts = [text.split()[0] for at, text in patch.lines if at in found]
    assert texts == ["lea", "push", "call", "push", "jmp"]
    counting = Patch(PUSH_MOV, ENTRY, dead=Clobbers(("rax",), flags=True))
    found = patch_positions(counting.planned, BIAS, counting.emitted, Bearings({}, {}, BEARINGS.code))
    texts = [text.split()[0] for at, text in counting.lines if at in found]
    assert texts == ["mov", "test", "je", "inc", "push", "jmp", "lea", "push", "call"]
    assert found[next(at for at, text in counting.lines if text == "push rbp")][0].op is Op.IF_SYNCHRONOUS


def test_calls_out_of_our_code_are_not_followed():
    patch = Patch(PUSH_MOV, ENTRY, kind=ActionKind.ENTER)
    assert patch_positions(patch.planned, BIAS, patch.emitted, Bearings({}, {}, range(PATCH, PATCH + 0x1000))) == {}


@pytest.mark.parametrize("flags", [False, True])
@pytest.mark.parametrize("bank", [SLOTS, ATOMIC], ids=["slots", "atomic"])
@pytest.mark.parametrize(
    "dead", [(), *[(name,) for name in SCRATCH_ORDER], SCRATCH_ORDER, ("rax", "r8"), ("r8", "rdi")]
)
def test_everything_that_is_not_dead_is_intact_at_the_displaced_copy(dead, bank, flags):
    """The proof that patches change no live register and no live flag, by every way through them."""
    patch = Patch(PUSH_MOV, ENTRY, (1, WantKind.OFFSET), bank=bank, dead=Clobbers(dead, flags))
    lost = overwritten(patch.walk)
    for original in (LINK + BIAS, LINK + BIAS + 1):
        assert {NUMBERS[number] for number in lost[original].registers} <= set(dead)
        assert flags or not lost[original].flags
    copies = dict(patch.emitted.copies)
    assert all(patch.walk.found[copies[original]].state.shift == 0 for original in (LINK + BIAS, LINK + BIAS + 1))
    assert patch.positions


def test_steps_out_of_routines():
    assert ops(BACK) == ops(FORWARD) == [Op.CALLER, Op.AGAIN]
    assert BACK[0].b == -5


@pytest.mark.parametrize("routine", ["count", "enter"])
def test_out_of_what_routines_call_all_registers_come_back(routine):
    """A thread's first hit makes its block in ``acquire``, which overwrites registers that its caller has saved."""
    facts = RoutineFacts(BankLayout(16, 4, 16), 0x1000_0000, 0x2000_0000, 0x220, 0)
    code, routines, _ = assemble_routines(facts, 0x3000_0000)
    found = routine_positions(code, 0x3000_0000, routines.stretches, 5, routines.finish)
    acquire = routines.stretches[0].start
    calls = [one for one in Decoder(64, code, ip=0x3000_0000) if one.near_branch_target == acquire]
    starts = {stretch.name: stretch.start for stretch in routines.stretches}
    call = next(one for one in calls if one.ip > starts[routine])
    recipe = found[call.ip - 0x3000_0000]
    restored = {step.a for step in recipe if step.op is Op.LOAD}
    assert {index("rax"), index("rcx"), index("rdx")} <= restored
    assert {step.op for step in recipe} & {Op.FLAGS_IMAGE, Op.FLAGS_AT}
