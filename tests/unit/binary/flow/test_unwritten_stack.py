"""Places of a function at which nothing has been written to its stack, nor will be."""

import pytest

from anyprobe.binary.flow.unwritten_stack import unwritten_stack
from anyprobe.isa.registers import mask_of
from support.module_under_test import Module, function

CASES = {  # the instructions, and the numbers of those at which the stack is unwritten
    "returns at once": ("ret", [0]),
    "a leaf": ("mov eax, 1\n inc qword ptr [rdi]\n ret", [0, 1, 2]),
    "what pushes first": ("push rbx\n pop rbx\n ret", []),
    "what is written on every way": ("mov eax, 1\n mov [rsp-8], rax\n ret", []),
    "a call is a write": ("call elsewhere\n ret", []),
    "one way of two": ("test edi, edi\n jnz 1f\n push rbx\n pop rbx\n ret\n 1: ret", [0, 1, 5]),
    "a way that never ends": ("test edi, edi\n jnz 1f\n 2: jmp 2b\n 1: ret", [0, 1, 3]),
    "a loop": ("mov ecx, 3\n 1: dec ecx\n jnz 1b\n ret", [0, 1, 2, 3]),
    "after a write": ("push rax\n pop rax\n nop\n ret", []),
    "where no table leads": ("mov rax, [rdi]\n jmp rax", [0, 1]),
    "another stack": ("mov rax, rsp\n lea rsp, [rdi+64]\n push rax\n pop rsp\n ret", [0, 1, 4]),
    "another stack by exchange": ("xchg rsp, rdi\n push rax\n ret", [0]),
    "its own stack, lower": ("sub rsp, 64\n mov [rsp], eax\n add rsp, 64\n ret", []),
    "a system call": ("mov eax, 39\n syscall\n ret", [0, 1, 2]),
}


def found_in(build, text):
    code = Module.assembled(build, function("handler", text), function("elsewhere", "nop\n ret"))["handler"]
    return code, unwritten_stack(code, code.start)


@pytest.mark.parametrize(("text", "places"), CASES.values(), ids=CASES)
def test_the_places_are(build, text, places):
    code, found = found_in(build, text)
    assert sorted(found.places) == [code.addresses[number] for number in places]


def test_where_it_jumps_and_what_it_reads_is_told(build):
    code, found = found_in(build, "mov rax, [rdx+16]\n jmp elsewhere")
    assert found.onward == {code.iced[1].near_branch_target}
    assert not found.writes
    assert found.reads & mask_of(("rdx", "rsi")) == mask_of(("rdx",))


def test_what_begins_nowhere_has_none(build):
    code, _ = found_in(build, "mov eax, 1\n ret")
    assert unwritten_stack(code, code.start + 1).places == frozenset()
