"""Futexes in memory that the controller shares with a target: waiting, waking, and holding them robustly."""

import ctypes
import errno
import math
import os
from collections.abc import Sequence
from typing import Self

# unlike the gateway's calls these may sleep, so other Python threads go on meanwhile
_libc = ctypes.CDLL(None, use_errno=True)
_SYS_FUTEX, _SYS_SET_ROBUST_LIST, _SYS_GET_ROBUST_LIST = 202, 273, 274
_WAIT, _WAKE = 0, 1
_HEAD_BYTES = 24
_EXPECTED = frozenset({errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
LIMIT = 2048
"""Elements of a robust list that the kernel looks at."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def wait(address: int, value: int, seconds: float) -> None:
    """Sleep while the word at an address has a value, until it is woken, for so long at most."""
    rest, whole = math.modf(seconds)
    time = _Timespec(int(whole), int(rest * 1e9))
    words = (_SYS_FUTEX, ctypes.c_uint64(address), _WAIT, ctypes.c_uint32(value), ctypes.byref(time), None, 0)
    if _libc.syscall(*words) == -1 and ctypes.get_errno() not in _EXPECTED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def wake(address: int) -> None:
    """Wake who sleeps on the word at an address."""
    _libc.syscall(_SYS_FUTEX, ctypes.c_uint64(address), _WAKE, 1, None, None, 0)


class RobustList:
    """The calling thread's robust list: when the thread ends, the kernel gives its futexes up and wakes the sleepers.

    A context manager; the C library's list of the thread is out of use meanwhile, so the thread must take no robust
    mutex. ``nodes`` are the addresses of the list's elements, each a word that we link; each futex is ``offset`` from
    its element.
    """

    def __init__(self, nodes: Sequence[int], offset: int) -> None:
        """Link the elements."""
        if len(nodes) > LIMIT:
            raise ValueError(f"{len(nodes)} are more than the kernel gives up")
        self._head = (ctypes.c_int64 * 3)(0, offset, 0)
        places = [ctypes.addressof(self._head), *nodes]
        for place, following in zip(places, [*places[1:], places[0]], strict=True):
            ctypes.c_uint64.from_address(place).value = following
        self._before = 0

    def __enter__(self) -> Self:
        """Have the kernel look at this list."""
        before, size = ctypes.c_uint64(), ctypes.c_uint64()
        _libc.syscall(_SYS_GET_ROBUST_LIST, 0, ctypes.byref(before), ctypes.byref(size))
        self._before = before.value
        if _libc.syscall(_SYS_SET_ROBUST_LIST, ctypes.byref(self._head), _HEAD_BYTES) == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return self

    def __exit__(self, *_: object) -> None:
        """Give the thread its own list back."""
        _libc.syscall(_SYS_SET_ROBUST_LIST, ctypes.c_uint64(self._before), _HEAD_BYTES)
