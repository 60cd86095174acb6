"""The processor itself as the oracle: original and displaced copies run from equal random states."""

import platform
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.displaced import encodings, forms
from support.displaced.drawn import instructions
from support.displaced.oracle import WORLDS, judge
from support.displaced.verdicts import PREFIXED_BRANCH, differences, refused_without_reason

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")

# Instruction bytes with the assembly beside them.
INSTRUCTIONS = {
    "4889f8": "mov rax, rdi",
    "4801d8": "add rax, rbx",
    "4811c2": "adc rdx, rax",
    "29d0": "sub eax, edx",
    "483d44332211": "cmp rax, 0x11223344",
    "a801": "test al, 1",
    "d3e0": "shl eax, cl",
    "48c1e807": "shr rax, 7",
    "480fafc2": "imul rax, rdx",
    "f7e2": "mul edx",
    "9c": "pushfq",
    "50": "push rax",
    "5a": "pop rdx",
    "ff33": "push [rbx]",
    "8f4308": "pop [rbx+8]",
    "68efbeadde": "push 0xffffffffdeadbeef",
    "c8100000": "enter 16, 0",
    "488903": "mov [rbx], rax",
    "48897c24f8": "mov [rsp-8], rdi",
    "f0480103": "lock add [rbx], rax",
    "f0480fb113": "lock cmpxchg [rbx], rdx",
    "480fc103": "xadd [rbx], rax",
    "f3a4": "rep movsb",
    "f348ab": "rep stosq",
    "f2ae": "repne scasb",
    "f348a7": "repe cmpsq",
    "0f94c0": "sete al",
    "480f4cc2": "cmovl rax, rdx",
    "480fbcd0": "bsf rdx, rax",
    "0fc8": "bswap eax",
    "480fa3d8": "bt rax, rbx",
    "9e": "sahf",
    "f5": "cmc",
    "fd": "std",
    "c9": "leave",
    "f30f1efa": "endbr64",
    "660f1f440000": "nop word ptr [rax+rax]",
    "488b0500000800": "mov rax, [rip+0x80000]",
    "48890500000800": "mov [rip+0x80000], rax",
    "488d3d00000800": "lea rdi, [rip+0x80000]",
    "c7050000080078563412": "mov dword ptr [rip+0x80000], 0x12345678",
    "833d0000080005": "cmp dword ptr [rip+0x80000], 5",
    "f0480fc10500000800": "lock xadd [rip+0x80000], rax",
    "ff3500000800": "push [rip+0x80000]",
    "0f100500000800": "movups xmm0, [rip+0x80000]",
    "eb20": "jmp +0x20",
    "e900020000": "jmp +0x200",
    "e800020000": "call +0x200",
    "e800000000": "call +0",
    "41ffd3": "call r11",
    "41ff1424": "call [r12]",
    "43ff14ec": "call [r12+r13*8]",
    "ff542410": "call [rsp+0x10]",
    "ff1424": "call [rsp]",
    "ff5424f0": "call [rsp-0x10]",
    "41ffe3": "jmp r11",
    "43ff24ec": "jmp [r12+r13*8]",
    "c3": "ret",
    "c21000": "ret 0x10",
    "e220": "loop +0x20",
    "e120": "loope +0x20",
    "e020": "loopne +0x20",
    "e320": "jrcxz +0x20",
    "67e320": "jecxz +0x20",
    **{f"{0x70 + condition:02x}20": f"jcc {condition} +0x20" for condition in range(16)},
    **{f"0f{0x80 + condition:02x}00020000": f"jcc {condition} +0x200" for condition in range(16)},
}


LIBRARIES = (
    "/lib64/ld-linux-x86-64.so.2",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libm.so.6",
)


@pytest.mark.parametrize("world", WORLDS)
def test_copies_do_what_the_originals_do(world):
    verdicts = judge(INSTRUCTIONS, world, states=24, seed=1)
    assert differences(verdicts) == []
    assert {verdict for verdict, _ in verdicts.values()} == {"ran"}


@pytest.mark.parametrize("world", WORLDS)
def test_every_form_in_the_c_library(world):
    found = forms.Forms()
    for path in LIBRARIES:
        found.scan_file(path)
    assert len(found.instances) > 500
    verdicts = judge(found.codes(), world, states=3, seed=2)
    assert differences(verdicts) == []
    assert refused_without_reason(verdicts) == {}
    outcomes = [verdict for verdict, _ in verdicts.values()]
    assert outcomes.count("ran") > 0.8 * len(outcomes)


def test_every_direct_branch_under_many_prefixes():
    codes = sorted({code.hex() for code in encodings.direct_branches(random.Random(1))})
    verdicts = judge(codes, "high", states=8, seed=4)
    assert differences(verdicts) == []
    assert {detail.split(": ")[-1] for verdict, detail in verdicts.values() if verdict == "refused"} == {
        PREFIXED_BRANCH
    }


def test_calls_through_every_kind_of_operand():
    calls = sorted({code.hex() for code in encodings.indirect_branches(2)})
    verdicts = judge(random.Random(1).sample(calls, 1000), "higher", states=3, seed=5)
    assert differences(verdicts) == []
    assert refused_without_reason(verdicts) == {}
    refused = [verdict for verdict, _ in verdicts.values()].count("refused")
    assert 0 < refused < 0.1 * len(verdicts)


@settings(max_examples=25, deadline=None, database=None, derandomize=True)
@given(st.lists(instructions(), min_size=60, max_size=60), st.integers(0, 1 << 32), st.sampled_from(sorted(WORLDS)))
def test_whatever_is_drawn(drawn, seed, world):
    verdicts = judge(sorted({raw.hex() for raw in drawn}), world, states=3, seed=seed)
    assert differences(verdicts) == []
    assert refused_without_reason(verdicts) == {}


BROKEN = {
    "one byte further": "488b0500000800",  # mov rax, [rip+0x80000]
    "another flag": "4889f8",  # mov rax, rdi
    "another register": "4889f8",
    "another vector register": "4889f8",
    "another mask register": "4889f8",
    "another x87 control word": "4889f8",
    "below the stack pointer": "4889f8",
    "another condition": "7420",  # je +0x20
    "another return address": "ffd0",  # call rax
    "no fault": "0f0b",  # ud2
    "another fault": "0f0b",
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_the_oracle_notices(wrong):
    verdicts = judge([BROKEN[wrong]], "high", states=8, seed=3, wrong=wrong)
    assert differences(verdicts), verdicts


@pytest.mark.parametrize("wrong", sorted(set(BROKEN.values())))
def test_the_oracle_finds_nothing_in_right_copies(wrong):
    assert differences(judge([wrong], "high", states=8, seed=3)) == []
