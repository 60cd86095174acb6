import pytest

from anyprobe.binary import moduleliveness, survey
from anyprobe.binary.cfg import CodeMap, FunctionCode
from anyprobe.binary.image import Image
from anyprobe.binary.siteliveness import site_scratch
from module_under_test import Module, function

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


@pytest.mark.parametrize("jump", ["call tested\n add eax, ecx\n ret", "call between\n add eax, ecx\n ret"])
def test_what_a_caller_reads_behind_the_call_is_live(build, jump):
    between = function("between", "test edi, edi\n jz tested\n xor ecx, ecx\n ret")
    found = scratch(build, CALLEE, between, function("caller", jump))
    assert "rcx" not in found.dead


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
    into = [code_map.sources_of(address) for address in list(found)[::50]]
    return found, into


def test_what_is_kept_of_a_module_is_what_was_found(monkeypatch):
    path = "/lib64/ld-linux-x86-64.so.2"
    first = everywhere(path)
    monkeypatch.setattr(moduleliveness, "_Solver", None)
    monkeypatch.setattr(survey, "_clear_functions", None)
    assert everywhere(path) == first
    assert len(first[0]) > 1000
