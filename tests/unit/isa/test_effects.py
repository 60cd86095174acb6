import pytest

from anyprobe.isa.decode import decode_one
from anyprobe.isa.effects import STATUS_FLAGS, effects
from anyprobe.isa.registers import GPRS, mask_of, names_of

# bytes: (reads, writes, flags read, all flags written)
EFFECTS = {
    "4889f8": ("rdi", "rax", False, False),  # mov rax, rdi
    "89f8": ("rdi", "rax", False, False),  # mov eax, edi: a 32-bit write is a full one
    "b001": ("rax", "", False, False),  # mov al, 1: the rest of rax stays
    "66b80100": ("rax", "", False, False),  # mov ax, 1
    "0f94c0": ("rax", "", True, False),  # sete al
    "31c0": ("", "rax", False, True),  # xor eax, eax reads nothing
    "4801d8": ("rax rbx", "rax", False, True),  # add rax, rbx
    "4811d8": ("rax rbx", "rax", True, True),  # adc rax, rbx
    "48ffc0": ("rax", "rax", False, False),  # inc rax keeps CF
    "d3e0": ("rax rcx", "rax", False, False),  # shl eax, cl: with cl = 0 the flags stay
    "c1e005": ("rax", "rax", False, True),  # shl eax, 5
    "c1e000": ("rax", "rax", False, False),  # shl eax, 0
    "480f44c1": ("rax rcx", "", True, False),  # cmove rax, rcx may keep rax
    "480fbcc1": ("rax rcx", "", False, True),  # bsf rax, rcx keeps rax for zero
    "50": ("rax rsp", "rsp", False, False),  # push rax
    "58": ("rsp", "rax rsp", False, False),  # pop rax
    "488b05000000 00".replace(" ", ""): ("", "rax", False, False),  # mov rax, [rip]
    "488b4424 08".replace(" ", ""): ("rsp", "rax", False, False),  # mov rax, [rsp+8]
    "0fb111": ("rax rcx rdx", "", False, True),  # cmpxchg [rcx], edx
    "f3a6": ("rcx rsi rdi", "", False, False),  # repe cmpsb: with rcx = 0 the flags stay
    "0f05": ("", "rcx r11", True, False),  # syscall: r11 receives the flags
    "48f7f1": ("rax rcx rdx", "rax rdx", False, True),  # div rcx
}


@pytest.mark.parametrize(("code", "expected"), EFFECTS.items(), ids=list(EFFECTS))
def test_effects(code, expected):
    reads, writes, flags_read, flags_written = expected
    found = effects(decode_one(bytes.fromhex(code), 0x1000))
    assert names_of(found.reads) == frozenset(reads.split())
    assert names_of(found.writes) == frozenset(writes.split())
    assert bool(found.flags_read) is flags_read
    assert (found.flags_written == STATUS_FLAGS) is flags_written


def test_effects_do_not_confuse_instructions_that_differ_in_more_than_a_displacement():
    shifted = effects(decode_one(bytes.fromhex("c1250010000005"), 0))  # shl dword ptr [rip+0x1000], 5
    unshifted = effects(decode_one(bytes.fromhex("c1250010000000"), 0))  # shl dword ptr [rip+0x1000], 0
    assert shifted.flags_written == STATUS_FLAGS
    assert unshifted.flags_written == 0


def test_registers_agree_with_the_decoder():
    import iced_x86

    for gpr in GPRS:
        assert gpr.iced == getattr(iced_x86.Register, gpr.name.upper())
        assert mask_of([gpr.name]) == 1 << gpr.number
    for column in ("number", "dwarf", "ptrace", "sigcontext"):
        assert len({getattr(gpr, column) for gpr in GPRS}) == len(GPRS)
