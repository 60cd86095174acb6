"""The signal frame's layout, against offsets of the kernel's headers (arch/x86/include/uapi/asm/sigcontext.h)."""

import struct

from anyprobe.target.remote import frame
from anyprobe.target.remote.gadgets import Gadgets
from anyprobe.target.system.ptrace import Registers

TOP, RESTORER, MASK = 0x7FFFFFFFE123, 0x401000, 0x8000000000000001
OFFSETS = {
    "r8": 48, "r9": 56, "r10": 64, "r11": 72, "r12": 80, "r13": 88, "r14": 96, "r15": 104, "rdi": 112, "rsi": 120,
    "rbp": 128, "rbx": 136, "rdx": 144, "rax": 152, "rcx": 160, "rsp": 168, "rip": 176, "eflags": 184,
}  # fmt: skip


def built(size=832, features=0x7, used=0):
    registers = Registers()
    for number, name in enumerate(OFFSETS, 0x1000):
        setattr(registers, name, number)
    registers.cs, registers.ss = 0x33, 0x2B
    extended = bytearray(size)
    struct.pack_into("<Q", extended, 464, features)
    struct.pack_into("<Q", extended, 512, used)
    return (registers, *frame.build(TOP, registers, bytes(extended), MASK, Gadgets(0x402000, RESTORER)))


def word(content, offset):
    return struct.unpack_from("<Q", content, offset)[0]


def test_registers_are_where_the_kernel_looks():
    registers, start, content = built()
    assert word(content, 0) == RESTORER
    for name, offset in OFFSETS.items():
        assert word(content, offset) == getattr(registers, name), name
    assert word(content, 192) == 0x33 | 0x2B << 48
    assert start % 16 == 8
    assert start + len(content) <= TOP
    assert frame.fits(TOP, start)


def test_mask_follows_the_context_and_flags_announce_extended_state():
    _, _, content = built()
    assert word(content, 8) == 7
    assert word(content, 40 - 16) == 0  # ss_sp
    assert word(content, 32) == 0x55  # ss_flags that sigaltstack refuses
    assert word(content, 304) == MASK


def test_extended_state_is_aligned_and_marked():
    _, start, content = built()
    pointer = word(content, 232)
    assert pointer % 64 == 0
    at = pointer - start
    assert struct.unpack_from("<IIQI", content, at + 464) == (0x46505853, 836, 7, 832)
    assert struct.unpack_from("<I", content, at + 832) == (0x46505845,)


TILES, WITH_TILES = 0x602E7, 2816 + 8192


def test_where_tiles_are_not_in_use_the_state_ends_in_front_of_them():
    _, start, content = built(WITH_TILES, TILES, used=0x202E7)
    at = word(content, 232) - start
    assert struct.unpack_from("<IIQI", content, at + 464) == (0x46505853, 2820, TILES, 2816)
    assert struct.unpack_from("<I", content, at + 2816) == (0x46505845,)
    assert struct.unpack_from("<I", content, at + WITH_TILES) == (0x46505845,)  # for who has used them before


def test_tiles_in_use_are_part_of_the_state():
    _, start, content = built(WITH_TILES, TILES, used=TILES)
    at = word(content, 232) - start
    assert struct.unpack_from("<IIQI", content, at + 464) == (0x46505853, WITH_TILES + 4, TILES, WITH_TILES)
    assert struct.unpack_from("<I", content, at + 2816) == (0,)
