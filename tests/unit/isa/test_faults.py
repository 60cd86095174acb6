"""Which instructions may fault."""

import pytest
from iced_x86 import Decoder

from anyprobe.isa.faults import may_fault


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("48 8b 07", "mov rax, [rdi]"),
        ("48 8b 45 08", "mov rax, [rbp+8]"),
        ("48 8b 44 04 08", "mov rax, [rsp+rax+8]"),
        ("48 8b 05 00 00 00 00", "mov rax, [rip]"),
        ("64 48 8b 07", "mov rax, fs:[rdi]"),
        ("ff 10", "call [rax]"),
        ("8f 00", "pop [rax]"),
        ("f7 f1", "div ecx"),
        ("0f 0b", "ud2"),
        ("cc", "int3"),
        ("f4", "hlt"),
        ("a4", "movsb"),
        ("f3 48 ab", "rep stosq"),
        ("f2 0f 58 c1", "addsd xmm0, xmm1"),
        ("f2 0f 2a c0", "cvtsi2sd xmm0, eax"),
        ("d9 e8", "fld1"),
    ],
)
def test_what_may_fault(code, what):
    assert may_fault(Decoder(64, bytes.fromhex(code), ip=0x1000).decode()), what


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("55", "push rbp"),
        ("58", "pop rax"),
        ("c9", "leave"),
        ("c3", "ret"),
        ("48 89 e5", "mov rbp, rsp"),
        ("48 8b 44 24 08", "mov rax, [rsp+8]"),
        ("64 48 8b 04 25 28 00 00 00", "mov rax, fs:[0x28]"),
        ("48 8d 47 08", "lea rax, [rdi+8]"),
        ("0f 1f 00", "nop [rax]"),
        ("66 0f ef c0", "pxor xmm0, xmm0"),
        ("31 c0", "xor eax, eax"),
        ("e8 00 00 00 00", "call"),
        ("e2 f0", "loop"),
        ("0f 05", "syscall"),
        ("c5 f8 77", "vzeroupper"),
    ],
)
def test_what_may_not(code, what):
    assert not may_fault(Decoder(64, bytes.fromhex(code), ip=0x1000).decode()), what
