import subprocess

import pytest

from anyprobe.core.refusal import Reason
from module_under_test import Module, function

SWITCH = """
int effects;
int __attribute__((noinline)) choose(int which, int value) {
    switch (which) {
%s
    default: return value;
    }
}
"""
CASES = "\n".join(f"    case {n}: effects += value * {n * n + 3}; return value ^ {n * 7919};" for n in range(12))


def table_of(module, name):
    code = module[name]
    assert code.complete is None, code.complete
    (table,) = code.tables.values()
    return code, table


@pytest.mark.parametrize("flags", [(), ("-fcf-protection",), ("-O1",), ("-Os",)], ids=str)
def test_switches_of_position_independent_code(build, flags):
    module = Module.compiled(build, SWITCH % CASES, "-fno-tree-switch-conversion", *flags)
    code, table = table_of(module, "choose")
    assert len(table.targets) >= 12
    assert all(code.is_boundary(target) for target in table.targets)
    assert not any(e.indirect for e in code.exits)


def test_switches_of_position_dependent_code(build):
    source = SWITCH % CASES + "int main(int c, char **v) { return choose(c, 3); }"
    module = Module(build(source, "-no-pie", "-fno-pie", "-O2", "-fno-tree-switch-conversion"))
    code, table = table_of(module, "choose")
    assert len(table.targets) >= 12
    assert not any(e.indirect for e in code.exits)


def test_table_targets_are_entered(build):
    module = Module.compiled(build, SWITCH % CASES, "-fno-tree-switch-conversion")
    code, table = table_of(module, "choose")
    for target in table.targets:
        assert (target, "a jump table leads here") in module.map.enterable(target, target + 1)
        assert code.run_of(target)[0].address == target


TABLE = """
    .section .rodata
    .p2align 2
.Ltable: .long .La-.Ltable, .Lb-.Ltable, .Lc-.Ltable{more}
    .text
"""
DISPATCH = """
    lea rdx, [rip+.Ltable]
    {bound}
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    {notrack} jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lc: mov eax, 3
    ret
.Lout: ret
"""


def dispatching(build, bound="cmp edi, 2\n ja .Lout", more="", notrack=""):
    body = DISPATCH.format(bound=bound, notrack=notrack)
    return Module.assembled(build, function("dispatch", body), TABLE.format(more=more))


@pytest.mark.parametrize(
    "bound",
    ["cmp edi, 2\n ja .Lout", "cmp edi, 3\n jae .Lout", "and edi, 1", "cmp esi, 2\n ja .Lout\n mov edi, esi"],
    ids=["ja", "jae", "mask", "copied"],
)
@pytest.mark.parametrize("notrack", ["", "notrack"])
def test_the_bound_comes_from_a_check_or_a_mask(build, bound, notrack):
    code, table = table_of(dispatching(build, bound, notrack=notrack), "dispatch")
    moves = [insn.address for insn in code.insns if insn.text.startswith("mov eax")]
    assert set(table.targets) >= set(moves[:2])


def test_without_a_bound_nothing_is_claimed(build):
    module = dispatching(build, bound="nop")
    code = module["dispatch"]
    assert code.complete.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert "bound check" in code.complete.detail
    assert len(code.unresolved) == 1
    assert [(e.indirect, e.conditional) for e in code.exits if e.indirect] == [(True, True)]


def test_a_table_shorter_than_its_bound_is_not_believed(build):
    module = dispatching(build, bound="cmp edi, 9\n ja .Lout", more=", 0x7fffffff")
    assert "no code of this function" in module["dispatch"].complete.detail


def test_a_bound_of_another_path_loses_no_target(build):
    """Two checks, the one that is met first too small: entries that make sense beyond it still count."""
    bound = "test esi, esi\n je .Lwide\n cmp edi, 1\n ja .Lout\n jmp .Lgo\n.Lwide: cmp edi, 2\n ja .Lout\n.Lgo:"
    code, table = table_of(dispatching(build, bound), "dispatch")
    assert len([insn for insn in code.insns if insn.address in table.targets and "mov eax" in insn.text]) == 3


def test_two_tables_behind_one_jump(build):
    body = """
    cmp edi, 1
    ja .Lout
    lea rdx, [rip+.Lfirst]
    test esi, esi
    je .Lgo
    lea rdx, [rip+.Lsecond]
.Lgo: movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lout: ret
"""
    tables = """
    .section .rodata
    .p2align 2
.Lfirst: .long .La-.Lfirst, .La-.Lfirst, 0x7fffffff
.Lsecond: .long .Lb-.Lsecond, .Lb-.Lsecond, 0x7fffffff
    .text
"""
    code, table = table_of(Module.assembled(build, function("dispatch", body), tables), "dispatch")
    assert len([insn for insn in code.insns if insn.address in table.targets]) == 2


def test_a_loop_through_a_table_to_the_entry(build):
    body = DISPATCH.format(bound="cmp edi, 2\n ja .Lout", notrack="")
    table = TABLE.format(more="").replace(".Lb-.Ltable", "dispatch-.Ltable")
    module = Module.assembled(build, function("dispatch", body), table, flags=["-Wl,-Bsymbolic"])
    code = module["dispatch"]
    (jump,) = code.tables
    assert code.back_to_entry == (jump,)


def test_an_encrypted_pointer_is_a_pointer(build):
    body = "mov rax, [rdi]\n ror rax, 17\n xor rax, fs:[0x30]\n jmp rax"
    assert Module.assembled(build, function("demangles", body))["demangles"].complete is None


def test_most_of_libc_is_resolved():
    path = subprocess.run(["gcc", "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True).stdout
    from pathlib import Path

    if not Path(path.strip()).exists():
        pytest.skip("no shared glibc")
    module = Module(path.strip())
    functions = [module.map.function_at(int(start)) for start in module.text.function_starts]
    known = [code for code in functions if getattr(code, "complete", "") is None]
    assert len(known) > 0.97 * len(functions)
