import struct
import subprocess

import pytest

from anyprobe.binary.flow import jump_tables
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions
from anyprobe.binary.images.image import Image
from anyprobe.core.refusal import Reason
from anyprobe.isa.decode import Flow
from support.module_under_test import Module, function

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
    assert not any(e.indirect for e in code.exits.found)


def test_switches_of_position_dependent_code(build):
    source = SWITCH % CASES + "int main(int c, char **v) { return choose(c, 3); }"
    module = Module(build(source, "-no-pie", "-fno-pie", "-O2", "-fno-tree-switch-conversion"))
    code, table = table_of(module, "choose")
    assert len(table.targets) >= 12
    assert not any(e.indirect for e in code.exits.found)


def test_table_targets_are_entered(build):
    module = Module.compiled(build, SWITCH % CASES, "-fno-tree-switch-conversion")
    code, table = table_of(module, "choose")
    for target in table.targets:
        assert (target, "a jump table leads here") in module.map.entries.enterable(target, target + 1)
        assert code.lines.around(target)[0].address == target


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


SOMEWHERE_IN_THE_CODE = ", .La+1-.Ltable"


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
    module = dispatching(build, bound="nop", more=SOMEWHERE_IN_THE_CODE)
    code = module["dispatch"]
    assert code.complete.reason is Reason.CONTROL_FLOW_UNKNOWN
    assert "bound check" in code.complete.detail
    assert len(code.unresolved) == 1
    assert [(e.indirect, e.conditional) for e in code.exits.found if e.indirect] == [(True, True)]


@pytest.mark.parametrize("after", [", 0x7fffffff", SOMEWHERE_IN_THE_CODE + ", 0x7fffffff"], ids=["data", "code"])
def test_without_a_bound_a_table_ends_with_what_leads_to_no_code(build, after):
    code = dispatching(build, bound="mov edi, edi", more=after)["dispatch"]
    assert (code.complete is None) == (after == ", 0x7fffffff")
    if code.complete is None:
        (table,) = code.tables.values()
        assert [code.insn_at(target).text for target in table.targets] == [f"mov eax, 0x{n}" for n in (1, 2, 3)]


def test_without_a_bound_a_table_ends_where_something_else_begins(build):
    """The entry behind the table leads into the code, but it is another object's: its address is taken."""
    other = function("other", "lea rax, [rip+.Lother]\n ret")
    table = TABLE.format(more="\n.Lother: .long .La+1-.Ltable")
    module = Module.assembled(build, function("dispatch", DISPATCH.format(bound="nop", notrack="")), other, table)
    _, found = table_of(module, "dispatch")
    assert len(found.targets) == 3


def test_without_a_bound_entries_in_front_of_the_table_count(build):
    """A negative index would find them."""
    table = TABLE.format(more=", 0x7fffffff").replace(".Ltable: .long .La", ".long .La\n.Ltable: .long .La", 1)
    table = table.replace(".long .La\n", ".long .La-.Ltable\n", 1)
    module = Module.assembled(build, function("dispatch", DISPATCH.format(bound="nop", notrack="")), table)
    assert "bound check" in module["dispatch"].complete.detail


def test_a_table_may_lie_right_behind_another_one(build):
    """What is in front is that one's last entry: code refers to it, and all of it leads to code."""
    body = """
    lea rdx, [rip+.Lfirst]
    test esi, esi
    je .Lgo
    lea rdx, [rip+.Lsecond]
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.Lgo: movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.Lout: ret
    .skip 16, 0x90
    ret
"""
    tables = """
    .section .rodata
    .p2align 2
    .long 0x7fffffff
.Lfirst: .long .Lout-.Lfirst, {last}
.Lsecond: .long .Lout-.Lsecond, .Lout-.Lsecond, 0x7fffffff
    .text
"""
    for last, known in ((".Lout-.Lfirst", True), (".Lout-.Lsecond", False)):
        module = Module.assembled(build, function("dispatch", body), tables.format(last=last))
        assert (module["dispatch"].complete is None) == known


LABELS = """
    {index}
    lea rdx, [rip+.Lcopies]
    shl ecx, 2
    lea eax, [rcx+rcx*2]
    add rax, rdx
    jmp rax
.Lcopies:
    .rept {copies}
    movups xmm0, [rdi]
    movups [rsi], xmm0
    inc edi
    inc esi
    ret
    .byte 0x90
    .endr
"""


def test_labels_of_equal_distance_are_the_targets_of_a_computed_jump(build):
    """Each of the copies has twelve bytes, as four times three: whichever way control comes the index is masked."""
    masked = "and ecx, 3\n test edi, edi\n je .Lfar\n nop\n.Lfar:"
    either = "and ecx, 3\n test edi, edi\n je .Lfar\n mov ecx, esi\n.Lfar:"
    for index, copies, known in ((masked, 4, True), (masked, 3, False), (either, 4, False), ("nop", 4, False)):
        module = Module.assembled(build, function("dispatch", LABELS.format(index=index, copies=copies)))
        code = module["dispatch"]
        assert (code.complete is None) == known, (index, copies)
        if known:
            (table,) = code.tables.values()
            assert [target - table.targets[0] for target in table.targets] == [0, 12, 24, 36]
            assert not any(leaving.indirect for leaving in code.exits.found)


ENUMERATION = SWITCH.replace("default: return value;", "default: __builtin_unreachable();")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_switches_that_need_no_default(build, compiler):
    flags = ["-fno-tree-switch-conversion"] if compiler == "gcc" else []
    path = build(ENUMERATION % CASES, "-shared", "-fPIC", "-O2", "-nostdlib", *flags, compiler=compiler)
    _, table = table_of(Module(path), "choose")
    assert len(table.targets) >= 12


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3", "-Os"])
def test_switches_at_every_level(build, compiler, level):
    """Narrow and wide indices, negative cases, arguments of calls in the index's register, a loop: all are followed."""
    path = build(EVERY_SWITCH, "-shared", "-fPIC", "-nostdlib", level, compiler=compiler)
    module = Module(path)
    for name, least in (("narrow", 10), ("negative", 12), ("calls", 12), ("loops", 7), ("wide", 12), ("loads", 9)):
        code = module[name]
        assert code.complete is None, (name, str(code.complete))
        assert code.indirect_jumps >= 1, name
        for table in code.tables.values():
            entries = module.map.text.memory.read(table.address, 4 * least)
            first = [table.address + value for (value,) in struct.iter_unpack("<i", entries)]
            assert set(first) <= set(table.targets), name
        assert not any(leaving.indirect for leaving in code.exits.found)


KINDS = (
    "sink(x * {}); break;", "effects += {}; return 5;", "effects ^= x; sink({}); return x;", "effects *= {}; break;",
)  # fmt: skip
SOME_CASES = "\n".join(f"case {n}: {KINDS[n % 4].format(n * n + 3)}" for n in range(-2, 12))
EVERY_SWITCH = f"""
int effects;
void sink(int);
int narrow(unsigned char x) {{ switch (x) {{ {SOME_CASES.replace("-", "10")} }} return x; }}
int negative(int x) {{ switch (x) {{ {SOME_CASES} default: sink(1); }} return x; }}
int wide(unsigned long x) {{ switch (x) {{ {SOME_CASES.replace("case -", "case 2")} default: return 3; }} return x; }}
int loads(int *x_) {{ int x = x_[2]; switch (x) {{ {SOME_CASES} default: sink(x_[1]); }} return x; }}
int calls(int x, int *p) {{
    switch (x) {{
    case 0: sink(10); break; case 1: sink(11); return 4; case 2: sink(*p); break; case 3: sink(7); return 9;
    case 4: *p = 4; break; case 5: sink(8); break; case 6: sink(19); return 1; case 7: sink(21); break;
    case 8: sink(p[2]); break; case 9: sink(33); break; case 10: sink(80); return x; case 11: sink(81); return 12;
    default: sink(2);
    }}
    return x;
}}
int loops(const char *s, int n) {{
    int state = 0;
    for (;;) switch (*s++) {{
        case 'a': state += 1; break; case 'b': state *= 2; break; case 'c': sink(state); break;
        case 'd': state -= 3; break; case 'e': state ^= n; break; case 'f': return state;
        case 'g': state <<= 1; break; case 'h': if (n--) continue; return 3; default: state++;
    }}
}}
"""


def test_a_sum_by_lea_and_entries_relative_to_code(build):
    body = """
    cmp edi, 1
    ja .Lout
    lea rdx, [rip+.Ltable]
    lea rcx, [rip+.La]
    movsxd rax, dword ptr [rdx+rdi*4]
    lea rax, [rax+rcx]
    jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lout: ret
"""
    table = """
    .section .rodata
    .p2align 2
.Ltable: .long 0, .Lb-.La, 0x7fffffff
    .text
"""
    code, found = table_of(Module.assembled(build, function("dispatch", body), table), "dispatch")
    assert [code.insn_at(target).text for target in found.targets] == ["mov eax, 0x1", "mov eax, 0x2"]


def test_a_sum_with_something_else_than_the_table_is_not_believed(build):
    body = DISPATCH.format(bound="cmp edi, 2\n ja .Lout", notrack="").replace("add rax, rdx", "add rax, rsi")
    code = Module.assembled(build, function("dispatch", body), TABLE.format(more=""))["dispatch"]
    assert code.complete is not None


def test_padding_in_front_of_a_label_is_no_way_to_it(build):
    body = """
    mov rax, [rdi]
    test esi, esi
    je .Lgo
    ret
    .p2align 5
.Lgo: jmp rax
"""
    code = Module.assembled(build, function("goes", body))["goes"]
    assert code.complete is None
    assert not code.tables


def test_code_that_nothing_leads_to_may_be_entered_with_anything(build):
    body = "mov rax, [rdi]\n test esi, esi\n je .Lgo\n ret\n imul eax, eax, 3\n.Lgo: jmp rax"
    assert Module.assembled(build, function("goes", body))["goes"].complete is not None


def test_a_pointer_is_followed_far_up_and_through_conditional_moves(build):
    far = "\n".join(f"mov [rsi+{8 * n}], rdi" for n in range(400))
    body = f"mov rax, [rdi]\n mov rcx, [rdi+8]\n {far}\n test edi, edi\n cmove rax, rcx\n jmp rax"
    assert Module.assembled(build, function("goes", body))["goes"].complete is None


LOOP = """
    lea rdx, [rip+.Lfirst]
    lea rcx, [rip+.Lsecond]
    cmp edi, 1
    ja .Lout
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.La: and esi, 1
    movsxd rax, dword ptr [rcx+rsi*4]
    add rax, rcx
    jmp rax
.Lb: {between}
    jmp .La
.Lc: mov eax, 3
.Lout: ret
"""
LOOP_TABLES = """
    .section .rodata
    .p2align 2
.Lfirst: .long .La-.Lfirst, .Lb-.Lfirst, 0x7fffffff
.Lsecond: .long .Lb-.Lsecond, .Lc-.Lsecond, 0x7fffffff
.Lthird: .long .La-.Lthird, .Lc-.Lthird, 0x7fffffff
    .text
"""


def test_tables_lead_to_each_other(build):
    """The base of the second one is set above a label that only tables lead to."""
    module = Module.assembled(build, function("dispatch", LOOP.format(between="nop")), LOOP_TABLES)
    code = module["dispatch"]
    assert code.complete is None
    assert len(code.tables) == 2
    again = LOOP.format(between="lea rcx, [rip+.Lthird]")
    code = Module.assembled(build, function("dispatch", again), LOOP_TABLES)["dispatch"]
    assert code.complete is None
    first, second = code.tables.values()
    assert len(second.targets) == 3 > len(first.targets)


def test_an_unknown_jump_spoils_what_lies_above_labels(build):
    unknown = LOOP.format(between="imul r8, r9\n jmp r8")
    code = Module.assembled(build, function("dispatch", unknown), LOOP_TABLES)["dispatch"]
    assert code.complete is not None
    assert len(code.unresolved) == 2, "the second table's base is set above a label that the jump may go to"


def test_jumps_from_other_functions_bring_their_own_table(build):
    body = """
    lea rdx, [rip+.Lfirst]
    and edi, 1
.Lgo: movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lc: mov eax, 3
    ret
"""
    other = function("other", "lea rdx, [rip+.Lthird]\n and edi, 1\n jmp .Lgo")
    code, table = table_of(Module.assembled(build, function("dispatch", body), other, LOOP_TABLES), "dispatch")
    assert {code.insn_at(target).text for target in table.targets} == {f"mov eax, 0x{n}" for n in (1, 2, 3)}
    other = function("other", "mov rdx, rsi\n and edi, 1\n jmp .Lgo")
    assert Module.assembled(build, function("dispatch", body), other, LOOP_TABLES)["dispatch"].complete is not None


COMPUTED_GOTO = """
int run(const unsigned char *program, int value) {
    static const void *labels[] = {&&add, &&double_it, &&stop};
#define NEXT goto *labels[*program++]
    NEXT;
add: value += 1; NEXT;
double_it: value *= 2; NEXT;
stop: return value;
}
"""


def test_labels_in_an_array_are_entries(build):
    """Each of them is an address that the loader writes, so a jump there is through a pointer."""
    module = Module.compiled(build, COMPUTED_GOTO)
    code = module["run"]
    assert code.complete is None
    assert code.has_inner_entries
    assert len(module.map.entries.static_entries(code.start + 1, code.end)) == 3
    assert all(each.conditional for each in code.exits.found if each.indirect)


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
    assert len(known) > 0.995 * len(functions)


# -- narrow entries, tables of indices

NARROW = """
    lea rdx, [rip+.Lnarrow]
    lea rcx, [rip+.La]
    cmp edi, {last}
    ja .Lout
    mov edi, edi
    {load}
    add rax, rcx
    jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lc: mov eax, 3
    ret
.Lout: ret
    .section .rodata
.Lnarrow: {directive} .La-.La, .Lb-.La, .Lc-.La
    .byte 0x77, 0x77
    .text
"""


@pytest.mark.parametrize(
    ("directive", "load"),
    [
        (".byte", "movzx eax, byte ptr [rdx+rdi]"),
        (".byte", "movzx eax, byte ptr [rdi+rdx]"),
        (".byte", "movsx rax, byte ptr [rdx+rdi]"),
        (".word", "movzx eax, word ptr [rdx+rdi*2]"),
        (".word", "movsx rax, word ptr [rdx+rdi*2]"),
        (".long", "movsxd rax, dword ptr [rdx+rdi*4]"),
    ],
)
def test_entries_of_all_widths(build, directive, load):
    body = NARROW.format(directive=directive, load=load, last=2)
    _, table = table_of(Module.assembled(build, function("dispatch", body)), "dispatch")
    assert [target - table.targets[0] for target in table.targets] == [0, 6, 12]


def test_narrow_entries_need_a_bound(build):
    body = NARROW.format(directive=".byte", load="movzx eax, byte ptr [rdx+rdi]", last=2).replace("ja .Lout", "nop")
    assert Module.assembled(build, function("dispatch", body))["dispatch"].complete is not None


TWO_LEVELS = """
    cmp edi, 5
    ja .Lout
    mov edi, edi
    lea rdx, [rip+.Lindices]
    movzx eax, byte ptr [rdx+rdi]
    lea rdx, [rip+.Ltargets]
    movsxd rax, dword ptr [rdx+rax*4]
    add rax, rdx
    jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lc: mov eax, 3
    ret
.Lout: ret
    .section .rodata
.Lindices: .byte 0, 1, {most}, 1, 0, 0, 200, 200
    .p2align 2
.Ltargets: .long .La-.Ltargets, .Lb-.Ltargets, .Lc-.Ltargets, 0x7fffffff
    .text
"""


def test_an_index_from_a_table_is_bounded_by_what_is_in_it(build):
    """The largest of the six indices says how many targets there are, not what lies behind the six."""
    _, table = table_of(Module.assembled(build, function("dispatch", TWO_LEVELS.format(most=2))), "dispatch")
    assert len(table.targets) == 3


def test_an_index_beyond_the_second_table_is_not_believed(build):
    module = Module.assembled(build, function("dispatch", TWO_LEVELS.format(most=9)))
    assert "no code" in module["dispatch"].complete.detail


# -- what lies behind calls that never return, and in parts elsewhere

BOUND = ["-Wl,-Bsymbolic"]
"""Calls of the module's own functions do not go through linkage stubs."""

CLOBBERED = """
    lea r11, [rip+.Ltable]
.Lagain: cmp edi, 2
    ja .Lbad
    mov edi, edi
    movsxd rax, dword ptr [r11+rdi*4]
    add rax, r11
    jmp rax
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lc: mov eax, 3
    ret
.Lbad: call panics
    jmp .Lagain
"""
PANICS = function("panics", "push rbx\n test edi, edi\n je 1f\n call rax\n 1: call reports\n jmp stops")
STOPS = function("stops", "test eax, eax\n js 1f\n call abort@plt\n 1: ud2")
REPORTS = function("reports", "{} ret")


@pytest.mark.parametrize(("reports", "known"), [("", True), ("call panics\n", True)])
def test_behind_a_call_that_never_returns_nothing_runs(build, reports, known):
    """The callee's register is used behind the call, which no compiler does unless the call never returns."""
    parts = function("dispatch", CLOBBERED), TABLE.format(more=""), PANICS, STOPS, REPORTS.format(reports)
    module = Module.assembled(build, *parts, flags=BOUND)
    assert (module["dispatch"].complete is None) == known
    assert module.start("panics") in module.map.analyses.get(NoReturnFunctions)


def test_a_call_that_may_return_is_followed(build):
    returning = function("panics", "test edi, edi\n je 1f\n call stops\n 1: ret")
    module = Module.assembled(
        build, function("dispatch", CLOBBERED), TABLE.format(more=""), returning, STOPS, flags=BOUND
    )
    assert module["dispatch"].complete is not None


@pytest.mark.parametrize(
    ("body", "endless"),
    [
        ("1: jmp 1b", True),
        ("1: pause\n jmp 1b\n ret", True),
        ("jmp stops", True),
        ("jmp abort@plt", True),
        ("je stops\n ud2", True),
        ("je stops\n ret", False),
        ("jmp rax", False),
        ("call stops\n ret", True),
        ("call rax\n ret", False),
        ("nop", False),
        ("int3\n ret", False),
        ("hlt", True),
        ("jmp other", False),
        ("call itself\n ret", False),
    ],
)
def test_what_never_returns(build, body, endless):
    itself = function("itself", body)
    module = Module.assembled(build, itself, STOPS, function("other", "ret"), flags=BOUND)
    assert (module.start("itself") in module.map.analyses.get(NoReturnFunctions)) == endless


def test_a_way_through_a_part_elsewhere_is_the_functions_own(build):
    """A default case in ``.text.unlikely`` comes back into the loop with everything in its registers."""
    body = """
        push r12
        lea r12, [rip+.Ltable]
    .Lagain: call other
        mov edi, eax
        cmp edi, 2
        ja dispatch_cold
        mov eax, edi
        movsxd rax, dword ptr [r12+rax*4]
        add rax, r12
        jmp rax
    .La: mov edx, 1
        jmp .Lagain
    .Lb: mov edx, 2
    .Lback: jmp .Lagain
    .Lc: mov eax, 3
        pop r12
        ret
    """
    cold = function("dispatch_cold", "xor edx, edx\n jmp .Lback").replace(".globl", ".local")
    module = Module.assembled(build, cold, function("other", "ret"), function("dispatch", body), TABLE.format(more=""))
    assert module["dispatch"].complete is None


def test_the_loop_of_an_interpreter():
    """CPython's, with computed gotos: its labels are in a table of addresses, and all of it is known."""
    image = Image.open("/usr/bin/python3.11")
    (loop,) = image.functions.lookup("_PyEval_EvalFrameDefault")
    code_map = CodeMap(image.text(), image.cold_parts)
    function = code_map.function_at(loop.start)
    assert function.complete is None
    jumps = function.indirect_jumps
    assert jumps > 100
    assert len(function.blocks) > 2000
    unknown = [address for address in function.addresses if not function.is_site(address)]
    assert not unknown


SEVERAL = """
    lea rdx, [rip+.Ltable{n}]
    cmp edi, 1
    ja .Lout{n}
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.La{n}: add esi, 1
    jmp .Lout{n}
.Lb{n}: add esi, 2
.Lout{n}:
    nop
"""
SEVERAL_TABLE = """
    .section .rodata
    .p2align 2
.Ltable{n}: .long .La{n}-.Ltable{n}, .Lb{n}-.Ltable{n}, 0x7fffffff
    .text
"""


@pytest.fixture
def looks(monkeypatch):
    """Return the numbers of the jumps, one for each time that the search for its table ran."""
    found = []
    resolve = jump_tables._Slice._resolve

    def counted(self, number):
        found.append(number)
        return resolve(self, number)

    monkeypatch.setattr(jump_tables._Slice, "_resolve", counted)
    return found


def test_a_jump_whose_search_asks_for_no_label_is_looked_at_once(build, looks):
    """The tables of the other jumps change nothing that it depends on."""
    count = 6
    body = "".join(SEVERAL.format(n=n) for n in range(count)) + "    mov eax, esi\n    ret\n"
    tables = "".join(SEVERAL_TABLE.format(n=n) for n in range(count))
    code = Module.assembled(build, function("several", body), tables)["several"]
    assert [len(table.targets) for table in code.tables.values()] == [2] * count
    assert sorted(looks) == sorted(set(looks))
    assert len(looks) == count


DEPENDENT = """
    jmp .Lbegin
.La0: lea rcx, [rip+.Ltable1]
    and esi, 1
    jmp .Lboth
.Lb0: lea rcx, [rip+.Ltable1]
    and esi, 1
.Lboth:
    movsxd rax, dword ptr [rcx+rsi*4]
    add rax, rcx
    jmp rax
.La1: mov eax, 1
    ret
.Lb1: mov eax, 2
    ret
.Lbegin:
    lea rcx, [rip+.Ltable1]
    and esi, 1
    lea rdx, [rip+.Ltable0]
    cmp edi, 1
    ja .Lout0
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.Lout0: ret
"""


@pytest.mark.parametrize(("label", "times"), [(".La0", 1), (".Lboth", 2)])
def test_a_jump_is_looked_at_again_where_a_table_leads_to_what_its_search_passed(build, looks, label, times):
    """The search of the first jump ends at ``.La0``, and goes on above ``.Lboth``."""
    tables = "".join(SEVERAL_TABLE.format(n=n) for n in range(2)).replace(".La0-", f"{label}-")
    code = Module.assembled(build, function("dependent", DEPENDENT), tables)["dependent"]
    assert code.complete is None
    first, second = (code.index_of(insn.address) for insn in code.special if insn.flow is Flow.INDIRECT_JUMP)
    assert (looks.count(first), looks.count(second)) == (times, 1)
