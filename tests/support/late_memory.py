"""A page of memory that does not come before it is told to: whoever touches it waits in a page fault."""

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from anyprobe.target.system import gateway

_USERFAULTFD, _MISSING = 323, 1
_API, _REGISTER, _WAKE, _ZERO_PAGE = 0xC018AA3F, 0xC020AA00, 0x8010AA02, 0xC020AA04
_VERSION = 0xAA


class LateMemory(NamedTuple):
    """Where the page is, and a descriptor that is readable when somebody waits for it."""

    address: int
    waited_for: int
    come: Callable[[], None]
    """Lets it come, all zeros."""
    never_come: Callable[[], None]
    """Lets who waits have a fault for good."""


@contextmanager
def memory_that_is_late() -> Iterator[LateMemory]:
    """Give such a page; at the end nobody waits for it."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address, libc = ctypes.addressof(ctypes.c_char.from_buffer(page)), ctypes.CDLL(None)
    fd = libc.syscall(_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)  # without the latter it always polls as an error
    assert fd >= 0
    gateway.ioctl(fd, _API, bytearray(struct.pack("<3Q", _VERSION, 0, 0)))
    gateway.ioctl(fd, _REGISTER, bytearray(struct.pack("<4Q", address, mmap.PAGESIZE, _MISSING, 0)))

    def come() -> None:
        gateway.ioctl(fd, _ZERO_PAGE, bytearray(struct.pack("<4Q", address, mmap.PAGESIZE, 0, 0)))

    def never_come() -> None:
        assert libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
        gateway.ioctl(fd, _WAKE, bytearray(struct.pack("<2Q", address, mmap.PAGESIZE)))

    try:
        yield LateMemory(address, fd, come, never_come)
    finally:
        os.close(fd)
