"""Functions that may be given another stack in front of their first instruction that needs it."""

import pytest

from anyprobe.binary.unwind.split_stack import resumed_places
from anyprobe.core.refusal import Reason
from support.module_under_test import Module, function

CHECK = """
    lea r11, [rsp-3000]
    cmp r11, fs:[0x70]
    jb .Lmore
.Lenough: mov eax, edi
    ret
.Lmore: {}
    ret
    jmp .Lenough
"""
CALLS = {
    "gcc": "mov r10d, 3000\n xor r11d, r11d\n call more",
    "with arguments on the stack": "mov r10d, 3000\n mov r11d, 24\n call more",
    "clang": "movabs r10, 3000\n movabs r11, 0\n call more",
    "nothing more than the limit": "xor r10d, r10d\n xor r11d, r11d\n call more",
    "large code model": "lea r11, [rip+more]\n mov r10d, 3000\n call r11",
}
MORE = ".hidden more\n" + function("more", "mov fs:[0x70], rax\n ret")


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_the_return_behind_the_call_is_none_and_what_follows_is_entered(build, call):
    module = Module.assembled(build, function("deep", CHECK.format(call)), MORE)
    deep = module["deep"]
    after = deep.end - 2
    assert module.text.resumed == {after}
    (leaving,) = deep.exits.found
    assert (leaving.address, leaving.kind.value) == (deep.insn_at(deep.start + 19).end, "ret")
    assert deep.exits.unmatched.reason is Reason.SPLIT_STACK
    assert deep.exits.complete is None
    assert after in deep.leaders
    assert [insn.text.split()[0] for insn in deep.lines.around(after - 1)] == ["ret"]


def test_other_calls_in_front_of_a_return_are_calls(build):
    body = CHECK.format("mov r10d, 3000\n call more").replace("lea", "call more\n lea")
    module = Module.assembled(build, function("deep", body), MORE)
    assert not module.text.resumed
    assert module["deep"].exits.unmatched is None
    assert len(module["deep"].exits.found) == 2


def test_programs_without_split_stacks_are_not_searched(build):
    module = Module.assembled(build, function("plain", CALLS["gcc"] + "\n ret\n nop"), function("more", "ret"))
    assert not resumed_places(module.image.elf, module.image.code_ranges)
