"""Where jump tables end, and what leads to their bound: forms that GCC and Clang make of real programs."""

import pytest

from support.module_under_test import Module, function

TABLES = """
    .section .rodata
    .p2align 2
{}
    .text
"""
CASES = """
.La: mov eax, 1
    ret
.Lb: mov eax, 2
    ret
.Lc: mov eax, 3
    ret
.Lout: ret
"""


def by_table(check, index="rdi", table=".Ltable", base="rdx"):
    """Return code that checks an index and jumps through a table of distances from itself."""
    return f"""
    {check}
    lea rdx, [rip+{table}]
    movsxd rax, dword ptr [rdx+{index}*4]
    add rax, {base}
    jmp rax
"""


def entries(name, *labels, base=""):
    return f"{name}: .long " + ", ".join(f"{each}-{base or name}" if each[0] == "." else each for each in labels)


def dispatch(build, body, *tables, others=(), flags=()):
    return Module.assembled(build, function("dispatch", body), *others, TABLES.format("\n".join(tables)), flags=flags)


def reached(module, name="dispatch"):
    """Return what the only jump table of a function leads to."""
    code = module[name]
    assert code.complete is None, code.complete
    (table,) = code.tables.values()
    return [code.insn_at(target).text for target in table.targets]


MOVES = ["mov eax, 0x1", "mov eax, 0x2", "mov eax, 0x3"]
END = "0x7fffffff"


def test_reading_stops_where_another_table_begins(build):
    """Relative to the first table the second one's entries mean other places, some of them in the function as well."""
    second = by_table("cmp esi, 1\n ja .Lout", index="rsi", table=".Lsecond")
    first = entries(".Ltable", ".La", ".Lb", ".Lc")
    other = entries(".Lsecond", ".La", ".Lb", END)
    body = "test ecx, ecx\n je .Lother" + by_table("cmp edi, 2\n ja .Lout") + ".Lother:" + second + CASES
    module = dispatch(build, body, first, other)
    code = module["dispatch"]
    assert code.complete is None
    found = [[code.insn_at(target).text for target in table.targets] for table in code.tables.values()]
    assert found == [MOVES, MOVES[:2]]


def test_a_mask_may_leave_more_values_than_there_are(build):
    """A field of two bits of which three values occur: the table ends with what leads to no code."""
    body = by_table("shr edi, 7\n and edi, 3") + CASES
    labels = (".La", ".Lb", ".Lc")
    assert reached(dispatch(build, body, entries(".Ltable", *labels, END))) == MOVES
    module = dispatch(build, body, entries(".Ltable", *labels, ".La+1"))
    assert "no code of this function" in module["dispatch"].complete.detail


CHECKED = {
    "narrow": "movzx eax, dil\n cmp dil, 2\n ja .Lout",
    "distance of a byte": "lea eax, [rdi-32]\n cmp al, 2\n ja .Lout\n movzx eax, dil\n sub eax, 32\n cdqe",
    "distance of a word": "lea ecx, [rdi-300]\n cmp cx, 2\n ja .Lout\n movzx eax, di\n sub eax, 300\n cdqe",
    "distance": "lea ecx, [rdi-32]\n cmp ecx, 2\n ja .Lout\n mov eax, edi\n nop\n lea eax, [rax-32]",
    "negative": "cmp edi, -3\n jb .Lout\n lea eax, [rdi+3]",
    "spilled": "mov [rsp-4], edi\n cmp dword ptr [rsp-4], 2\n ja .Lout\n mov eax, [rsp-4]",
    "kept by what is called": "cmp ebx, 2\n ja .Lout\n call [rsi]\n mov eax, ebx",
    "behind padding": "cmp edi, 2\n mov eax, edi\n jbe .Lgo\n ret\n .p2align 5\n.Lgo:",
}
UNCHECKED = {
    "another distance": "lea eax, [rdi-31]\n cmp al, 2\n ja .Lout\n movzx eax, dil\n sub eax, 32\n cdqe",
    "more than a byte holds": "lea eax, [rdi-254]\n cmp al, 2\n ja .Lout\n movzx eax, dil\n sub eax, 254\n cdqe",
    "changed in between": "lea eax, [rdi-32]\n cmp al, 2\n ja .Lout\n inc edi\n movzx eax, dil\n sub eax, 32\n cdqe",
    "fewer bytes compared": "lea ecx, [rdi-32]\n cmp cl, 2\n ja .Lout\n movzx eax, di\n sub eax, 32\n cdqe",
    "a sum": "lea ecx, [rdi+32]\n cmp cl, 2\n ja .Lout\n movzx eax, dil\n add eax, 32\n cdqe",
    "flags of something else": "cmp edi, 2\n test esi, esi\n ja .Lout\n mov eax, edi",
    "spilled and changed": "cmp dword ptr [rsp-4], 2\n ja .Lout\n inc dword ptr [rsp-4]\n mov eax, [rsp-4]",
    "spilled where something is stored": "cmp dword ptr [rsp-4], 2\n ja .Lout\n mov [rsi], edx\n mov eax, [rsp-4]",
    "spilled elsewhere": "cmp dword ptr [rbx+4], 2\n ja .Lout\n mov rbx, rsi\n mov eax, [rbx+4]",
    "spilled around a call": "cmp dword ptr [rsp+4], 2\n ja .Lout\n call [rsi]\n mov eax, [rsp+4]",
    "changed by what is called": "cmp edi, 2\n ja .Lout\n call [rsi]\n mov eax, edi",
    "another number": "cmp edi, -4\n jb .Lout\n lea eax, [rdi+3]",
}
NOT_WHOLE = entries(".Ltable", ".La", ".Lb", ".Lc", ".La+1")
"""What is known of its end is the bound alone: behind the last entry is one that may be meant."""


@pytest.mark.parametrize("check", CHECKED.values(), ids=CHECKED)
def test_bounds(build, check):
    found = reached(dispatch(build, by_table(check, index="rax") + CASES, NOT_WHOLE))
    assert found[:3] == MOVES


@pytest.mark.parametrize("check", UNCHECKED.values(), ids=UNCHECKED)
def test_what_is_no_bound(build, check):
    code = dispatch(build, by_table(check, index="rax") + CASES, NOT_WHOLE)["dispatch"]
    assert code.complete is not None
    assert "bound check" in code.complete.detail


def test_one_entry_of_a_table(build):
    body = """
    movsxd rax, dword ptr [rip+.Ltable]
    lea rdx, [rip+.Ltable]
    add rax, rdx
    jmp rax
"""
    module = dispatch(build, body + CASES, entries(".Ltable", ".Lb", ".La"))
    assert reached(module) == MOVES[1:2]


def test_a_table_in_front_may_be_another_functions(build):
    """Its last entry leads into this function if it is taken for one of this table."""
    body = by_table("nop") + CASES
    other = function("other", by_table("cmp edi, 1\n ja .Lfar", table=".Lforeign") + ".Lfar: ret")
    foreign = [entries(".Lforeign", ".Lfar", ".La", base=".Ltable"), entries(".Lforeign", ".Lfar", ".Lfar")]
    mine = entries(".Ltable", ".La", ".Lb", ".Lc", END)
    lies, fits = (dispatch(build, body, each, mine, others=[other])["dispatch"] for each in foreign)
    assert lies.complete is not None  # so the one in front leads into both
    assert fits.complete is None


def test_an_entry_may_lead_to_another_function(build):
    """The function ends there, if the jump goes that way; never by an entry behind what the check allows."""
    body = by_table("cmp edi, 1\n ja .Lout") + CASES
    others = [".hidden other\n" + function("other", "mov eax, 7\n ret")]
    module = dispatch(build, body, entries(".Ltable", ".La", "other-.Ltable"), others=others)
    code = module["dispatch"]
    assert code.complete is None
    assert code.exits.complete is None
    (table,) = code.tables.values()
    assert set(table.targets) == {code.insns[6].address, module.start("other")}
    (leaving,) = [each for each in code.exits.found if each.indirect]
    assert leaving.conditional
    assert leaving.inside == ((code.entry + 1, code.end),)
    module = dispatch(build, body, entries(".Ltable", ".La", ".Lb", "other-.Ltable"), others=others)
    assert not any(each.indirect for each in module["dispatch"].exits.found)


def test_a_stored_address_is_known_in_programs_at_fixed_addresses(build):
    """``return slot ? slot() : other()``, with the other one's address in an immediate."""
    body = "mov rax, [rdi]\n test rax, rax\n jne .Lgo\n mov eax, offset other\n.Lgo: jmp rax"
    source = [function("dispatch", body), function("other", "ret"), function("_start", "hlt")]
    from support.module_under_test import HEADER

    fixed = build(HEADER + "".join(source), "-no-pie", "-static", "-nostdlib", language="assembler")
    assert Module(fixed)["dispatch"].complete is None


CALLS_CROAK = """
    push rbx
    lea rdx, [rip+.Ltable]
    cmp edi, 2
    jbe .Lgo
    xor edx, edx
    call croak@plt
.Lgo: movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
"""


@pytest.mark.parametrize("weak", [False, True], ids=["strong", "weak"])
def test_a_stub_for_an_own_function_that_never_returns(build, weak):
    """Behind the call nothing runs, unless the function is there to be replaced."""
    endless = function("croak", "cmp edi, 5\n jg .Lhere\n.Lhere: jmp .Lhere")
    if weak:
        endless = endless.replace(".globl", ".weak")
    code = dispatch(build, CALLS_CROAK + CASES, entries(".Ltable", ".La", ".Lb", ".Lc", END), others=[endless])
    assert (code["dispatch"].complete is None) != weak
