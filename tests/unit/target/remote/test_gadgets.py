"""Borrowed instructions."""

import pytest

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.target.remote import gadgets
from anyprobe.target.system.procfs import Mapping
from support.bytes_memory import BytesMemory

CALL = b"\xb8\x27\x00\x00\x00\x0f\x05\xc3"  # mov $39,%eax; syscall; ret
RESTORER = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"  # mov $15,%rax; syscall


def mapping(size, inode=0):
    return Mapping(0x1000, 0x1000 + size, "r-xp", 0, "fe:00", inode, "/x/libc.so.6", deleted=False)


def test_found_and_checked_again():
    content = b"\x90" * 64 + CALL + b"\x90" * 16 + RESTORER + b"\x90" * 64
    found = gadgets.find(BytesMemory(0x1000, content), [mapping(len(content))])
    assert found.syscall_ret == 0x1000 + 64 + 5
    assert found.restorer == 0x1000 + 88
    assert gadgets.still_there(BytesMemory(0x1000, content), found)
    assert not gadgets.still_there(BytesMemory(0x1000, content.replace(CALL, b"\xcc" * 8)), found)
    assert not gadgets.still_there(BytesMemory(0x9000, content), found)


def test_none():
    with pytest.raises(UnsupportedTarget):
        gadgets.find(BytesMemory(0x1000, bytes(256)), [mapping(256)])


def test_memory_is_read_once_for_all_of_them():
    content = b"\x90" * 64 + CALL + b"\x90" * 16 + RESTORER + b"\x90" * 64
    memory, reads = BytesMemory(0x1000, content), []

    class Counting:
        def read(self, address, size):
            if size > 8:
                reads.append(address)
            return memory.read(address, size)

    gadgets.find(Counting(), [mapping(len(content))])
    assert reads == [0x1000]


@pytest.mark.parametrize("call", [b"\x0f\x05\xc3", b"\x0f\x05\xf3\xc3"])
def test_all_bytes_of_a_return_stay_and_are_checked(call):
    content = b"\x90" * 64 + call + b"\x90" * 16 + RESTORER
    found = gadgets.find(BytesMemory(0x1000, content), [mapping(len(content))])
    assert (0x1000 + 64, len(call)) in found.ranges
    jumped = content.replace(call, call[:-1] + b"\xe9")
    assert not gadgets.still_there(BytesMemory(0x1000, jumped), found)
