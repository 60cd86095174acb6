"""Patches, read back as assembly. Link-time addresses are ``LINK``-based, the module is loaded ``BIAS`` higher."""

from dataclasses import replace

import pytest

from anyprobe.core.errors import InternalError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.counter_template import CounterTemplates
from anyprobe.splice.codegen.emit import (
    PATCH_ALIGNMENT,
    ActionSource,
    dead_springboard_bytes,
    emit_patch,
    estimate,
    head_bytes,
)
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.codegen.routines import Routines
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Pun, Strategy, Want, WantKind
from anyprobe.splice.regions.banks import Hook

LINK, BIAS, PATCH = 0x1000, 0x500000, 0x600000
SITE = LINK + BIAS
ROUTINES = Routines(0x620000, 0x620100, 0x620200, 0x620300)
SLOTS = BankCode(slot=0x208, gate=0x610000, near=0, routines=ROUTINES, view=0x640000, view_check=0x640800)
ATOMIC = BankCode(slot=None, gate=0, near=0x630000, routines=None)
EVERYTHING_LIVE = Clobbers()


def listing(code, address=PATCH):
    lines = disassemble.format(code, address)
    assert sum(len(raw) for _, raw, _ in lines) == len(code)
    assert not any("bad" in text for _, _, text in lines)
    return [text for _, _, text in lines]


def count_code(bank, clobbers, offset=0x48):
    writer = PatchWriter(PATCH)
    writer.action(Action(ActionKind.COUNT, offset, bank), clobbers)
    hot = len(writer.out)
    return listing(writer.finish()), hot


def splice_of(code, *wants, strategy=Strategy.JUMP):
    insns = tuple(decode_range(bytes.fromhex(code), LINK))
    made = [Want(LINK + offset, kind, *rest) for offset, kind, *rest in wants]
    retarget = strategy is Strategy.RETARGET
    write_at = insns[0].end - 4 if retarget else LINK
    return PlannedSplice(strategy, LINK, insns, made, 4 if retarget else 5, write_at)


def emit(splice, kind=ActionKind.ENTER, bank=SLOTS, after=None):
    source = ActionSource(lambda want: (Action(kind, 0x1000, bank),), lambda want: EVERYTHING_LIVE)
    return emit_patch(splice, PATCH, BIAS, source, after or {})


def call_of(routine):
    return ["lea rsp, [rsp-0x80]", "push 0x1000", f"call {routine:#x}", "lea rsp, [rsp+0x88]"]


# -- counters


def test_a_count_with_a_dead_register_and_dead_flags_saves_nothing():
    lines, hot = count_code(SLOTS, Clobbers(("rdx", "r9"), flags=True))
    assert [line.split()[0] for line in lines[:4]] == ["mov", "test", "je", "inc"]
    assert lines[0] == "mov rdx, fs:[0x208]"
    assert lines[1] == "test [0x610000], rdx"
    assert lines[3] == "inc qword ptr [rdx+0x48]"
    assert lines[2] == f"je {PATCH + hot:#x}"


@pytest.mark.parametrize("register", ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"])
def test_each_scratch_register(register):
    lines, _ = count_code(SLOTS, Clobbers((register,), flags=True))
    assert lines[0] == f"mov {register}, fs:[0x208]"
    assert lines[1] == f"test [0x610000], {register}"
    assert lines[3] == f"inc qword ptr [{register}+0x48]"


def test_a_count_with_dead_flags_saves_a_register_below_the_red_zone():
    lines, _ = count_code(SLOTS, Clobbers(flags=True))
    assert lines[:2] == ["lea rsp, [rsp-0x80]", "push rax"]
    assert lines[2] == "mov rax, fs:[0x208]"
    assert lines[6:8] == ["pop rax", "lea rsp, [rsp+0x80]"]


def saving(*saved):
    """Return how a count with live flags begins and ends."""
    flags = ["lahf", "seto al"], ["add al, 0x7f", "sahf"]
    if not saved:
        return flags
    if saved[0].startswith("mov"):
        _, to, what = saved[0].replace(",", "").split()
        return [saved[0], *flags[0]], [*flags[1], f"mov {what}, {to}"]
    pushes, pops = [f"push {name}" for name in saved], [f"pop {name}" for name in reversed(saved)]
    return ["lea rsp, [rsp-0x80]", *pushes, *flags[0]], [*flags[1], *pops, "lea rsp, [rsp+0x80]"]


@pytest.mark.parametrize(
    ("dead", "saved", "scratch"),
    [
        ((), ("rax", "rcx"), "rcx"),
        (("rax",), ("rcx",), "rcx"),
        (("rcx",), ("rax",), "rcx"),
        (("r11",), ("rax",), "r11"),
        (("rax", "r8"), (), "r8"),
        (("rdi", "rcx"), ("mov rdi, rax",), "rcx"),
        (("r10", "r11"), ("mov r10, rax",), "r11"),
    ],
)
def test_a_count_with_live_flags_saves_them_and_what_it_needs_for_it(dead, saved, scratch):
    lines, hot = count_code(SLOTS, Clobbers(dead))
    begin, end = saving(*saved)
    assert lines[: len(begin)] == begin
    body = lines[len(begin) :]
    assert body[0] == f"mov {scratch}, fs:[0x208]"
    assert body[1] == f"test [0x610000], {scratch}"
    assert body[3] == f"inc qword ptr [{scratch}+0x48]"
    assert body[4 : 4 + len(end)] == end
    assert body[2] == f"je {PATCH + hot:#x}"


def test_the_first_hit_calls_the_routine_and_comes_back_behind_the_increment():
    lines, hot = count_code(SLOTS, Clobbers(("rax",), flags=True))
    cold = ["lea rsp, [rsp-0x80]", "push 0x48", "call 0x620000", "lea rsp, [rsp+0x88]"]
    assert lines[4:] == [*cold, f"jmp {PATCH + hot:#x}"]


def test_atomic_counts():
    assert count_code(ATOMIC, Clobbers(flags=True))[0] == ["lock inc qword ptr [0x630048]"]


@pytest.mark.parametrize(
    ("dead", "saved"), [((), ("rax",)), (("rax", "rcx"), ()), (("r9",), ("mov r9, rax",))], ids=["all", "rax", "r9"]
)
def test_atomic_counts_with_live_flags(dead, saved):
    begin, end = saving(*saved)
    assert count_code(ATOMIC, Clobbers(dead))[0] == [*begin, "lock inc qword ptr [0x630048]", *end]


# -- timing


@pytest.mark.parametrize(
    ("kind", "routine"),
    [(ActionKind.ENTER, 0x620100), (ActionKind.LEAVE, 0x620200), (ActionKind.LEAVE_TAIL, 0x620300)],
)
def test_timing_calls_its_routine(kind, routine):
    patch = emit(splice_of("b8 01 00 00 00", (0, WantKind.ENTRY)), kind)
    assert listing(patch.code) == [*call_of(routine), "mov eax, 0x1", f"jmp {SITE + 5:#x}"]


# -- patches


def test_displaced_instructions_and_the_way_back():
    # push rbp; mov rbp, rsp; lea rax, [rip+0x100]
    patch = emit(splice_of("55 48 89 e5 48 8d 05 00 01 00 00", (0, WantKind.ENTRY)))
    lines = listing(patch.code)
    assert lines[4:] == ["push rbp", "mov rbp, rsp", f"lea rax, [{SITE + 11 + 0x100:#x}]", f"jmp {SITE + 11:#x}"]
    assert patch.starts[0] == (SITE, PATCH)
    assert [old for old, _ in patch.copies] == [SITE, SITE + 1, SITE + 4, SITE + 11]
    texts = {address: text for address, _, text in disassemble.format(patch.code, PATCH)}
    assert [texts[copy].split()[0] for _, copy in patch.copies] == ["push", "mov", "lea", "jmp"]


def test_nothing_comes_back_behind_a_return():
    # xor eax, eax; ret
    patch = emit(splice_of("31 c0 c3", (2, WantKind.EXIT)), ActionKind.LEAVE)
    assert listing(patch.code) == ["xor eax, eax", *call_of(0x620200), "ret"]
    assert patch.starts == ((SITE, PATCH), (SITE + 2, PATCH + 2))
    assert patch.end == PATCH + len(patch.code)


def test_actions_of_one_instruction_run_in_their_order():
    kinds = {WantKind.ENTRY: ActionKind.ENTER, WantKind.OFFSET: ActionKind.LEAVE_TAIL, WantKind.EXIT: ActionKind.LEAVE}
    wants = [(0, kind) for kind in (WantKind.EXIT, WantKind.OFFSET, WantKind.ENTRY)]
    source = ActionSource(lambda want: (Action(kinds[want.kind], 0x1000, SLOTS),), lambda want: EVERYTHING_LIVE)
    patch = emit_patch(splice_of("c3", *wants), PATCH, BIAS, source, {})
    assert listing(patch.code) == [*call_of(0x620100), *call_of(0x620300), *call_of(0x620200), "ret"]


@pytest.mark.parametrize("code", ["74 20", "0f 84 1c 00 00 00"], ids=["short", "near"])
def test_a_conditional_exit_acts_on_its_taken_edge_only(code):
    splice = splice_of(code, (0, WantKind.EXIT, True))
    patch = emit(splice, ActionKind.LEAVE_TAIL)
    lines = [(address, text) for address, _, text in disassemble.format(patch.code, PATCH)]
    assert lines[0][1] == f"je {lines[2][0]:#x}"
    assert lines[1][1] == f"jmp {splice.end + BIAS:#x}"
    assert [text for _, text in lines[2:]] == [*call_of(0x620300), f"jmp {SITE + 0x22:#x}"]


def test_a_conditional_exit_without_such_a_form_is_refused():
    refusal = emit(splice_of("e3 20", (0, WantKind.EXIT, True)))  # jrcxz
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NO_DISPLACED_FORM


def test_a_branch_back_in_the_entry_s_own_patch_goes_behind_the_handlers():
    # dec edi; nop; jne entry
    patch = emit(splice_of("ff cf 90 75 fb", (0, WantKind.ENTRY), (3, WantKind.LOOP)))
    assert patch.after == dict(patch.copies)[SITE] == PATCH + sum(map(len, calling_bytes()))
    assert f"jne {patch.after:#x}" in listing(patch.code)


def calling_bytes():
    return [raw for _, raw, _ in disassemble.format(emit(splice_of("c3", (0, WantKind.ENTRY))).code, PATCH)[:4]]


def test_a_branch_to_the_endbr64_in_front_goes_behind_the_handlers_too():
    # dec edi; nop; jne entry - 4
    patch = emit(splice_of("ff cf 90 75 f7", (0, WantKind.ENTRY), (3, WantKind.LOOP)))
    assert f"jne {patch.after:#x}" in listing(patch.code)


def test_a_branch_back_from_another_patch_goes_behind_the_handlers():
    # jne LINK - 0x10, where the function begins
    splice = splice_of("75 ee 90 90 90", (0, WantKind.LOOP))
    patch = emit(splice, after={SITE - 0x10: 0x655555})
    assert listing(patch.code)[0] == "jne 0x655555"


def test_calls_to_the_entry_are_calls():
    # call LINK - 0x10: recursion is an entry
    patch = emit(splice_of("e8 eb ff ff ff", (0, WantKind.OFFSET)), after={SITE - 0x10: 0x655555})
    lines = listing(patch.code)
    assert f"push {SITE + 5:#x}" in lines
    assert f"jmp {SITE - 0x10:#x}" in lines


def test_a_retargeted_branch_goes_on_to_its_destination():
    # je LINK + 0x106
    splice = splice_of("0f 84 00 01 00 00", (0, WantKind.EXIT, True), strategy=Strategy.RETARGET)
    patch = emit(splice, ActionKind.LEAVE_TAIL)
    assert listing(patch.code) == [*call_of(0x620300), f"jmp {SITE + 0x106:#x}"]
    loop = splice_of("0f 84 00 01 00 00", (0, WantKind.LOOP), strategy=Strategy.RETARGET)
    assert listing(emit(loop, after={SITE + 0x106: 0x655555}).code) == ["jmp 0x655555"]


def test_what_is_out_of_reach_is_refused():
    source = ActionSource(lambda want: (), lambda want: EVERYTHING_LIVE)
    splice = splice_of("48 8d 05 00 01 00 00", (0, WantKind.ENTRY))  # lea rax, [rip+0x100]
    outcome = emit_patch(splice, SITE + (1 << 31) + 0x1000, BIAS, source, {})
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.NO_DISPLACED_FORM


EACH_KIND = [
    "48 89 e5 5d 0f 1f 44 00 00",  # mov rbp, rsp; pop rbp; nop dword [rax+rax]
    "62 f1 7c 48 10 84 88 00 01 00 00 2e 2e 2e 2e 2e 2e 2e 48 01 c8",  # vmovups zmm0, [..]; padded add
    "48 8b 05 00 01 00 00 62 f1 7c 48 10 05 00 01 00 00",  # mov rax, [rip+..]; vmovups zmm0, [rip+..]
    "74 20 0f 8f 00 01 00 00",  # je; jg
    "67 e2 20 e3 20",  # loop; jrcxz
    "e8 00 01 00 00",
    "ff 15 00 01 00 00 2e ff 94 c8 00 01 00 00 ff 54 24 10",  # call [rip+..], cs call [rax+rcx*8+..], [rsp+16]
    "e9 00 01 00 00",
    "ff 25 00 01 00 00",
    "0f 05 f3 a4 c3",  # syscall; rep movsb; ret
    "0f 0b",
]


@pytest.mark.parametrize("bank", [SLOTS, ATOMIC], ids=["slots", "atomic"])
@pytest.mark.parametrize("code", EACH_KIND)
def test_counters_fit_their_estimate_where_they_have_to_save_everything(code, bank):
    insns = decode_range(bytes.fromhex(code), LINK)
    splice = splice_of(code, *[(insn.address - LINK, WantKind.OFFSET) for insn in insns])
    for want in splice.wants:
        want.tag = Hook(ActionKind.COUNT)
    assert len(emit(splice, ActionKind.COUNT, bank).code) + PATCH_ALIGNMENT - 1 <= estimate(splice)


def test_counters_of_changed_branches_fit_their_estimate():
    for code in ("0f 84 00 01 00 00", "e9 00 01 00 00", "e8 00 01 00 00"):
        splice = splice_of(code, (0, WantKind.OFFSET), strategy=Strategy.RETARGET)
        splice.wants[0].tag = Hook(ActionKind.COUNT)
        assert len(emit(splice, ActionKind.COUNT).code) + PATCH_ALIGNMENT - 1 <= estimate(splice)


@pytest.mark.parametrize("kind", [ActionKind.COUNT, ActionKind.ENTER, ActionKind.LEAVE, ActionKind.VIEW])
def test_other_patches_fit_their_estimate(kind):
    splice = splice_of("55 ff c0 74 20 c3", (0, WantKind.ENTRY), (1, WantKind.OFFSET), (3, WantKind.EXIT, True))
    for want in splice.wants:
        want.tag = Hook(kind)
    for bank in (SLOTS, ATOMIC) if kind is ActionKind.COUNT else (SLOTS,):
        assert len(emit(splice, kind, bank).code) + PATCH_ALIGNMENT - 1 <= estimate(splice)


# -- heads


def head_texts(splice, target):
    return listing(head_bytes(splice, BIAS, target), splice.write_at + BIAS)


def test_the_head_of_a_jump():
    assert head_texts(splice_of("b8 01 00 00 00"), PATCH) == [f"jmp {PATCH:#x}"]


@pytest.mark.parametrize("code", ["0f 84 00 01 00 00", "e9 00 00 00 00", "e8 00 00 00 00"])
def test_the_head_of_a_retargeted_branch(code):
    splice = splice_of(code, strategy=Strategy.RETARGET)
    opcode = bytes.fromhex(code)[:-4]
    (text,) = listing(opcode + head_bytes(splice, BIAS, PATCH), SITE)
    assert text.split()[1] == f"{PATCH:#x}"


def test_the_head_of_a_pun():
    pun = Pun(prefixes=1, free=2, base=LINK + 6 + 0x123_0000)
    splice = replace(splice_of("31 c0", strategy=Strategy.PUNNED), pun=pun)
    raw = head_bytes(splice, BIAS, SITE + 6 + 0x123_4567)
    assert raw == b"\x36\xe9\x67\x45"
    # with the bytes that follow
    assert listing(raw + b"\x23\x01", SITE)[0].split()[-1] == f"{SITE + 6 + 0x123_4567:#x}"


@pytest.mark.parametrize("distance", [-120, 40, 129])
def test_the_head_of_a_short_jump(distance):
    splice = replace(splice_of("31 c0", strategy=Strategy.SHORT), dead_springboard=LINK + distance)
    assert head_texts(splice, PATCH) == [f"jmp {SITE + distance:#x}"]
    onward = dead_springboard_bytes(splice, BIAS, PATCH)
    assert listing(onward, SITE + distance) == [f"jmp {PATCH:#x}"]


# -- templates

DEAD_OR_ALIVE = [
    Clobbers(),
    Clobbers((), flags=True),
    Clobbers(("r11", "rax"), flags=True),
    Clobbers(("rdx",), flags=True),
]


@pytest.mark.parametrize("clobbers", DEAD_OR_ALIVE, ids=str)
@pytest.mark.parametrize(
    "code",
    [
        "5589e54883ec10",
        "4883ec1889f8",
        "b801000000",
        "e8000000004889e5",  # call
        "488b0510000000",  # mov rax, [rip+0x10]
        "85ff7e0a4889e5",  # test edi, edi; jle short; mov rbp, rsp
        "4885ff0f8410000000",  # test rdi, rdi; je
        "e3057510e800000000",  # jrcxz; jne short; call
    ],
)
@pytest.mark.parametrize(
    ("kind", "does"),
    [(WantKind.ENTRY, ActionKind.COUNT), (WantKind.OFFSET, ActionKind.COUNT), (WantKind.ENTRY, ActionKind.ENTER)],
)
def test_a_patch_filled_into_a_template_is_the_patch_that_would_be_written(clobbers, code, kind, does):
    templates = CounterTemplates()
    for address, offset in ((PATCH, 0x40), (PATCH + 0x150, 0x48), (PATCH - 0x40000, 0x12340)):
        splice = splice_of(code, (0, kind))
        action = Action(does, offset, SLOTS)
        filled = templates.fill(splice, address, BIAS, action, lambda: clobbers)
        source = ActionSource(lambda want, action=action: (action,), lambda want: clobbers)
        assert filled is not None
        assert (len(filled.starts), len(filled.copies)) == (len(splice.insns), len(splice.insns) + 1)
        told = replace(filled, starts=tuple(filled.starts), copies=tuple(filled.copies))
        written = emit_patch(splice, address, BIAS, source, {})
        assert told == written
        assert told.front == written.front
        assert filled.copies[-1] == told.copies[-1]


@pytest.mark.parametrize(
    "splice",
    [
        splice_of("85ff7efc4889e5", (0, WantKind.ENTRY)),
        splice_of("85ff7ef84889e5", (0, WantKind.ENTRY)),
        splice_of("31c0e910000000", (0, WantKind.ENTRY)),
        splice_of("31c031d2c3", (0, WantKind.ENTRY)),
        splice_of("0f054889e5", (0, WantKind.ENTRY)),
        splice_of("5589e54883ec10", (0, WantKind.ENTRY), (1, WantKind.OFFSET)),
        splice_of("5589e54883ec10", (1, WantKind.OFFSET)),
        splice_of("e800000000", (0, WantKind.ENTRY), strategy=Strategy.RETARGET),
    ],
    ids=["back", "back to endbr64", "jump", "return", "system call", "two wants", "not at the head", "retargeted"],
)
def test_what_is_not_simple_has_no_template(splice):
    action = Action(ActionKind.COUNT, 0x40, SLOTS)
    assert CounterTemplates().fill(splice, PATCH, BIAS, action, Clobbers) is None


def test_a_branch_that_goes_behind_what_runs_elsewhere_has_no_template():
    splice, action = splice_of("85ff7e0a4889e5", (0, WantKind.ENTRY)), Action(ActionKind.COUNT, 0x40, SLOTS)
    target = splice.insns[1].target + BIAS
    assert CounterTemplates().fill(splice, PATCH, BIAS, action, Clobbers, {target: PATCH + 0x100}) is None
    assert CounterTemplates().fill(splice, PATCH, BIAS, action, Clobbers, {target + 1: PATCH + 0x100}) is not None


def test_other_actions_and_atomic_counters_have_no_template():
    splice = splice_of("b801000000", (0, WantKind.ENTRY))
    for action in (Action(ActionKind.LEAVE, 0x40, SLOTS), Action(ActionKind.COUNT, 0x40, ATOMIC)):
        assert CounterTemplates().fill(splice, PATCH, BIAS, action, Clobbers) is None
    assert splice.head == LINK


@pytest.mark.parametrize(("code", "end"), [("0f 0b", 2), ("f4", 1), ("cc", 1)])
def test_a_signal_handler_may_go_on_behind_an_exception_that_is_meant(code, end):
    """ud2, hlt, int3: a handler that skips the copy finds the way back behind it."""
    patch = emit(splice_of(code, (0, WantKind.OFFSET)), ActionKind.COUNT, ATOMIC)
    assert f"jmp {SITE + end:#x}" in listing(patch.code)


@pytest.mark.parametrize("kind", [ActionKind.VIEW, ActionKind.HANDLER])
def test_no_patch_leads_to_a_routine_that_was_never_placed(kind):
    """A bank without thread slots has none; in a program below 2 GiB the call of address 0 could be encoded."""
    splice = splice_of("55 48 89 e5 c3", (0, WantKind.ENTRY))
    splice.wants[0].tag = Hook(kind)
    with pytest.raises(InternalError, match="address 0"):
        emit(splice, kind, ATOMIC)
