import pytest

from anyprobe.binary.flow import survey
from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.liveness import module as moduleliveness
from anyprobe.binary.liveness.entry import Scratch
from anyprobe.binary.liveness.site import site_scratch
from support.module_under_test import HEADER, Module, function

CALLEE = "xor ecx, ecx\n mov eax, edi\n nop\n ret"


def scratch(build, tested, *others):
    """Return what is dead at the nop of ``tested``, looking at the module as a whole."""
    module = Module.assembled(build, function("tested", tested), *others, flags=["-Wl,-Bsymbolic"])
    module.map.survey()
    code = module["tested"]
    here = next(insn.address for insn in code.insns if insn.raw == b"\x90")
    return site_scratch(module.map, code, here)


def test_a_return_leaves_what_it_may_destroy_and_nobody_reads(build):
    found = scratch(build, CALLEE, function("caller", "call tested\n xor ecx, ecx\n ret"))
    assert "rcx" in found.dead
    assert not {"rax", "rdx", "rsi", "r11"} & set(found.dead)  # the result, and what the function never touches
    assert found.flags_dead


def test_functions_of_swift_have_four_results(build):
    swift = '.pushsection swift5_typeref, "a"\n.quad 0\n.popsection\n'
    everything = "xor ecx, ecx\n xor r8d, r8d\n xor r9d, r9d\n call rsi\n nop\n ret"
    assert {"rcx", "r8", "r9"} <= set(scratch(build, everything).dead)
    assert {"rcx", "r8", "r9"} & set(scratch(build, everything, swift).dead) == {"r9"}


@pytest.mark.parametrize("port", ["in eax, dx", "rep insb", "rep outsb"])
def test_a_port_may_be_a_virtual_machines_door(build, port):
    found = scratch(build, f"nop\n {port}\n {ALL_WRITTEN}\n ret", function("caller", "call tested\n ret"))
    assert found.dead == ()


@pytest.mark.parametrize("jump", ["call tested\n add eax, ecx\n ret", "call between\n add eax, ecx\n ret"])
def test_what_a_caller_reads_behind_the_call_is_live(build, jump):
    between = function("between", "test edi, edi\n jz tested\n xor ecx, ecx\n ret")
    found = scratch(build, CALLEE, between, function("caller", jump))
    assert "rcx" not in found.dead


ALL_WRITTEN = "\n".join(f"xor {name}, {name}" for name in ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"))


@pytest.mark.parametrize("before", [ALL_WRITTEN, "syscall"])
def test_what_is_read_behind_a_call_is_live_whatever_is_in_front_of_the_call(build, before):
    found = scratch(build, CALLEE, function("caller", f"{before}\n call tested\n add eax, ecx\n ret"))
    assert "rcx" not in found.dead


def test_where_code_in_no_function_calls_nothing_is_dead_at_a_return(build):
    assert scratch(build, CALLEE, ".p2align 4\n.Lnameless: add eax, 1\n ret\n").flags_dead
    nameless = ".p2align 4\n.Lnameless: xor ecx, ecx\n call tested\n add eax, ecx\n ret\n"
    assert "rcx" not in scratch(build, CALLEE, nameless).dead


@pytest.mark.parametrize(
    "body", [function("tested", "jmp .+3\n .byte 0x48, 0xb8, 0, 0\n ret"), ".Lnameless: pop rax\n push rax\n ret"]
)
def test_a_module_may_have_no_function_that_is_understood(build, body):
    module = Module.assembled(build, f"{body}\n.data\n.quad .text\n.text")
    module.map.survey()
    area = module.map.text.ranges[0]
    code = module.map.function_at(area.start)
    assert site_scratch(module.map, code, code.start) == Scratch((), flags_dead=False)


UNKNOWN = ".byte 0xd5, 0x10, 0x89, 0xc8\n"
"""An instruction that the decoder does not know."""
GAPS = """cmp edi, 1
 ja 3f
 lea rax, [rip + table]
 movsxd rdi, dword ptr [rax + rdi*4]
 add rax, rdi
 jmp rax
 .byte 6, 6, 6
2: call tested
 add eax, ecx
 ret
 .byte 6, 6
3: xor eax, eax
 ret
.pushsection .rodata
 .p2align 2
table: .long 2b - table, 3b - table
.popsection"""


@pytest.mark.parametrize(
    "others",
    [
        [function("caller", f"{UNKNOWN} call tested\n add eax, ecx\n ret")],
        [function("caller", GAPS)],
        [
            function("above", "push rbx\n call tested", align=1),
            function("below", "add eax, ecx\n pop rbx\n ret", align=1),
        ],
    ],
    ids=["behind what is not known", "beside data", "at the end of a function"],
)
def test_what_is_read_behind_a_call_is_live_wherever_the_call_is(build, others):
    assert "rcx" not in scratch(build, CALLEE, *others).dead


@pytest.mark.parametrize("way", ["call .Lnameless", "call between"])
def test_what_is_read_behind_a_call_of_code_in_front_of_a_function_is_live(build, way):
    nameless, between = ".p2align 4\n.Lnameless: add eax, 1\n", function("between", "jmp .Lnameless")
    caller = function("caller", f"{way}\n add eax, ecx\n ret")
    module = Module.assembled(
        build, nameless, function("tested", CALLEE, align=1), caller, between, flags=["-Wl,-Bsymbolic"]
    )
    module.map.survey()
    here = next(insn.address for insn in module["tested"].insns if insn.raw == b"\x90")
    assert "rcx" not in site_scratch(module.map, module["tested"], here).dead


INTERPRETER = """movzx eax, byte ptr [rdi]
 lea rdx, [rip + table]
 jmp [rdx + rax*8]
1: inc rdi
 movzx eax, byte ptr [rdi]
 jmp [rdx + rax*8]
2: mov eax, 3
 ret
.pushsection .data.rel, "aw"
table: .quad 1b, 2b
.popsection"""


def test_a_computed_goto_is_no_call_of_a_stranger(build):
    kept = "mov r11, rsi\n nop\n call interpreter\n add rax, r11\n ret"
    assert "r11" not in scratch(build, kept, function("interpreter", INTERPRETER)).dead


COLD = """.type tested.cold, @function
tested.cold: neg rax
 nop
 jmp [rdx + rax*8]
.size tested.cold, .-tested.cold
"""


def test_a_computed_goto_of_a_cold_part_leads_to_the_labels_of_the_whole(build):
    hot = INTERPRETER.replace("inc rdi", "inc rdi\n js tested.cold").replace("mov eax, 3", "mov rax, r11")
    module = Module.assembled(build, function("tested", hot), COLD)
    (part,) = module.image.cold_parts
    module.map = CodeMap(module.text, module.image.cold_parts)
    module.map.survey()
    cold = module.map.function_at(part)
    here = next(insn.address for insn in cold.insns if insn.raw == b"\x90")
    assert "r11" not in site_scratch(module.map, cold, here).dead


@pytest.mark.parametrize("branch", ["jz .-0x100000", "call .-0x100000"])
def test_branches_may_lead_in_front_of_the_first_address(build, branch):
    assert not scratch(build, f"nop\n {branch}\n ret").flags_dead


def test_flags_that_a_caller_reads_are_live(build):
    assert not scratch(build, CALLEE, function("caller", "call tested\n jc 1f\n ret\n1: ud2")).flags_dead


def test_what_is_kept_across_a_call_of_a_local_function_is_live_in_front_of_it_and_in_it(build):
    caller = "xor r11d, r11d\n nop\n call callee\n add rax, r11\n ret"
    callee = function("callee", "mov eax, edi\n add eax, 1\n ret")
    assert "r11" not in scratch(build, caller, callee).dead
    kept = scratch(
        build, "nop\n mov eax, edi\n ret", function("caller", "xor r11d, r11d\n call tested\n add rax, r11\n ret")
    )
    assert "r11" not in kept.dead


def test_behind_a_pointer_the_convention_holds(build):
    found = scratch(build, "push rbx\n nop\n call rbx\n pop rbx\n mov r11, 1\n ret")
    assert "r11" in found.dead
    assert not {"rax", "rdi", "r10"} & set(found.dead)
    assert found.flags_dead


def test_where_a_caller_is_in_doubt_nothing_is_dead_at_a_return(build):
    doubt = function("caller", "call tested\n jmp .+3\n .byte 0x48, 0xb8, 0, 0\n ret")
    assert not scratch(build, CALLEE, doubt).flags_dead


def test_a_jump_through_a_pointer_may_lead_to_every_stored_label(build):
    assembly = """cmp rdi, rsi
 lea rax, [rip + table]
 nop
 jmp [rax + rdx*8]
1: setc al
 ret
2: xor eax, eax
 ret
.pushsection .data.rel, "aw"
table: .quad 1b, 2b
.popsection"""
    assert not scratch(build, assembly).flags_dead
    assert scratch(build, assembly.replace("setc al", "test al, al")).flags_dead


STRANGERS = "push rbx\n mov rbx, rdi\n call [rbx]\n pop rbx"


@pytest.mark.parametrize("call", [STRANGERS, "sub rsp, 8\n call abs@PLT\n add rsp, 8", "call between"])
def test_what_every_stranger_may_destroy_is_dead_at_a_return(build, call):
    between = function("between", "jmp [rdi]")
    caller = function("caller", f"xor r11d, r11d\n {call}\n ret")
    found = scratch(build, f"{call}\n nop\n ret", between, caller)
    assert "r11" in found.dead
    assert not {"rax", "rdx", "rcx", "r10"} & set(found.dead)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("push r11", "pop r11"),
        ("mov [rsp-24], r11", "mov r11, [rsp-24]"),
        ("mov [rdi+8], r11", "mov r11, [rdi+8]"),
        ("mov r12, r11", "mov r11, r12"),
        ("movq xmm7, r11", "movq r11, xmm7"),
        ("vmovq xmm7, r11", "vmovq r11, xmm7"),
        ("xchg rsp, [rdi]", "xchg rsp, [rdi]"),
        ("mov rsp, [rdi]", "nop dword ptr [rax]"),
        ("lea rsp, [rdi+8]", "nop dword ptr [rax]"),
    ],
)
def test_what_a_function_may_keep_for_its_caller_is_live_at_its_return(build, before, after):
    assert "r11" not in scratch(build, f"{before}\n {STRANGERS}\n {after}\n nop\n ret").dead
    own = f"xor r11d, r11d\n {before}\n {STRANGERS}\n {after}\n nop\n ret"
    assert ("r11" in scratch(build, own).dead) == (after.startswith(("mov", "vmov")))


def test_behind_a_call_that_destroys_it_nobody_finds_what_was_there(build):
    caller = "xor r11d, r11d\n nop\n call callee\n add rax, r11\n ret"
    assert "r11" in scratch(build, caller, function("callee", f"{STRANGERS}\n ret")).dead
    assert "r11" not in scratch(build, caller, function("callee", "jz 1f\n xor r11d, r11d\n1: ret")).dead
    entered = function("callee", f"{STRANGERS}\n inner: ret")
    assert "r11" not in scratch(build, caller.replace("callee", "inner"), entered).dead


def test_a_result_can_be_anywhere_unless_strangers_are_called(build):
    caller = function("caller", "call tested\n add rax, r11\n add rax, rcx\n ret")
    assert not {"r11", "rcx"} & set(scratch(build, "xor r11d, r11d\n xor ecx, ecx\n nop\n ret", caller).dead)
    found = scratch(build, f"{STRANGERS}\n nop\n ret", caller).dead
    assert "r11" in found
    assert "rcx" not in found


@pytest.mark.parametrize(
    ("entered", "caller"),
    [
        ("push rbx\n call other\n pop rbx\n inner: mov eax, edi", "call inner"),
        (f"{STRANGERS}\n inner: mov eax, edi", "call inner"),
        (f"{STRANGERS}\n inner: mov eax, edi", "call jumps"),
    ],
)
def test_what_the_beginning_of_a_function_does_is_not_said_of_its_middle(build, entered, caller):
    others = function("other", f"{STRANGERS}\n ret"), function("jumps", "test edi, edi\n jz inner\n ret")
    using = function("caller", f"xor r11d, r11d\n {caller}\n add rax, r11\n call tested\n ret")
    assert "r11" not in scratch(build, f"{entered}\n nop\n ret", *others, using).dead


def test_a_function_that_runs_on_into_the_next_one_returns_there(build):
    above = function("above", "xor eax, eax", align=1)
    below = function("tested", "xor r11d, r11d\n nop\n ret", align=1)
    caller = function("caller", "call above\n add rax, r11\n ret")
    module = Module.assembled(build, above, below, caller, flags=["-Wl,-Bsymbolic"])
    module.map.survey()
    here = next(insn.address for insn in module["tested"].insns if insn.raw == b"\x90")
    assert "r11" not in site_scratch(module.map, module["tested"], here).dead


@pytest.mark.parametrize("thunk", ["push rax\n ret", "call 1f\n2: pause\n jmp 2b\n1: mov [rsp], rax\n ret"])
def test_a_return_that_is_a_jump_may_lead_to_who_has_arguments(build, thunk):
    caller = "push rbx\n mov ecx, 4\n nop\n call thunk\n pop rbx\n xor ecx, ecx\n ret"
    assert "rcx" not in scratch(build, caller, function("thunk", thunk)).dead


def test_who_runs_on_another_stack_may_have_arguments(build):
    switch = function("switch", "push rbx\n mov [rdi], rsp\n mov rsp, rsi\n pop rbx\n ret")
    assert "rdx" not in scratch(build, "mov edx, 4\n nop\n call switch\n xor edx, edx\n ret", switch).dead


@pytest.mark.parametrize(
    ("found", "known"), [("lea rax, [rip + tested]", 1), ("mov rax, rdi", 1), ("mov rax, [rdi]", 0)]
)
def test_functions_behind_descriptors_of_variables_are_no_strangers(build, found, known):
    callee = function("callee", f"sub rsp, 8\n {found}\n call [rax]\n add rsp, 8\n ret")
    caller = "xor r11d, r11d\n nop\n call callee\n add rax, r11\n ret"
    assert ("r11" not in scratch(build, caller, callee).dead) == bool(known)


def test_a_table_that_leads_elsewhere_and_back_is_no_call(build):
    assembly = """cmp edi, 1
 ja 3f
 movabs r11, 5
 nop
 lea rax, [rip + table]
 movsxd rdi, dword ptr [rax + rdi*4]
 add rax, rdi
 jmp rax
2: mov rax, r11
 ret
3: xor eax, eax
 ret
.pushsection .rodata
.p2align 2
table: .long cold - table, 2b - table
.popsection"""
    assert "r11" not in scratch(build, assembly, function("cold", f"{STRANGERS}\n ret")).dead


def test_what_a_callee_leaves_alone_is_live_in_front_of_a_call_only_if_it_is_used_behind(build):
    leaf = function("callee", "mov eax, edi\n add eax, 1\n ret")
    assert "r11" in scratch(build, "xor r11d, r11d\n nop\n call callee\n mov r11d, eax\n ret", leaf).dead


@pytest.mark.parametrize(("instruction", "labels"), [(".byte 0x8b, 0x05", 1), (".byte 0xb8", 2)])
def test_a_distance_that_looks_like_an_address_names_no_label(build, instruction, labels):
    """What is 32 bits wide and equals an address is the operand of ``mov eax, [rip + x]``, or of ``mov eax, x``."""
    assembly = """cmp rdi, rsi
 lea rdx, [table]
 nop
 jmp [rdx + rcx*8]
1: xor eax, eax
 jrcxz .Ltwo
 ret
.Ltwo: setc al
 ret
.pushsection .data, "aw"
table: .quad 1b
.popsection"""
    other = function("other", f"{instruction}\n .long .Ltwo\n ret")
    source = HEADER + function("tested", assembly) + other + ".globl _start\n_start: ud2\n"
    module = Module(build(source, "-no-pie", "-static", "-nostdlib", language="assembler"))
    module.map.survey()
    here = next(insn.address for insn in module["tested"].insns if insn.raw == b"\x90")
    assert site_scratch(module.map, module["tested"], here).flags_dead == (labels == 1)


def everywhere(path):
    """Return what is dead in front of many instructions of a module, and what leads to some of them."""
    image = Image.open(path)
    code_map = CodeMap(image.text(), image.cold_parts)
    code_map.survey()
    found = {}
    for start in image.functions.starts.tolist()[::7]:
        code = code_map.function_at(start)
        if isinstance(code, FunctionCode):
            found |= {address: site_scratch(code_map, code, address) for address in code.addresses}
    into = [code_map.entries.sources_of(address) for address in list(found)[::50]]
    return found, into


def test_what_is_kept_of_a_module_is_what_was_found(monkeypatch):
    path = "/lib64/ld-linux-x86-64.so.2"
    first = everywhere(path)
    monkeypatch.setattr(moduleliveness, "solved", None)
    monkeypatch.setattr(survey, "_clear_functions", None)
    assert everywhere(path) == first
    assert len(first[0]) > 1000
