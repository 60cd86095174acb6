"""Which instructions store to memory that a test before them can find."""

import pytest
from iced_x86 import Decoder

from anyprobe.isa.stores import is_masked, is_store, stored_bytes, string_bytes


@pytest.mark.parametrize(
    ("code", "size"),
    [
        ("8807", 1),  # mov [rdi], al
        ("66890477", 2),  # mov [rdi+rsi*2], ax
        ("890500010000", 4),  # mov [rip+0x100], eax
        ("f0480fb117", 8),  # lock cmpxchg [rdi], rdx
        ("ff07", 4),  # inc dword [rdi]
        ("0f1107", 16),  # movups [rdi], xmm0
        ("62f17c481107", 64),  # vmovups [rdi], zmm0
        ("aa", 1),  # stosb
        ("f348ab", 8),  # rep stosq
        ("a5", 4),  # movsd
        ("480fba2f03", 8),  # bts qword [rdi], 3
    ],
)
def test_stores(code, size):
    insn = next(iter(Decoder(64, bytes.fromhex(code))))
    assert is_store(insn)
    assert stored_bytes(insn) == size
    assert bool(string_bytes(insn)) is (size in {1, 4, 8} and code in {"aa", "f348ab", "a5"})


@pytest.mark.parametrize(
    "code",
    [
        "8b07",  # mov eax, [rdi]
        "3907",  # cmp [rdi], eax
        "890424",  # mov [rsp], eax: its own stack
        "50",  # push rax
        "e800000000",  # call
        "64890425 00000000",  # mov fs:[0], eax
        "488d07",  # lea rax, [rdi]
        "480fab07",  # bts [rdi], rax: the bit may be anywhere
        "62f27d49a20c06",  # vscatterdps [rsi+zmm0]{k1}, zmm1
    ],
)
def test_no_stores(code):
    assert not is_store(next(iter(Decoder(64, bytes.fromhex(code)))))


def test_what_a_mask_leaves_out_is_not_known():
    masked, whole = (next(iter(Decoder(64, bytes.fromhex(code)))) for code in ("62f17e49 7f07", "62f17c481107"))
    assert is_store(masked)
    assert is_masked(masked)
    assert not is_masked(whole)
