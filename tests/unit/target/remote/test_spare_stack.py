"""Where a C library's record says that a thread's stack begins."""

import struct
from types import SimpleNamespace

import pytest

from anyprobe.target.remote.spare_stack import _recorded_start
from support.bytes_memory import BytesMemory

PAGE, STACK = 4096, 8 << 20
GUARD = 0x7F00_0000_0000
BLOCK = GUARD + PAGE + STACK - 0x940
ID, MUTEXES, RECORD = 0x2D0, 0x2D8, 0x690
"""Where glibc keeps them in a control block."""


@pytest.mark.parametrize("thread_id", [0, 1, 12_000, 16_000, 4_194_303])
@pytest.mark.parametrize("before_a_pointer", [0, 1])
def test_it_is_told_from_other_pairs_of_words(thread_id, before_a_pointer):
    content = bytearray(0x940)
    for at, word in (
        (0, BLOCK), (ID, thread_id), (MUTEXES, BLOCK + MUTEXES + 8), (0x508, before_a_pointer), (0x510, BLOCK + 0x310),
        (RECORD, GUARD), (RECORD + 8, PAGE + STACK),
    ):  # fmt: skip
        struct.pack_into("<Q", content, at, word)
    thread = SimpleNamespace(registers=SimpleNamespace(fs_base=BLOCK, rsp=BLOCK - 512))
    assert _recorded_start(BytesMemory(BLOCK, bytes(content)), thread, GUARD) == GUARD
    assert _recorded_start(BytesMemory(BLOCK, bytes(content)), thread, GUARD + 2 * PAGE) == 0
