"""Lines that move: what is planned for them, and their code. The assembly stands beside the bytes."""

import pytest

from anyprobe.isa.decode import decode_range
from anyprobe.splice.apply.emission import of_one_bank
from anyprobe.splice.codegen.moved.fragments import Moving, can_move, is_described
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.routines import Routines
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import PlanDraft
from anyprobe.splice.plan.splices import Clobbers, Strategy, Want, WantKind
from support.planning import planner_for

BASE, BIAS, PATCH = 0x401000, 0x500000, 0xA00000
CODE = bytes.fromhex(
    "b8 01 00 00 00  85 ff  74 0c"  # 0: mov eax, 1; test edi, edi; je 21
    "b9 02 00 00 00  8b 0e  b8 03 00 00 00"  # 9: mov ecx, 2; mov ecx, [rsi]; mov eax, 3
    "83 c0 01  ff cf  75 f9  05 00 01 00 00 c3"  # 21: add eax, 1; dec edi; jne 21; 28: add eax, 256; ret
)
HEADS = (0, 9, 21, 28)
GATE, COUNT, SLOT = 0x9FF000, 0x9FE000, 0x200
BANK = BankCode(SLOT, GATE, 0, Routines(COUNT, COUNT, COUNT, COUNT))


def drafted(code_map, *offsets):
    planner = planner_for(code_map(BASE, CODE, [(0, len(CODE))]), Claims(), lambda _: False)
    return planner.draft(planner.context.code.function_at(BASE), [Want(BASE + at, WantKind.OFFSET) for at in offsets])


def planned(code_map, *offsets):
    return drafted(code_map, *offsets).finished()


def moved(plan, free=Clobbers(("r11", "rdx"), flags=True)):  # noqa: B008 - immutable
    moving = Moving(PATCH, BIAS, lambda want: Action(ActionKind.COUNT, 8 * (want.address - BASE), BANK), lambda _: free)
    code, patches = moving.write(plan.splices)
    return code, {splice.head - BASE: patch for splice, patch in patches.items()}


def test_a_line_takes_one_splice_and_moves_to_its_end(code_map):
    plan = planned(code_map, *HEADS)
    assert not plan.refused
    assert [(splice.strategy, splice.head - BASE, splice.end - BASE) for splice in plan.splices] == [
        (Strategy.JUMP, 0, 21),
        (Strategy.JUMP, 21, 34),
    ]
    assert [[want.address - BASE for want in splice.wants] for splice in plan.splices] == [[0, 9], [21, 28]]


def test_a_few_wants_are_not_worth_a_look_at_the_function(code_map):
    assert [splice.end - BASE for splice in planned(code_map, 0, 28).splices] == [5, 33]


def test_the_block_is_loaded_once_and_control_goes_straight_to_later_lines(code_map):
    code, patches = moved(planned(code_map, *HEADS))
    first, second = patches[0], patches[21]
    assert not is_described(first)
    texts = [insn.text for insn in decode_range(first.code + second.code, PATCH)]
    slow = {at + BIAS: place for at, place in ((BASE, first.starts[0][1]), (BASE + 21, second.starts[0][1]))}
    warm = second.address + 9 + 7 + 6  # behind mov, test and jz
    assert texts == [
        f"mov r11, fs:[{SLOT:#x}]", f"test [{GATE:#x}], r11", f"je {slow[BASE + BIAS]:#x}", "inc qword ptr [r11]",
        "mov eax, 0x1", "test edi, edi", f"je {warm:#x}",
        "inc qword ptr [r11+0x48]", "mov ecx, 0x2", "mov ecx, [rsi]", "mov eax, 0x3",
        f"mov r11, fs:[{SLOT:#x}]", f"test [{GATE:#x}], r11", f"je {slow[BASE + 21 + BIAS]:#x}",
        "inc qword ptr [r11+0xa8]", "add eax, 0x1", "dec edi", f"jne {BASE + 21 + BIAS:#x}",  # back: by the function
        "inc qword ptr [r11+0xe0]", "add eax, 0x100", "ret",
    ]  # fmt: skip
    assert code.startswith(first.code + second.code)


def test_the_slow_line_counts_by_the_routine_and_leads_back_into_the_function(code_map):
    code, patches = moved(planned(code_map, *HEADS))
    start = patches[0].starts[0][1]
    texts = [insn.text for insn in decode_range(code[start - PATCH :], start)]
    assert texts[:7] == [
        "lea rsp, [rsp-0x80]", "push 0x0", f"call {COUNT:#x}", "lea rsp, [rsp+0x88]",
        "mov eax, 0x1", "test edi, edi", f"je {BASE + 21 + BIAS:#x}",
    ]  # fmt: skip
    assert texts[7:12] == [
        "lea rsp, [rsp-0x80]", "push 0x48", f"call {COUNT:#x}", "lea rsp, [rsp+0x88]", "mov ecx, 0x2",
    ]  # fmt: skip
    assert texts[14] == f"jmp {BASE + 21 + BIAS:#x}"
    # threads that stand in the line are led to the slow one: no register of theirs has the block
    assert all(place >= start for _, place in (*patches[0].starts, *patches[21].starts))
    assert [old - BASE - BIAS for old, _ in patches[0].starts] == [0, 5, 7, 9, 14, 16]


def test_a_register_that_the_line_changes_holds_the_block_no_more(code_map):
    _, patches = moved(planned(code_map, *HEADS), Clobbers(("rcx",), flags=True))
    texts = [insn.text for insn in decode_range(patches[0].code, PATCH)]
    assert texts[7] == "inc qword ptr [rcx+0x48]"  # still held in front of: mov ecx, 2
    assert f"je {patches[21].address + 22:#x}" in texts
    after = [insn.text for insn in decode_range(patches[21].code, patches[21].address)]
    assert after[0] == f"mov rcx, fs:[{SLOT:#x}]"


def test_the_register_that_is_kept_for_longest_has_the_block(code_map):
    _, patches = moved(planned(code_map, *HEADS), Clobbers(("rcx", "r10"), flags=True))
    texts = [insn.text for insn in decode_range(patches[0].code, PATCH)]
    assert texts[0] == f"mov r10, fs:[{SLOT:#x}]"  # rcx is changed before the end of the line


def test_within_a_line_the_block_is_not_looked_at_again(code_map):
    def clobbers(want):
        return Clobbers({0: ("rcx",), 5: (), 9: ("rcx",), 14: ("rdx",)}[want.address - BASE], flags=True)

    plan = planned(code_map, 0, 5, 9, 14)
    moving = Moving(PATCH, BIAS, lambda want: Action(ActionKind.COUNT, 8 * (want.address - BASE), BANK), clobbers)
    _, patches = moving.write(plan.splices)
    patch = patches[plan.splices[0]]
    slow = patch.starts[0][1]
    assert [insn.text for insn in decode_range(patch.code, PATCH)] == [
        f"mov rcx, fs:[{SLOT:#x}]", f"test [{GATE:#x}], rcx", f"je {slow:#x}", "inc qword ptr [rcx]",
        "mov eax, 0x1",
        # rcx may hold something that is needed
        "lea rsp, [rsp-0x80]", "push rax", f"mov rax, fs:[{SLOT:#x}]", "inc qword ptr [rax+0x28]", "pop rax",
        "lea rsp, [rsp+0x80]",
        "test edi, edi", f"je {BASE + 21 + BIAS:#x}",
        f"mov rcx, fs:[{SLOT:#x}]", "inc qword ptr [rcx+0x48]", "mov ecx, 0x2",
        f"mov rdx, fs:[{SLOT:#x}]", "inc qword ptr [rdx+0x70]", "mov ecx, [rsi]", "mov eax, 0x3",
        f"jmp {BASE + 21 + BIAS:#x}",
    ]  # fmt: skip


def test_where_the_thread_may_have_changed_its_block_is_looked_at(code_map):
    code = bytes.fromhex("b8 01 00 00 00  f3 48 0f ae d7  85 ff  b9 02 00 00 00  85 c0  c3")
    # 0: mov eax, 1; wrfsbase rdi; 10: test edi, edi; mov ecx, 2; 17: test eax, eax; ret
    planner = planner_for(code_map(BASE, code, [(0, len(code))]), Claims(), lambda _: False)
    wants = [Want(BASE + at, WantKind.OFFSET) for at in (0, 10, 17, 19)]
    plan = planner.plan(planner.context.code.function_at(BASE), wants)
    free = {0: ("rdx",), 10: ("rcx",), 17: ("rdx",), 19: ("rdx",)}
    moving = Moving(
        PATCH, BIAS, lambda want: Action(ActionKind.COUNT, 8, BANK),
        lambda want: Clobbers(free[want.address - BASE], flags=True),
    )  # fmt: skip
    _, patches = moving.write(plan.splices)
    texts = [insn.text for insn in decode_range(patches[plan.splices[0]].code, PATCH)]
    loads = [number for number, text in enumerate(texts) if "fs:" in text]
    assert [texts[number + 1].startswith("test [") for number in loads] == [True, True, False]


@pytest.mark.parametrize("free", [Clobbers(("r11",)), Clobbers((), flags=True), Clobbers()])
def test_where_something_has_to_be_saved_it_is(code_map, free):
    _, patches = moved(planned(code_map, *HEADS), free)
    texts = [insn.text for insn in decode_range(patches[21].code, patches[21].address)]
    assert sum(text.startswith("mov r") and "fs:" in text for text in texts) == 2  # each counter loads the block itself
    assert ("lahf" in texts) is not free.flags


def test_only_plain_counters_of_threads_blocks_move(code_map):
    plan = planned(code_map, *HEADS)
    near = BankCode(None, 0, 0xB00000, None)
    assert can_move(plan.splices[0], lambda _: Action(ActionKind.COUNT, 0, BANK))
    assert not can_move(plan.splices[0], lambda _: Action(ActionKind.COUNT, 0, near))
    assert not can_move(plan.splices[0], lambda _: Action(ActionKind.ENTER, 0, BANK))
    assert not can_move(plan.splices[0], lambda _: None)


def test_lines_with_counters_in_several_banks_do_not_move(code_map):
    first, second = planned(code_map, *HEADS).splices
    later = BankCode(SLOT + 8, GATE + 8, 0, BANK.routines)

    def action_of(bank_of):
        return lambda want: Action(ActionKind.COUNT, 0, bank_of.get(want.address - BASE, BANK))

    assert of_one_bank([first, second], action_of({})) == [first, second]
    assert of_one_bank([first, second], action_of({21: later, 28: later})) == [first]
    assert of_one_bank([first, second], action_of({9: later})) == []
    assert of_one_bank([], action_of({})) == []


def test_the_splice_above_is_found_after_some_were_taken_out(code_map):
    plan = drafted(code_map, *HEADS)
    first, second = plan.splices
    assert plan.last_before(BASE + 20) is first
    assert plan.last_before(BASE + 21) is second
    plan.splices.remove(second)
    assert plan.last_before(BASE + 30) is first
    plan.splices.append(second)
    assert plan.last_before(BASE + 30) is second
    plan.splices.remove(first)
    assert plan.last_before(BASE + 20) is None
    assert PlanDraft().last_before(BASE) is None


def test_what_lies_below_the_first_byte_of_a_file_is_found_from_the_copy(code_map):
    """The vdso reads its clock below itself, where link-time addresses are negative."""
    code = bytes.fromhex("8b 05 00 c0 ff ff  85 ff  74 01  c3  b8 01 00 00 00 c3")
    # 0: mov eax, [rip-0x4000]; test edi, edi; je 11; ret; 11: mov eax, 1; ret
    planner = planner_for(code_map(0xAF0, code, [(0, len(code))]), Claims(), lambda _: False)
    plan = planner.plan(planner.context.code.function_at(0xAF0), [Want(0xAF0 + at, WantKind.OFFSET) for at in (0, 11)])
    moving = Moving(
        PATCH, BIAS, lambda want: Action(ActionKind.COUNT, 8, BANK), lambda _: Clobbers(("r11",), flags=True)
    )
    content, patches = moving.write(plan.splices)
    assert patches
    loads = [insn for insn in decode_range(content, PATCH) if insn.text.startswith("mov eax, [")]
    assert {insn.iced.ip_rel_memory_address for insn in loads} == {BIAS + 0xAF0 + 6 - 0x4000}


def test_where_instructions_lie_in_the_slow_line_is_known_one_by_one(code_map):
    code, patches = moved(planned(code_map, *HEADS))
    patch = patches[0]
    at = patch.starts[0][1]
    lines = {insn.address: insn.text for insn in decode_range(code[at - PATCH :], at)}
    assert [old - BASE - BIAS for old, _ in patch.copies] == [0, 5, 7, 9, 14, 16]
    assert [lines[place] for _, place in patch.copies] == [
        "mov eax, 0x1", "test edi, edi", f"je {BASE + 21 + BIAS:#x}", "mov ecx, 0x2", "mov ecx, [rsi]", "mov eax, 0x3",
    ]  # fmt: skip
    counted = [
        number for number, (start, copy) in enumerate(zip(patch.starts, patch.copies, strict=True)) if start != copy
    ]
    assert counted == [0, 3]
    assert all(lines[patch.starts[number][1]] == "lea rsp, [rsp-0x80]" for number in counted)
    assert len(patch.starts) == 6
    assert patch.starts[1:3] == patch.copies[1:3]
