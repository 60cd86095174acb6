"""``/proc/kcore``: the running kernel's memory, its text as it is at the moment."""

import errno
import os
import struct
from functools import cached_property

from anyprobe.core.closing import Closing
from anyprobe.core.errors import PermissionDenied, UnsupportedTarget
from anyprobe.core.memory import MemoryFault

PATH = "/proc/kcore"
_HEADER_BYTES, _SEGMENTS_AT, _COUNT_AT = 64, 32, 56
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOADED = 1
_PORTION = 1 << 20
"""So much is read at once: a read of all of a kernel's text makes the kernel hold as much."""


class LiveMemory(Closing):
    """Memory of the running kernel, at its own addresses; nothing is written."""

    def __init__(self, path: str = PATH) -> None:
        """Open it; raise ``PermissionDenied`` or ``UnsupportedTarget`` with the reason."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UnsupportedTarget(f"{path}: the kernel was built without CONFIG_PROC_KCORE") from None
        except PermissionError as failure:
            if failure.errno == errno.EPERM and os.geteuid() == 0:
                raise PermissionDenied("lockdown", f"{path} cannot be read", "boot without lockdown") from None
            raise PermissionDenied("CAP_SYS_RAWIO", f"{path} cannot be read", "be root") from None

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @cached_property
    def _areas(self) -> list[tuple[int, int, int]]:
        """Where each area begins and ends, and where in the file it lies."""
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return []
        at, count = int.from_bytes(header[_SEGMENTS_AT:40], "little"), header[_COUNT_AT] | header[_COUNT_AT + 1] << 8
        table = os.pread(self._descriptor, count * _SEGMENT.size, at)
        rows = _SEGMENT.iter_unpack(table[: len(table) // _SEGMENT.size * _SEGMENT.size])
        return [(row[3], row[3] + row[6], row[2]) for row in rows if row[0] == _LOADED]

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them cannot be read."""
        for low, high, offset in self._areas:
            if low <= address and address + size <= high:
                return self._read_at(address, offset + address - low, size)
        raise MemoryFault(address, size)

    def _read_at(self, address: int, offset: int, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = os.pread(self._descriptor, min(size - len(found), _PORTION), offset + len(found))
            except OSError:
                part = b""
            if not part:
                raise MemoryFault(address + len(found), size - len(found))
            found += part
        return bytes(found)
