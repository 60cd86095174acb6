import pytest

from anyprobe.binary.flow.blocks import calls_of, run_starts
from anyprobe.binary.flow.exits import ExitKind
from anyprobe.core.refusal import Reason, Refusal
from support.module_under_test import Module, function

DESCRIBED = ".cfi_startproc\n {}\n .cfi_endproc"
"""Code that an unwind entry tells of, as all that compilers make."""


def exits(function):
    return [(e.address - function.start, e.kind.value, e.conditional, e.indirect) for e in function.exits.found]


def run_texts(function, offset):
    return [insn.text.split()[0] for insn in function.lines.around(function.start + offset)]


def reasons(module, low, high):
    return {address - low: why.split(" from")[0] for address, why in module.map.entries.enterable(low, high)}


# -- functions and their bounds


def test_padding_is_no_part_of_the_function(build):
    module = Module.assembled(build, function("padded", "ret\n .p2align 4"), function("following", "ret"))
    assert module.texts("padded") == ["ret"]
    assert module["padded"].lines.padding_after == 15


def test_zeros_are_no_padding_to_write_to(build):
    """They may be constants: what reads them does not take their address."""
    module = Module.assembled(
        build,
        function("reads", "movdqa xmm0, [rip+zero]\n ret") + ".p2align 4\nzero: .quad 0, 0\n",
        function("inside", "jmp 1f\n .quad 0\n 1: ret"),
    )
    assert module["reads"].lines.padding_after == 7
    inside = module["inside"]
    assert inside.lines.dead_bytes_after(inside.insns[0].end) == 0


def test_padding_that_something_jumps_to_is_not_dead(build):
    module = Module.assembled(
        build,
        function("lone", "ret") + "nop\n nop\nlanding: nop\n nop\n nop\n nop\n",
        function("jumper", "jmp landing"),
    )
    assert module["lone"].lines.padding_after == 2


def test_no_padding_behind_what_falls_through(build):
    module = Module.assembled(build, function("falling", "nop"), function("following", "ret"))
    assert module["falling"].lines.padding_after == 0


def test_a_function_that_runs_on_into_the_next_one_ends_with_its_last_instruction(build):
    """As those of glibc do that check a length: what follows them is the function that they check it for."""
    checked = "cmp ecx, edx\n jb elsewhere\n .p2align 4"
    loops = ".Lagain: dec edi\n jne .Lagain"
    code = (("plain", "inc edi"), ("checked", checked), ("copy", "ret"), ("loops", loops), ("traps", "nop\n int3"))
    module = Module.assembled(build, *(function(*each) for each in code), function("elsewhere", "ret"))
    assert exits(module["plain"]) == [(0, "tail", False, False)]
    assert exits(module["checked"])[-1][1:] == ("tail", False, False)
    assert module["checked"].exits.complete is None
    assert module["loops"].exits.complete.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert module["loops"].exits.found == ()


def test_a_last_jump_that_leaves_either_way(build):
    code = "cmp ecx, edx\n .globl elsewhere\n .byte 0x0f, 0x82\n .long elsewhere - . - 4"
    module = Module.assembled(build, function("checked", code), function("copy", "ret"), function("elsewhere", "ret"))
    assert exits(module["checked"]) == [(2, "tail", False, False)]


def test_no_padding_behind_a_call_that_may_return(build):
    module = Module.assembled(
        build,
        function("ends_in_a_call", "call rax"),
        function("aborts", "call abort@plt"),
        function("following", "ret"),
    )
    assert module["ends_in_a_call"].lines.padding_after == 0
    assert module["ends_in_a_call"].exits.found == ()
    assert module["aborts"].lines.padding_after == 11


def test_no_padding_behind_a_branch_to_what_never_returns(build):
    """``__memcpy_chk``: where the branch is not taken, control runs through the padding into ``memcpy``."""
    module = Module.assembled(
        build,
        function("checks", "cmp rcx, rdx\n jb abort@plt\n .p2align 4"),
        function("following", "mov rax, rdi\n ret"),
    )
    assert module["checks"].lines.padding_after == 0


def test_the_entry_lies_behind_endbr64(build):
    module = Module.assembled(build, function("marked", "endbr64\n ret"), function("plain", "ret"))
    assert module["marked"].entry == module.start("marked") + 4
    assert module["plain"].entry == module.start("plain")


def test_what_is_no_function_start_is_refused(build):
    module = Module.assembled(build, function("only", "nop\n ret"))
    refusal = module.map.function_at(module.start("only") + 1)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NOT_CODE


def test_boundaries(build):
    module = Module.assembled(build, function("wide", "mov eax, 1\n ret"))
    wide = module["wide"]
    assert wide.insn_at(wide.start).text == "mov eax, 0x1"
    assert wide.insn_at(wide.start + 2) is None
    assert wide.boundaries_near(wide.start + 2) == (wide.start, wide.start + 5)
    assert module.map.containing(wide.start + 2) is wide


# -- what may be entered


def test_loop_to_the_second_instruction(build):
    module = Module.assembled(build, function("loops", "xor eax, eax\n.La: inc eax\n cmp eax, edi\n jb .La\n ret"))
    start = module.start("loops")
    assert reasons(module, start + 1, start + 5) == {1: "branched to"}
    assert run_texts(module["loops"], 0) == ["xor"]
    assert run_texts(module["loops"], 2) == ["inc", "cmp", "jb", "ret"]


def test_short_jump_from_the_function_before(build):
    module = Module.assembled(
        build,
        function("before", "test edi, edi\n js .Lshared\n ret"),
        function("after", "nop\n.Lshared: inc eax\n ret"),
    )
    start = module.start("after")
    assert reasons(module, start + 1, start + 5) == {0: "branched to"}
    assert run_texts(module["after"], 0) == ["nop"]


def test_return_addresses_are_entered(build):
    module = Module.assembled(
        build, function("calls", "push rbx\n call rax\n pop rbx\n ret\n"), function("other", "ret")
    )
    assert run_texts(module["calls"], 0) == ["push", "call"]
    assert run_texts(module["calls"], 3) == ["pop", "ret"]


def test_a_run_goes_on_behind_a_conditional_jump_not_taken(build):
    module = Module.assembled(build, function("early", "test edi, edi\n je .Lout\n mov eax, [rdi]\n.Lout: ret"))
    assert run_texts(module["early"], 0) == ["test", "je", "mov"]
    assert run_texts(module["early"], 6) == ["ret"]


def test_an_unresolved_jump_makes_every_instruction_enterable(build):
    module = Module.assembled(build, function("lost", "imul rdi, rsi\n jmp rdi\n nop\n ret"))
    lost = module["lost"]
    assert lost.unresolved == (lost.start + 4,)
    assert lost.complete.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert lost.complete.address == lost.start + 4
    assert run_texts(lost, 0) == ["imul"]
    assert len(module.map.entries.enterable(lost.start + 1, lost.end)) >= 3


def test_a_jump_behind_a_lock_prefix(build):
    body = "cmp dword ptr [rdi], 0\n je 1f+1\n1: lock inc dword ptr [rsi]\n ret"
    module = Module.assembled(build, function("single_threaded", body))
    skips = module["single_threaded"]
    assert skips.complete is None
    assert skips.insn_at(skips.start + 5) is None
    assert run_texts(skips, 0) == ["cmp", "je"]


def test_a_jump_into_the_middle_of_an_instruction(build):
    module = Module.assembled(build, function("overlaps", "je 1f+1\n1: mov eax, 0x90909090\n ret"))
    assert module["overlaps"].broken.reason is Reason.CONTROL_FLOW_UNKNOWN


def test_bytes_that_are_no_instruction(build):
    module = Module.assembled(build, function("data", "nop\n .byte 0x06, 0x07, 0x0e\n ret"))
    assert module["data"].complete.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert "no instruction" in module["data"].complete.detail
    assert texts(module["data"].insns) == ["nop"]
    assert module["data"].exits.complete is not None


# -- data between instructions

TABLE = "lea rax, [rip+2f]\n movzx eax, byte ptr [rax+rdi]\n jmp 3f\n 2: .byte {}\n 3: add eax, 1\n ret"


def texts(insns):
    return [insn.text.split()[0] for insn in insns]


@pytest.mark.parametrize(
    "table",
    [
        "0xe8, 0x0f, 0xc7, 0x48",  # call; rol byte ptr [rcx], 0xc3: over what follows
        "0x06, 0x07, 0x0e",  # nothing
        "0xe9, 0x00",  # jmp: over what follows
    ],
)
def test_a_table_in_the_code_is_left_out(build, table):
    module = Module.assembled(build, function("looks_up", TABLE.format(table)), function("next", "ret"))
    looks_up = module["looks_up"]
    assert texts(looks_up.insns) == ["lea", "movzx", "jmp", "add", "ret"]
    assert looks_up.complete is None
    assert looks_up.exits.complete is None
    assert [each.address - looks_up.start for each in looks_up.exits.found] == [looks_up.end - 1 - looks_up.start]
    assert [looks_up.lines.around(insn.address)[-1].text for insn in looks_up.insns] == [
        *[looks_up.insns[2].text] * 3,
        *["ret"] * 2,
    ]


def test_a_table_that_decodes_to_instructions_is_no_site(build):
    """Nothing leads to it, and its address alone does not make it code: mov eax, 0x...; ret."""
    module = Module.assembled(build, function("looks_up", TABLE.format("0xb8, 1, 2, 3, 4, 0xc3")))
    looks_up = module["looks_up"]
    table = looks_up.insns[2].end
    assert looks_up.is_boundary(table)
    assert looks_up.insn_at(table) is None
    assert looks_up.insn_at(table + 6) is not None
    assert (table, f"its address is taken at {looks_up.start + 1:#x}") in module.map.entries.enterable(table, table + 1)


def sites_of(function):
    return [insn.text.split()[0] for insn in function.insns if function.insn_at(insn.address) is not None]


def test_a_label_that_data_points_to_is_a_site(build):
    """But only where an unwind entry tells of the function: else there may be a table."""
    body = 'jmp [rip+3f]\n 2: mov eax, 1\n ret\n .pushsection .data.rel.ro, "aw"\n 3: .quad 2b\n .popsection'
    module = Module.assembled(build, function("computes", body), function("described", DESCRIBED.format(body)))
    assert sites_of(module["described"]) == ["jmp", "mov", "ret"]
    assert sites_of(module["computes"]) == ["jmp"]


def test_code_behind_an_unknown_jump_is_no_site(build):
    """Hand-written code may have its table there, with unwind entries or without."""
    body = "imul rdi, rsi\n jmp rdi\n mov eax, 1\n ret"
    module = Module.assembled(build, function("lost", body), function("described", DESCRIBED.format(body)))
    for name in ("described", "lost"):
        assert sites_of(module[name]) == ["imul", "jmp"]
        assert module[name].complete is not None


def test_no_site_is_behind_the_first_branch_where_instructions_overlap(build):
    """Where they begin is in doubt, then."""
    body = "mov ecx, 3\n inc eax\n jne 1f\n .byte 0x48, 0xb8\n 1: dec edi\n .byte 0x06\n ret"
    module = Module.assembled(build, function("doubtful", DESCRIBED.format(body)))
    assert module["doubtful"].broken is not None
    assert sites_of(module["doubtful"]) == ["mov", "inc", "jne"]


def test_data_that_is_jumped_into_is_a_doubt(build):
    """Another function's branch leads to what nothing of this one does."""
    module = Module.assembled(
        build,
        function("jumps", "jmp 4f"),
        function("holds", "jmp 3f\n 2: .byte 0x06\n 4: inc eax\n 3: ret"),
    )
    assert "may be entered" in module["holds"].complete.detail
    assert module["holds"].exits.complete is not None


def test_an_exit_that_nothing_leads_to_is_none(build):
    module = Module.assembled(build, function("plain", "test edi, edi\n je 1f\n ret\n rep ret\n 1: ret"))
    assert len(module["plain"].exits.found) == 2


def test_what_is_led_to_from_below_is_a_site(build):
    """Loops are often entered at their condition, and cold pieces jumped back from."""
    module = Module.assembled(
        build,
        function("loops", "jmp 2f\n .p2align 4\n 1: inc eax\n jmp 3f\n 2: dec edi\n jg 1b\n ret\n 3: dec esi\n jmp 2b"),
    )
    loops = module["loops"]
    instructions = [insn.address for insn in loops.insns if "nop" not in insn.text]
    assert len(instructions) == 8
    assert loops.sites_among(instructions) == instructions


def test_what_nothing_leads_to_is_no_site_and_padding_is_harmless(build):
    """Behind an end, and up to what something leads to; what looks like padding may be data in hand-written code."""
    body = "test edi, edi\n je 1f\n ret\n nop\n inc eax\n dec eax\n 1: mov eax, 1\n ret\n nop\n ret"
    module = Module.assembled(build, function("gap", body), function("described", DESCRIBED.format(body)))
    for name, padding in (("described", (3, 8)), ("gap", ())):
        gap = module[name]
        addresses = [insn.address for insn in gap.insns]
        assert len(addresses) == 10
        assert gap.sites_among(addresses) == [addresses[n] for n in sorted((0, 1, 2, 6, 7, *padding))]
        doubts = [(why.address, why.reason) for why in gap.reachability.in_doubt()]
        assert doubts == [
            (addresses[4 if padding else 3], Reason.NOT_CODE),
            (addresses[9 if padding else 8], Reason.NOT_CODE),
        ]


# -- exits


def test_returns_and_tail_jumps(build):
    module = Module.assembled(
        build,
        function("leaves", "test edi, edi\n je .Lout\n js other\n jmp other\n.Lout: ret 8"),
        function("other", "ret"),
    )
    leaves = module["leaves"]
    assert [(e.kind, e.conditional) for e in leaves.exits.found] == [
        (ExitKind.TAIL, True),
        (ExitKind.TAIL, False),
        (ExitKind.RET, False),
    ]
    assert leaves.exits.complete is None
    assert leaves.exits.found[0].target == module.start("other")


def test_a_jump_through_a_pointer_leaves(build):
    module = Module.assembled(build, function("virtual", "mov rax, [rdi]\n jmp [rax+16]"))
    assert exits(module["virtual"]) == [(3, "tail", False, True)]
    assert module["virtual"].complete is None


@pytest.mark.parametrize("body", ["mov rax, [rdi]\n jmp rax", "jmp rsi", "mov r11, rsi\n jmp r11"])
def test_a_whole_pointer_in_a_register_is_no_table(build, body):
    module = Module.assembled(build, function("pointed", body))
    assert module["pointed"].complete is None
    assert [kind for _, kind, _, _ in exits(module["pointed"])] == ["tail"]


EITHER = "lea rdx, [rip+.Lin]\n lea rax, [rsi+16]\n test edi, edi\n cmovne rax, rdx\n jmp rax\n.Lin: ret"


def test_a_jump_that_may_stay_knows_what_inside_is(build):
    module = Module.assembled(build, function("either", EITHER), function("other", "ret"))
    either = module["either"]
    undecided = either.exits.found[0]
    assert (undecided.conditional, undecided.indirect) == (True, True)
    assert undecided.inside == ((either.entry + 1, either.end),)
    assert either.exits.complete is None


def test_code_that_jumps_into_a_function_with_undecided_jumps_may_be_a_part_of_it(build):
    away = "inc edi\n jns other\n jmp .Lin"
    module = Module.assembled(build, function("either", EITHER), function("other", "ret"), function("away", away))
    refusal = module["either"].exits.complete
    assert refusal.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert "may lead here" in refusal.detail


def test_self_tail_recursion_is_a_loop(build):
    module = Module.assembled(build, function("recurses", "dec edi\n jne recurses\n ret"))
    recurses = module["recurses"]
    assert exits(recurses) == [(4, "ret", False, False)]
    assert recurses.back_to_entry == (recurses.start + 2,)


def test_a_loop_behind_endbr64_goes_back_to_the_entry(build):
    module = Module.assembled(build, function("marked", "endbr64\n.Lagain: dec edi\n jne .Lagain\n ret"))
    assert module["marked"].back_to_entry == (module.start("marked") + 6,)


COLD = """
    .section .text.unlikely
    .type hot.cold, @function
hot.cold:
    inc esi
    js .Laway
    ret
.Laway: jmp .Lb
    .size hot.cold, .-hot.cold
    .text
"""


def test_a_cold_part_belongs_to_its_function(build):
    module = Module.assembled(
        build,
        COLD,
        function("hot", "test edi, edi\n js hot.cold\n.Lb: mov eax, edi\n ret"),
        function("other", "ret"),
    )
    hot = module["hot"]
    cold = module.start("hot.cold")
    assert {e.address for e in hot.exits.found} == {cold + 4, hot.end - 1}
    assert all(e.kind is ExitKind.RET for e in hot.exits.found)
    assert hot.exits.complete is None


def test_a_jump_into_the_middle_of_a_function_is_an_exit_where_nothing_comes_back(build):
    """Hand-written code shares its ends: who jumps there has left."""
    for back, complete in (("ret", True), ("jne .Lback\n ret", False), ("jmp third", False)):
        module = Module.assembled(
            build,
            function("owner", f"inc edi\n.Lshared: inc esi\n {back}"),
            function("borrower", "dec edi\n.Lback: jmp .Lshared"),
            function("third", "dec edi\n jne .Lback\n ret"),
            function("caller", "call owner\n call borrower\n call third\n ret"),
            flags=["-Wl,-Bsymbolic"],
        )
        assert (module["borrower"].exits.complete is None) == complete, back
        if complete:
            assert exits(module["borrower"]) == [(2, "tail", False, False)]


def test_a_tail_call_of_a_linkage_stub(build):
    module = Module.assembled(build, function("wrapper", "jmp elsewhere@plt"))
    assert exits(module["wrapper"]) == [(0, "tail", False, False)]
    assert module["wrapper"].exits.complete is None


# -- dead bytes inside


def test_dead_bytes_behind_a_return_inside_a_function(build):
    body = "test edi, edi\n jne .Lfar\n ret\n .byte 0x66, 0x90, 0x66, 0x90, 0x0f, 0x1f, 0x00\n.Lfar: inc edi\n ret"
    module = Module.assembled(build, function("split", body))
    split = module["split"]
    assert split.lines.dead_bytes_after(split.start + 5) == 7
    assert split.lines.dead_bytes_after(split.start + 12) == 0
    assert split.lines.dead_bytes_after(split.start + 2) == 0


# -- basic blocks and calls


def test_blocks_begin_at_entries_and_behind_branches_not_behind_calls(build):
    module = Module.assembled(
        build,
        function(
            "branchy",
            "endbr64\n test edi,edi\n jz 1f\n call helper\n inc eax\n jmp 2f\n .p2align 4\n1: dec eax\n2: ret",
        ),
        function("helper", "ret"),
    )
    branchy = module["branchy"]
    texts = [branchy.insn_at(address).text.split()[0] for address in branchy.blocks]
    assert texts == ["test", "call", "dec", "ret"]
    assert branchy.blocks[0] == branchy.entry


def test_what_comes_after_a_conditional_jump_and_padding_is_a_block_as_well(build):
    aligned = (
        "test edi,edi\n jz 1f\n nop\n .nops 4\n inc eax\n jz 2f\n .p2align 4\n1: dec eax\n jmp 3f\n nop\n neg eax\n"
    )
    module = Module.assembled(build, function("aligned", f"{aligned}2: not eax\n3: ret"))
    code = module["aligned"]
    # neg is after a jump that never goes on: nothing leads there
    assert [code.insn_at(address).text.split()[0] for address in code.blocks] == ["test", "inc", "dec", "not", "ret"]


def test_a_branch_back_to_a_return_address_begins_a_block(build):
    module = Module.assembled(
        build,
        function("looping", "1: call helper\n2: dec edi\n jnz 2b\n ret"),
        function("helper", "ret"),
    )
    looping = module["looping"]
    assert [looping.insn_at(address).text.split()[0] for address in looping.blocks] == ["call", "dec", "ret"]


def test_runs_of_instructions_end_at_calls_too_and_padding_after_one_that_never_returns_is_none(build):
    module = Module.assembled(
        build,
        function(
            "calling",
            "call helper\n nop\n inc eax\n call helper\n movzx eax,al\n test edi,edi\n jz 1f\n call helper\n"
            " .p2align 4\n1: call helper\n call helper\n ret",
        ),
        function("helper", "ret"),
    )
    calling = module["calling"]
    runs = run_starts(calling, frozenset(calling.blocks))
    texts = [calling.insn_at(address).text.split()[0] for address in runs]
    assert texts == ["call", "nop", "movzx", "call", "call", "call", "ret"]


def test_calls_are_direct_and_indirect_ones(build):
    module = Module.assembled(build, function("caller", "call helper\n call rax\n ret"), function("helper", "ret"))
    assert [module["caller"].insn_at(at).flow.name for at in calls_of(module["caller"])] == ["CALL", "INDIRECT_CALL"]


def test_code_outside_of_all_functions_is_known_from_where_something_leads_to(build):
    body = "lea eax, [rdi+1]\n cmp eax, 7\n jle .Lout\n nop\n.Lout: ret"
    nameless = f".byte 0xeb, 0x03\n.Lhere: {body}\n.byte 0x48, 0x8b"  # a table that looks like a jump
    caller = function("caller", "jmp .Lhere")
    module = Module.assembled(build, f".p2align 4\n{nameless}\n.p2align 4\n", caller)
    start = module["caller"].insns[0].target
    code = module.map.function_at(start)
    assert code.is_nameless
    sites = [insn.text.split()[0] for insn in code.insns if code.is_site(insn.address)]
    assert sites == ["lea", "cmp", "jle", "nop", "ret"]
    assert code.complete.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert len(code.lines.around(start)) == 1
    assert module.map.function_at(start - 2).reason is Reason.NOT_CODE
    assert module.map.function_at(start + 10).reason is Reason.NOT_CODE


def test_a_return_behind_a_call_that_never_comes_back_is_no_exit(build):
    """As code shows, not names; a trap may be skipped by a handler, so it proves nothing."""
    module = Module.assembled(
        build,
        ".hidden spins, abort, traps\n",
        function("spins", ".byte 0xcd, 3\n.Lagain: jmp .Lagain"),
        function("abort", "ret"),
        function("traps", "ud2"),
        function("starts", "call spins\n ret"),
        function("called", "call abort\n ret"),
        function("trapped", "call traps\n ret"),
        function("entered", "test edi, edi\n je .Lout\n call spins\n.Lout: ret"),
    )
    assert exits(module["starts"]) == []
    assert exits(module["called"]) == [(5, "ret", False, False)]
    assert exits(module["trapped"]) == [(5, "ret", False, False)]
    assert exits(module["entered"]) == [(9, "ret", False, False)]


def test_control_flow_behind_a_return_from_a_signal_is_not_known(build):
    """Whatever follows: Go's ends in a trap, and would look as if it never left."""
    body = "mov rax, 15\n syscall\n int3"
    module = Module.assembled(build, function("comes_back", body), function("ends", "mov eax, 60\n syscall\n ud2"))
    assert "signal" in module["comes_back"].exits.complete.detail
    assert module["ends"].exits.complete is None
