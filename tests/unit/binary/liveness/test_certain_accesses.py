"""What code goes on to access in any case: found along the one way on, and nothing that may not come."""

import pytest

from anyprobe.binary.liveness.certain_accesses import Access, Pointer, certain_accesses
from support.module_under_test import Module, function

P = Pointer("rdi")
NEXT = Pointer("rdi", (8,))


def accesses(build, assembly):
    code = Module.assembled(build, function("tested", assembly))["tested"]
    return {each for each in certain_accesses(code, code.start) if each.pointer.register != "rsp"}


@pytest.mark.parametrize(
    ("assembly", "found"),
    [
        ("mov eax, [rdi+4]\n ret", {Access(P, 4, 8)}),
        ("mov [rdi+4], al\n ret", {Access(P, 4, 5)}),
        ("lea rcx, [rdi+16]\n add rcx, 8\n mov rax, [rcx-4]\n ret", {Access(P, 20, 28)}),
        ("mov rax, [rdi+8]\n movzx eax, word ptr [rax+2]\n ret", {Access(P, 8, 16), Access(NEXT, 2, 4)}),
        # as without optimisation
        ("push rbp\n mov rbp, rsp\n mov [rbp-8], rdi\n mov rax, [rbp-8]\n mov eax, [rax+4]\n ret", {Access(P, 4, 8)}),
        ("push rdi\n pop rax\n jmp 1f\n ud2\n1: cmp dword ptr [rax], 3\n ret", {Access(P, 0, 4)}),
        # who reads there asks first whether the pointer is null
        ("test rdi, rdi\n je 1f\n mov eax, [rdi]\n 1: ret", {Access(P, 0, 4)}),
        ("test rdi, rdi\n jne 1f\n ret\n 1: mov eax, [rdi]\n ret", {Access(P, 0, 4)}),
        ("mov rax, [rdi+8]\n test rax, rax\n je 1f\n mov ecx, [rax]\n 1: ret", {Access(P, 8, 16), Access(NEXT, 0, 4)}),
        # one that is asked about leads nowhere, or it is asked about something else
        ("test rsi, rsi\n je 1f\n mov eax, [rdi]\n 1: ret", set()),
        ("test edi, edi\n je 1f\n mov eax, [rdi]\n 1: ret", set()),
        ("test rdi, rdi\n jg 1f\n mov eax, [rdi]\n 1: ret", set()),
        ("call 1f\n mov eax, [rdi]\n 1: ret", set()),
        ("syscall\n mov eax, [rdi]\n ret", set()),
        ("lock inc dword ptr [rsi]\n mov eax, [rdi]\n ret", set()),
        ("rep stosb\n mov eax, [rdi]\n ret", set()),
        ("lea rax, [rdi+8]\n nop dword ptr [rdi]\n prefetcht0 [rdi]\n ret", set()),
        ("mov edi, edi\n mov eax, [rdi]\n ret", set()),
        ("mov eax, [rdi+rsi]\n mov eax, fs:[rdi]\n ret", set()),
        # what was stored may be what is read
        ("mov [rdi], rax\n mov rax, [rdi+8]\n mov eax, [rax]\n ret", {Access(P, 0, 8), Access(P, 8, 16)}),
        ("mov [rsp+8], rdi\n mov rax, [rsi]\n mov eax, [rax]\n ret", {Access(Pointer("rsi"), 0, 8)}),
        # where the first faults the program's handler may go on elsewhere; the second leads on from the first
        ("mov rax, [rsi]\n mov eax, [rdi]\n ret", {Access(Pointer("rsi"), 0, 8)}),
        (
            "mov cl, [rdi]\n mov rax, [rdi+8]\n inc byte ptr [rax]\n ret",
            {Access(P, 0, 1), Access(P, 8, 16), Access(NEXT, 0, 1)},
        ),
        ("mov eax, [rsi+4*rcx]\n mov eax, [rdi]\n ret", set()),
        ("mov rax, fs:[40]\n mov ecx, [rip]\n mov eax, [rdi]\n ret", {Access(P, 0, 4)}),
        # others that may raise a signal, or make memory accessible
        *(
            (f"{each}\n mov eax, [rdi]\n ret", set())
            for each in (
                "div ecx",
                "idiv rcx",
                "wrpkru",
                "xrstor [rsp-1024]",
                "divsd xmm0, xmm1",
                "rdtsc",
                "wrfsbase rax",
                "vmaskmovps [rsi], ymm0, ymm1",
                "int3",
                "cpuid",
                "in al, dx",
            )
        ),
        ("mov [rsp-8], rdi\n mov [rsp-6], al\n mov rax, [rsp-8]\n mov eax, [rax]\n ret", set()),
        ("mov rax, [rsp-16]\n mov eax, [rax]\n ret", set()),
    ],
)
def test_accesses(build, assembly, found):
    assert accesses(build, assembly) == found


def test_in_the_middle_of_a_function_a_pointer_may_lead_below_the_stack_pointer(build):
    assembly = "lea rax, [rsp-8]\n mov [rsp-8], rdi\n mov rax, [rax]\n mov rax, [rax+8]\n ret"
    code = Module.assembled(build, function("tested", assembly))["tested"]
    found = certain_accesses(code, code.start + 5)
    assert {each for each in found if each.pointer.register != "rsp"} == {Access(Pointer("rax"), 0, 8)}
