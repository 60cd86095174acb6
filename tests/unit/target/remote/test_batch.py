"""The code that makes many system calls in one run."""

import struct

from anyprobe.isa import disassemble
from anyprobe.target.remote.batch import (
    BatchedCall,
    Outcome,
    assemble,
    batch_code,
    blank_outcome,
    capacity,
    read_outcome,
)


def test_the_listing_says_what_the_bytes_are():
    code, listing = assemble()
    shown = [text for _, _, text in disassemble.format(code, 0)]
    assert shown[0] == "lea r13, [0x80]"
    assert shown.count("syscall") == 2
    assert shown[shown.index("ret") + 1 :] == ["int3"] * (len(shown) - shown.index("ret") - 1)
    assert len(code) == 0x80
    assert "mov eax, 23" in listing()  # select


def test_the_list_follows_the_code_and_ends():
    calls = [BatchedCall(9, (0x1000, 4096, 5, 0x100001, -1, 8192), 0x1000), BatchedCall(3, (7,))]
    content = batch_code(calls)[0x80:]
    assert struct.unpack_from("<8Q", content) == (9, 0x1000, 4096, 5, 0x100001, (1 << 64) - 1, 8192, 0x1000)
    assert struct.unpack_from("<8Q", content, 64) == (3, 7, 0, 0, 0, 0, 0, 0)
    assert content[128:] == b"\xff" * 8


def test_what_fits():
    size = 4096
    calls = [BatchedCall(39, ())] * capacity(size)
    assert len(batch_code(calls)) <= size < len(batch_code([*calls, *calls[:1]])) + 64


def test_the_outcome_starts_blank():
    assert read_outcome(blank_outcome()) == Outcome(False, 0, 0)
    assert struct.unpack_from("<QQ", blank_outcome(), 24) == (0, 20_000)
