import time
from types import SimpleNamespace

import pytest

from anyprobe.binary.clobbers import Clobbers
from anyprobe.binary.liveness import entry_scratch, live_at
from anyprobe.isa.registers import SYSV_CLOBBERED, names_of
from case_files import read_cases
from module_under_test import Module, function


def parsed(case):
    """Split a case into functions in assembly and what is expected."""
    functions, name, body = [], "tested", []
    expected = SimpleNamespace(dead="", live="", flags="")
    for line in case.lines:
        key, _, value = line.partition(": ")
        if line.startswith("; "):
            functions.append(function(name, "\n".join(body)))
            name, body = line[2:], []
        elif key in ("dead", "live", "flags"):
            setattr(expected, key, value)
        else:
            body.append(line)
    return [*functions, function(name, "\n".join(body))], expected


CASES = read_cases("liveness.case")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_entry(build, case):
    functions, expected = parsed(case)
    module = Module.assembled(build, *functions, flags=["-Wl,-Bsymbolic"])
    tested = module["tested"]
    scratch = entry_scratch(module.map, tested, wanted=16)
    assert set(scratch.dead) >= set(expected.dead.split())
    assert not set(scratch.dead) & set(expected.live.split())
    assert scratch.flags_dead is (expected.flags == "dead")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_entry_and_the_instruction_there_agree(build, case):
    """Two ways to the same answer: the quick one may know less, never more."""
    functions, _ = parsed(case)
    module = Module.assembled(build, *functions, flags=["-Wl,-Bsymbolic"])
    tested = module["tested"]
    live = live_at(module.map, tested, tested.entry)
    for wanted in (0, 1, 2, 16):
        scratch = entry_scratch(module.map, tested, wanted)
        assert not set(scratch.dead) & live.gprs
        assert not (scratch.flags_dead and live.flags)


def live_before(module, name, text):
    code = module[name]
    (insn,) = [insn for insn in code.insns if insn.text == text]
    return live_at(module.map, code, insn.address)


def test_at_a_return_results_and_preserved_registers_are_live(build):
    module = Module.assembled(build, function("returns", "call elsewhere@plt\n ret"))
    live = live_before(module, "returns", "ret")
    assert live.gprs == {"rax", "rdx", "rbx", "rbp", "rsp", "r12", "r13", "r14", "r15"}
    assert not live.flags


def test_at_a_leaf_s_return_untouched_registers_are_live_too(build):
    module = Module.assembled(build, function("leaf", "mov ecx, 1\n ret"))
    assert "r11" in live_before(module, "leaf", "ret").gprs
    assert "rcx" not in live_before(module, "leaf", "ret").gprs


def test_a_value_kept_across_a_call_that_spares_it_is_live(build):
    module = Module.assembled(
        build,
        function("keeps", "mov r11, [rdi]\n push rax\n call quiet\n pop rcx\n add rax, r11\n ret"),
        function("quiet", "mov eax, 1\n ret"),
        flags=["-Wl,-Bsymbolic"],
    )
    assert "r11" in live_before(module, "keeps", "push rax").gprs


def test_flags_between_a_compare_and_its_jump_are_live(build):
    module = Module.assembled(build, function("compares", "cmp edi, 1\n mov eax, 2\n je 1f\n mov eax, 3\n1: ret"))
    assert live_before(module, "compares", "mov eax, 0x2").flags
    assert not live_before(module, "compares", "cmp edi, 0x1").flags


def test_a_tail_jump_reads_the_arguments(build):
    module = Module.assembled(build, function("passes", "mov edi, 1\n xor r11d, r11d\n jmp elsewhere@plt"))
    live = live_at(module.map, module["passes"], module["passes"].insns[-1].address)
    assert {"rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "r10"} <= live.gprs
    assert "r11" not in live.gprs


def test_gcc_keeps_values_across_calls_of_local_functions(build):
    """The compiler's own -fipa-ra decides what the callee's entry may destroy: what it kept there must be live."""
    source = """
    static int __attribute__((noinline, noclone)) callee(int *p) { return *p + 1; }
    int caller(int *p, int a, int b, int c) { int x = callee(p); return x + a * b + c; }
    """
    module = Module.compiled(build, source, "-fipa-ra", "-fno-ipa-sra")
    callee, caller = module["callee"], module["caller"]
    (call,) = [insn for insn in caller.insns if insn.is_call]
    kept = live_at(module.map, caller, call.end).gprs
    assert kept & {"rsi", "rdx", "rcx"}, "this compiler keeps nothing in argument registers: choose another source"
    assert not kept & (set(entry_scratch(module.map, callee, 16).dead) - {"rax"})
    ret = callee.insns[-1]
    assert kept <= live_at(module.map, callee, ret.address).gprs


def test_clobbers(build):
    module = Module.assembled(
        build,
        function("spares", "push rcx\n mov ecx, 5\n pop rcx\n ret"),
        function("calls_out", "call elsewhere@plt\n ret"),
        function("asks_kernel", "syscall\n ret"),
    )
    clobbers = Clobbers(module.map)
    assert clobbers.of(module["spares"]) == 0
    assert clobbers.of(module["calls_out"]) == SYSV_CLOBBERED
    assert names_of(clobbers.of(module["asks_kernel"])) == {"rax", "rcx", "r11"}


def test_entries_of_libc_are_analysed_quickly_and_usually_have_room(build):
    module = Module("/lib/x86_64-linux-gnu/libc.so.6")
    functions = [module.map.function_at(int(start)) for start in module.text.function_starts]
    codes = [code for code in functions if hasattr(code, "insns")]
    started = time.process_time()
    scratches = [entry_scratch(module.map, code) for code in codes]
    assert time.process_time() - started < 4  # the aim is 0.4 s
    assert sum(scratch.flags_dead for scratch in scratches) > 0.9 * len(codes)
    assert sum(bool(scratch.dead) for scratch in scratches) > 0.8 * len(codes)
