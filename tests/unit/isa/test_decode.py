import shutil
import time
from pathlib import Path

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, decode_one, decode_range
from support import objdump_listing

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")

FLOWS = {
    "4889f8": Flow.NEXT,  # mov rax, rdi
    "0f01d5": Flow.NEXT,  # xend
    "eb10": Flow.JUMP,
    "e910000000": Flow.JUMP,
    "f2e910000000": Flow.JUMP,  # bnd jmp
    "7402": Flow.JCC,
    "0f8400000000": Flow.JCC,
    "e202": Flow.JCC,  # loop
    "e302": Flow.JCC,  # jrcxz
    "e800000000": Flow.CALL,
    "ffd0": Flow.INDIRECT_CALL,
    "ff1500000000": Flow.INDIRECT_CALL,
    "ffe0": Flow.INDIRECT_JUMP,
    "3effe0": Flow.INDIRECT_JUMP,  # notrack jmp
    "c3": Flow.RET,
    "c20800": Flow.RET,
    "0f05": Flow.SYSCALL,
    "cd80": Flow.SYSCALL,
    "0f0b": Flow.TRAP,  # ud2
    "f4": Flow.TRAP,  # hlt
    "cc": Flow.TRAP,
    "c7f800000000": Flow.XBEGIN,
    "cb": Flow.OTHER,  # retf
    "48cf": Flow.OTHER,  # iretq
    "cd03": Flow.TRAP,  # int 3
    "cd04": Flow.OTHER,  # int 4
    "06": Flow.INVALID,
}


@pytest.mark.parametrize(("code", "flow"), FLOWS.items(), ids=list(FLOWS))
def test_flow(code, flow):
    insn = decode_range(bytes.fromhex(code), 0x1000)[0]
    assert insn.flow is flow
    assert (insn.target is not None) == (flow in (Flow.JUMP, Flow.JCC, Flow.CALL, Flow.XBEGIN))


def test_only_these_do_not_go_on():
    stopping = {code for code in FLOWS if not decode_range(bytes.fromhex(code), 0)[0].falls_through}
    assert stopping == {"eb10", "e910000000", "f2e910000000", "ffe0", "3effe0", "c3", "c20800", "0f0b", "f4", "06"}


def test_what_the_decoder_does_not_know_is_refused():
    refusal = decode_one(bytes.fromhex("d51089c0"), 0x1000)  # rex2: APX
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.UNDECODABLE


FWAIT = "objdump takes fwait for a prefix of what follows"


@pytest.mark.skipif(not shutil.which("objdump") or not LIBC.exists(), reason="needs objdump and glibc")
def test_lengths_agree_with_objdump_on_libc():
    listed = list(objdump_listing.blocks(LIBC))
    assert sum(map(len, listed)) > 100_000
    found = [each for block in listed for each in objdump_listing.disagreements(block)]
    assert [each for each in found if objdump_listing.explanation(each) != FWAIT] == []
    assert len(found) < 100


@pytest.mark.parametrize(("theirs", "why"), [
    ((b"\x9b\xdf\xe0", "fstsw  ax"), FWAIT),
    ((b"\x4f", "rex.WRXB"), "objdump prints prefixes without use as instructions of their own"),
    ((b"\x2f", "(bad)"), None),
    ((b"\x8c\xfa", "mov    edx,?"), "the decoder does not know it"),
    (
        (b"\x66\xe9\xdd\x00", "jmpw   e253"),
        "a branch with an operand size prefix: objdump reads it as AMD does, the decoder as Intel does",
    ),
    ((b"\x48\x89", "mov    rax,rdi"), "unexplained"),
])  # fmt: skip
def test_disagreements_with_objdump_are_noticed(theirs, why):
    code, text = theirs
    rest = {b"\x4f": b"\x53", b"\x48\x89": b"\xf8", b"\x66\xe9\xdd\x00": b"\0\0"}.get(code, b"")
    block = [(0x1000, code, text)] + ([(0x1000 + len(code), rest, "rest")] if rest else [])
    found = [objdump_listing.explanation(each) or "unexplained" for each in objdump_listing.disagreements(block)]
    assert found == ([] if why is None else [why])


def test_decoding_half_a_million_instructions_takes_about_a_second():
    content = bytes.fromhex("554889e5488b0500100000e80000000084c0740531c05dc3") * 57_000
    started = time.process_time()
    insns = decode_range(content, 0x400000)
    assert len(insns) >= 500_000
    assert time.process_time() - started < 4  # four times the aim: test machines are busy
