import ctypes
import mmap
import platform

import pytest

from anyprobe.isa.decode import decode_one
from anyprobe.isa.effects import STATUS_FLAGS, effects, shape_of
from anyprobe.isa.registers import GPRS, mask_of, names_of
from support.displaced import forms
from support.displaced.oracle import judge
from support.displaced.verdicts import differences

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"

# bytes: (reads, writes, flags read, all flags written)
EFFECTS = {
    "4889f8": ("rdi", "rax", False, False),  # mov rax, rdi
    "89f8": ("rdi", "rax", False, False),  # mov eax, edi: a 32-bit write is a full one
    "b001": ("rax", "", False, False),  # mov al, 1: the rest of rax stays
    "66b80100": ("rax", "", False, False),  # mov ax, 1
    "0f94c0": ("rax", "", True, False),  # sete al
    "31c0": ("", "rax", False, True),  # xor eax, eax reads nothing
    "4983cbff": ("", "r11", False, True),  # or r11, -1 neither
    "4983cb7f": ("r11", "r11", False, True),  # or r11, 127 does
    "4801d8": ("rax rbx", "rax", False, True),  # add rax, rbx
    "4811d8": ("rax rbx", "rax", True, True),  # adc rax, rbx
    "48ffc0": ("rax", "rax", False, False),  # inc rax keeps CF
    "d3e0": ("rax rcx", "rax", False, False),  # shl eax, cl: with cl = 0 the flags stay
    "c1e005": ("rax", "rax", False, False),  # shl eax, 5 leaves AF and OF undefined
    "c1e000": ("rax", "rax", False, False),  # shl eax, 0
    "480f44c1": ("rax rcx", "", True, False),  # cmove rax, rcx may keep rax
    "480fbcc1": ("rax rcx", "", False, False),  # bsf rax, rcx keeps rax for zero, defines ZF only
    "480fafc1": ("rax rcx", "rax", False, False),  # imul rax, rcx defines CF and OF only
    "4821c8": ("rax rcx", "rax", False, True),  # and rax, rcx: AF is cleared, though it is called undefined
    "50": ("rax rsp", "rsp", False, False),  # push rax
    "58": ("rsp", "rax rsp", False, False),  # pop rax
    "488b05000000 00".replace(" ", ""): ("", "rax", False, False),  # mov rax, [rip]
    "488b4424 08".replace(" ", ""): ("rsp", "rax", False, False),  # mov rax, [rsp+8]
    "0fb111": ("rax rcx rdx", "", False, True),  # cmpxchg [rcx], edx
    "f3a6": ("rcx rsi rdi", "", False, False),  # repe cmpsb: with rcx = 0 the flags stay
    "0f05": ("", "rcx r11", True, False),  # syscall: r11 receives the flags
    "f3480f1ec8": ("rax", "", False, False),  # rdsspq rax keeps it where there is no shadow stack
    "0f01e3": ("rbx", "", False, False),  # smsw ebx: the kernel may write 16 bits in its place
    "ed": ("rax rcx rdx rsi rdi r8 r9 r10 r11", "", False, False),  # in eax, dx may call VMware's monitor
    "0f01d7": ("rax rcx rdx rbx rsi rdi r8 r9 r10 r11", "", False, False),  # enclu may enter an enclave
    "6e": ("rax rcx rdx rsi rdi r8 r9 r10 r11", "", False, False),  # outsb too
    "48f7f1": ("rax rcx rdx", "rax rdx", False, False),  # div rcx leaves all flags undefined
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
    assert shifted.flags_written
    assert unshifted.flags_written == 0


def run_with_flags(code, flags):
    """Run an instruction with these flags, rax = 0x12345678, rcx = 3 and rdx = 0 and return the flags behind it."""
    # push rdi; popf; mov eax, 0x12345678; mov ecx, 3; mov edx, 0; CODE; pushf; pop rax; ret
    before = bytes.fromhex("57 9d b878563412 b903000000 ba00000000")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(before + code + bytes.fromhex("9c 58 c3"))
    view = ctypes.c_char.from_buffer(page)
    return ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(ctypes.addressof(view))(flags)


# OF SF ZF AF CF PF: their bits in iced's masks and in the flags register
_BITS = {1: 0x800, 2: 0x80, 4: 0x40, 8: 0x10, 16: 0x1, 32: 0x4}


@pytest.mark.parametrize("code", [
    "01c8", "29c8", "39c8", "21c8", "09c8", "31c8", "31c0", "85c0", "a801", "83e0ff", "ffc0", "f7d8", "f7d0", "11c8",
    "19c0", "d1e0", "c1e005", "c1e000", "d3e0", "d1c8", "c1c807", "0fafc1", "f7e1", "f7f1", "0fbcc1", "0fbcca",
    "0fbdc1", "f30fb8c1", "f30fbcc1", "f30fbdc1", "0fa3c8", "0fbae003", "0fc1c8", "0fb1c8", "f5", "f8", "f9", "9e",
    "0fa4c805", "84c0", "3c01", "34ff", "0c00", "48 83ec00", "660f2ec1", "660f3817c1", "90",
])  # fmt: skip
def test_the_processor_agrees_about_the_flags(code):
    """What is called written must not depend on flags that are not read; the others may or may not."""
    raw = bytes.fromhex(code)
    found = effects(decode_one(raw, 0x1000))
    written, unread = (sum(bit for flag, bit in _BITS.items() if which & flag)
                       for which in (found.flags_written, ~found.flags_read))  # fmt: skip
    outcomes = {
        run_with_flags(raw, flags & unread | 2) & written for flags in (0, 0x8D5, 0x815, 0xC0, 0x1, 0x10, 0x804)
    }
    assert len(outcomes) == 1


def test_registers_agree_with_the_decoder():
    import iced_x86

    for gpr in GPRS:
        assert gpr.iced == getattr(iced_x86.Register, gpr.name.upper())
        assert mask_of([gpr.name]) == 1 << gpr.number
    for column in ("number", "dwarf", "ptrace", "sigcontext"):
        assert len({getattr(gpr, column) for gpr in GPRS}) == len(GPRS)


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("488b4508", "488b45"),  # mov rax, [rbp+8]
        ("c7842410000000fe000000", "c78424"),  # mov dword [rsp+16], 254
        ("e811223344", "e8"),  # call
        ("48b81122334455667788", "48b8"),  # mov rax, imm64
        ("c8100001", "c8"),  # enter 16, 1
        ("62f17c4858410f", "62f17c485841"),  # vaddps zmm0, zmm0, [rcx+15*64]
        ("c1e000", "c1e000"),  # shl eax, 0
        ("83c8ff", "83c8ff"),  # or eax, -1
        ("4889d8", "4889d8"),  # mov rax, rbx
    ],
)
def test_a_shape_is_an_instruction_without_the_constants_that_make_no_difference(code, shape):
    raw = bytes.fromhex(code)
    assert shape_of(decode_one(raw, 0x1000).iced, raw).hex() == shape


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")
def test_what_is_not_called_read_does_not_matter():
    found = forms.Forms()
    found.scan_file(LIBC)
    assert len(found.instances) > 500
    verdicts = judge(found.codes(), "low", states=3, seed=1, oracle="support.displaced.influence")
    assert differences(verdicts) == []
    outcomes = [verdict for verdict, _ in verdicts.values()]
    assert outcomes.count("ran") > 0.8 * len(outcomes)
