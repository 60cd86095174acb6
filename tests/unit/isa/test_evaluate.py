"""What is foretold of results is what the processor makes of the same values."""

import platform

import pytest

from anyprobe.isa.decode import decode_one
from anyprobe.isa.evaluate import CF, OF, SF, ZF, Flags, Known, evaluate, holds
from anyprobe.isa.registers import NUMBERS
from support.displaced import forms
from support.displaced.oracle import judge
from support.displaced.verdicts import differences

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
REGISTERS = {"rax": 7, "rcx": 0xFFFF_FFFF_FFFF_FFFE, "rdx": 0}
RESULTS = {
    "89c8": ("rax", 0xFFFF_FFFE),  # mov eax, ecx: the upper half becomes zero
    "6689c8": ("rax", 0xFFFE),  # mov ax, cx: the rest of rax stays
    "66b80100": ("rax", 1),  # mov ax, 1
    "88c8": ("rax", 0xFE),  # mov al, cl
    "88cc": ("rax", None),  # mov ah, cl: of these nothing is said
    "31db": ("rbx", 0),  # xor ebx, ebx, whatever was there
    "4829db": ("rbx", 0),  # sub rbx, rbx
    "21d3": ("rbx", 0),  # and ebx, edx, which is zero
    "480fafca": ("rcx", 0),  # imul rcx, rdx
    "8d04 48".replace(" ", ""): ("rax", 3),  # lea eax, [rax+2*rcx]
    "488d0500000000": ("rax", None),  # lea rax, [rip]: it depends on where it is
    "488b00": ("rax", None),  # mov rax, [rax]: memory
    "4898": ("rax", 7),  # cdqe
    "48d3e0": ("rax", 7 << 62 & (1 << 64) - 1),  # shl rax, cl
    "01d8": ("rax", None),  # add eax, ebx, which is not known
}


@pytest.mark.parametrize(("code", "expected"), RESULTS.items(), ids=list(RESULTS))
def test_results(code, expected):
    register, value = expected
    before = Known().with_registers({NUMBERS[name]: number for name, number in REGISTERS.items()})
    after = evaluate(decode_one(bytes.fromhex(code), 0x1000), before)
    assert after.registers[NUMBERS[register]] == value
    assert after.registers[NUMBERS["rsi"]] is None


def test_conditions_of_which_a_part_is_known():
    assert holds(6, Flags(ZF, ZF)) is True  # be: equal is enough
    assert holds(6, Flags(ZF, 0)) is None
    assert holds(7, Flags(CF, CF)) is False  # a
    assert holds(15, Flags(SF | OF, SF)) is False  # g
    assert holds(15, Flags(SF | OF, 0)) is None
    assert holds(12, Flags(SF | OF, OF)) is True  # l


def test_what_two_ways_have_in_common():
    one = Known((1, 2, *[None] * 14), Flags(ZF | CF, ZF))
    other = Known((1, 3, *[None] * 14), Flags(ZF | CF | SF, CF))
    assert one.merged(other) == Known((1, *[None] * 15), Flags())
    assert one.merged(one) == one


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")
def test_what_is_foretold_is_what_the_processor_does():
    found = forms.Forms()
    found.scan_file(LIBC)
    verdicts = judge(found.codes(), "low", states=8, seed=1, oracle="support.displaced.foretold")
    assert differences(verdicts) == []
    told = sum(detail for verdict, detail in verdicts.values() if verdict == "ran")
    assert told > 90_000
