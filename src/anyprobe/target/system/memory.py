"""The target's memory through ``/proc/PID/mem``."""

import errno
import os
import struct
from collections.abc import Callable

from anyprobe.core.errors import TargetError, TargetExited
from anyprobe.core.memory import MemoryFault
from anyprobe.target.system import gateway, procfs, ptrace

_WORD = 8


class ReadableMemory:
    """Reads the address space that the process had when this was opened.

    After an exec or the end of the process the file no longer leads anywhere: ``TargetExited``.
    """

    def __init__(self, pid: int, access: int = os.O_RDONLY) -> None:
        """Open the memory; raises ``OSError``."""
        self._pid = pid
        self._fd = gateway.open_file(f"/proc/{procfs.voice(pid)}/mem", access | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them cannot be read."""
        try:
            content = gateway.pread(self._fd, size, address)
        except (OSError, OverflowError) as error:
            raise self._fault(error, address, size) from error
        while len(content) < size:
            try:
                more = gateway.pread(self._fd, size - len(content), address + len(content))
            except (OSError, OverflowError) as error:
                raise self._fault(error, address, size) from error
            if not more:
                raise TargetExited(self._pid)
            content += more
        return content

    def alive(self, address: int) -> bool:
        """Return whether the address space still exists; ``address`` is any mapped one."""
        try:
            return bool(gateway.pread(self._fd, 1, address))
        except OSError as error:
            return error.errno == errno.EIO

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            gateway.close(fd)

    def _fault(self, error: OSError | OverflowError, address: int, size: int) -> Exception:
        if isinstance(error, OverflowError) or error.errno in (errno.EIO, errno.EFAULT, errno.EINVAL):
            return MemoryFault(address, size)
        return TargetError(f"cannot access the memory of process {self._pid}: {error.strerror}")


class TargetMemory(ReadableMemory):
    """Reads and writes the address space that the process had when this was opened."""

    def __init__(self, pid: int, stopped_thread: Callable[[], int | None]) -> None:
        """Open the memory; raises ``OSError``. ``stopped_thread`` names a thread that anyprobe has stopped, if any."""
        super().__init__(pid, os.O_RDWR)
        self._stopped_thread = stopped_thread

    def write(self, address: int, content: bytes) -> None:
        """Write all of ``content`` to data, also where the program may not; raise where that is impossible."""
        self._write(address, content)

    def write_text(self, address: int, content: bytes) -> None:
        """Write all of ``content`` to the program's instructions: only for the module that knows why this is safe."""
        self._write(address, content)

    def _write(self, address: int, content: bytes) -> None:
        done = 0
        while done < len(content):
            try:
                count = gateway.pwrite(self._fd, content[done:] if done else content, address + done)
            except (OSError, OverflowError) as error:
                refused = isinstance(error, OSError) and error.errno in (errno.EIO, errno.EFAULT)
                if refused and self._poke(address + done, content[done:]):
                    return
                raise self._fault(error, address + done, len(content) - done) from error
            if count == 0:
                raise TargetExited(self._pid)
            done += count

    def _poke(self, address: int, content: bytes) -> bool:
        """Write through ptrace: kernels can be told not to let ``/proc/PID/mem`` override protections."""
        tid = self._stopped_thread()
        if tid is None:
            return False
        try:
            first = address & ~(_WORD - 1)
            last = (address + len(content) + _WORD - 1) & ~(_WORD - 1)
            words = bytearray(self.read(first, last - first))
            words[address - first : address - first + len(content)] = content
            for position, (word,) in enumerate(struct.iter_unpack("<Q", words)):
                ptrace.poke(tid, first + position * _WORD, word)
        except (OSError, MemoryFault):
            return False
        return True
