"""Where ``errno`` is, read off code: of this process's own C library, and of other shapes that there are."""

import ctypes

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.probes.providers.function.handlers.errno_place import errno_offset, errno_word, find_errno, find_word

LIBC = ctypes.CDLL(None, use_errno=True)
START = ctypes.cast(LIBC.__errno_location, ctypes.c_void_p).value
SHARED = bytes.fromhex("488b05f90f0000 644803042500000000 c3".replace(" ", ""))
"""mov rax, [rip+0xff9]; add rax, fs:[0]; ret"""


def word(address):
    return int.from_bytes(ctypes.string_at(address, 8), "little")


def test_it_is_what_the_library_says():
    LIBC.__errno_location.restype = ctypes.c_void_p
    LIBC.pthread_self.restype = ctypes.c_void_p
    found = errno_offset(ctypes.string_at(START, 32), START, word)
    assert LIBC.pthread_self() + found == LIBC.__errno_location()
    where = errno_word(ctypes.string_at(START, 32), START)
    assert word(where) == found & (1 << 64) - 1


@pytest.mark.parametrize(
    ("code", "offset"),
    [
        (SHARED, -0x80),
        (b"\xf3\x0f\x1e\xfa" + SHARED, -0x80),  # endbr64
        (bytes.fromhex("48c7c0c0ffffff 6448030425 00000000 c3".replace(" ", "")), -0x40),  # mov rax, -0x40; add
        (bytes.fromhex("64488b0425 00000000 4883e840 c3".replace(" ", "")), -0x40),  # mov rax, fs:[0]; sub rax, 0x40
        (bytes.fromhex("64488b0425 00000000 4805c0ffffff c3".replace(" ", "")), -0x40),
        (bytes.fromhex("64488b0425 00000000 c3".replace(" ", "")), None),  # the thread pointer itself
        (bytes.fromhex("48c7c0c0ffffff c3".replace(" ", "")), None),
        (bytes.fromhex("6448030425 00000000 6448030425 00000000 c3".replace(" ", "")), None),
        (bytes.fromhex("64488b0425 10000000 c3".replace(" ", "")), None),
        (bytes.fromhex("ff2500000000"), None),
        (b"\x90" * 32, None),
    ],
)
def test_only_what_adds_to_the_thread_pointer_is_understood(code, offset):
    assert errno_offset(code, 0x1000, lambda address: -0x80 & (1 << 64) - 1) == offset


def test_the_word_is_known_before_it_is_written():
    assert errno_word(SHARED, 0x1000) == 0x1000 + 7 + 0xFF9
    assert errno_word(bytes.fromhex("48c7c0c0ffffff644803042500000000c3"), 0x1000) is None


class Bytes:
    def __init__(self, content):
        self.content = content

    def read(self, address, size):
        if self.content is None:
            raise MemoryFault(address, size)
        return self.content


def test_the_first_that_can_be_understood_counts():
    places = [(Bytes(None), 0, 0), (Bytes(b"\x90" * 32), 0, 0), (Bytes(SHARED), 0x1000, 0x4000)]
    assert find_errno(places, Bytes((-0x80).to_bytes(8, "little", signed=True))) == -0x80
    assert find_word(places) == 0x5000 + 7 + 0xFF9
    assert find_errno(places[:2], Bytes(b"")) is None
    assert find_word([]) is None
