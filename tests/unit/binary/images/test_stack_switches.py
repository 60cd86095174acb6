"""Code that changes stacks, known by what it does, whether it is a function of the file or a label amid other code."""

import pytest

from anyprobe.binary.images.stack_switches import stack_switches, switch_at
from support.module_under_test import Module, function

CASES = {  # the code, and the numbers of the instructions at which it ends, with how
    "keeps and takes, returns": ("push rbp\n mov [rdi], rsp\n mov rsp, rsi\n pop rbp\n ret", {4: False}),
    "returns by a jump": ("mov rax, rsp\n mov rsp, rdi\n pop rcx\n jmp rcx", {3: True}),
    "goes on where a pointer says": ("mov [rdi], rsp\n mov rsp, [rsi]\n jmp [rsi+8]\n ret", {2: True}),
    "two ways": ("mov rax, rsp\n mov rsp, rdi\n test ecx, ecx\n jz 1f\n ret\n 1: ret", {4: False, 5: False}),
    "another way of its own": ("mov rax, rsp\n mov rsp, rdi\n jmp after", {2: True}),
    "calls": ("mov [rdi], rsp\n mov rsp, rsi\n call after\n ret", {}),
    "only takes": ("mov rsp, rsi\n ret", {}),
    "only keeps": ("mov [rdi], rsp\n ret", {}),
    "has a frame": ("push rbp\n mov rbp, rsp\n mov [rdi], rsp\n mov rsp, rsi\n leave\n ret", {}),
    "aligns its stack": ("mov rax, rsp\n and rsp, -16\n mov rsp, rax\n ret", {}),
    "traps": ("mov rax, rsp\n mov rsp, rdi\n ud2", {}),
}


@pytest.mark.parametrize(("text", "ends"), CASES.values(), ids=CASES)
def test_it_ends_at(build, text, ends):
    code = Module.assembled(build, function("switch", text), function("after", "nop\n ret"))["switch"]
    found = switch_at(code, code.start)
    assert {end.address: end.by_jump for end in found} == {code.addresses[at]: jump for at, jump in ends.items()}
    assert not any(end.conditional for end in found)


def test_candidates_say_whether_their_size_is_known(build):
    switch = "mov [rdi], rsp\n mov rsp, rsi\n ret"
    module = Module.assembled(
        build, function("sized", switch), f".globl bare\n .type bare, @function\nbare: nop\n ret\nlabel: {switch}\n"
    )
    assert dict(stack_switches(module.image)) == {module.start("sized"): True, module.start("bare"): False}
    assert switch_at(module["bare"], module.start("bare")) == ()
    assert [end.address for end in switch_at(module["bare"], module.start("bare") + 2)] == [module.start("bare") + 8]
