"""System calls of a simulated target: those that anyprobe makes in one, and no others."""

import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import RemoteCallFailed
from anyprobe.core.memory import MemoryFault
from anyprobe.target.remote.batch import BatchedCall
from anyprobe.target.system.ptrace import Registers
from support.simulated.threads import NOT_IN_A_CALL, RED_ZONE, SimulatedThread

if TYPE_CHECKING:
    from support.simulated.target import SimulatedTarget

_READ, _WRITE, _EXEC = 1, 2, 4
_SHARED, _FIXED, _ANONYMOUS, _FIXED_NOREPLACE = 1, 0x10, 0x20, 0x100000
_BELOW = 4096
_ACTION_BYTES = 32
_MASK64 = (1 << 64) - 1


class SimulatedCalls:
    """Makes system calls in one thread that stands still."""

    def __init__(self, target: "SimulatedTarget", thread: SimulatedThread) -> None:
        """Choose the thread."""
        self._target, self.thread = target, thread
        self._calls: dict[int, Callable[..., int]] = {
            3: self._close, 9: self._mmap, 11: self._munmap, 13: self._sigaction, 28: self._nothing,
            319: self._memfd_create, 324: self._nothing,
        }  # fmt: skip

    def syscall(self, number: int, *arguments: int) -> int:
        """Make a system call; raise ``RemoteCallFailed`` where it fails, or a test wants it to."""
        target = self._target
        target.calls_made += 1
        if target.calls_made == target.failing_call:
            raise RemoteCallFailed(f"system call {number}", errno.ENOMEM)
        result = self._calls[number](*arguments)
        if result < 0:
            raise RemoteCallFailed(f"system call {number}", -result)
        return result

    def run(self, calls: Sequence[BatchedCall], address: int) -> None:
        """Make many system calls; their code has to be where it is said to be, and executable."""
        assert "x" in self._target.mem.area_at(address).mapping.perms
        for call in calls:
            if self.syscall(call.number, *call.arguments) != call.expected:
                raise RemoteCallFailed(f"system call {call.number}", errno.EEXIST)

    def place(self, content: bytes) -> int:
        """Put bytes below the thread's stack."""
        address = (self.thread.actual.rsp - RED_ZONE - _BELOW - len(content)) & ~15
        self._target.mem.write(address, content)
        return address

    def settle(self) -> None:
        """Do nothing: a call that failed is over."""

    def open_descriptor(self, fd: int) -> int:
        """Return a descriptor of this process's for a file of the target's."""
        return os.dup(self._target.files[fd])

    # -- what the kernel does

    def _memfd_create(self, name: int, _flags: int) -> int:
        target = self._target
        text = target.mem.read(name, 64).partition(b"\0")[0].decode()
        number = max(target.files, default=2) + 1
        target.files[number] = os.memfd_create(text)
        target.names[os.fstat(target.files[number]).st_ino] = f"/memfd:{text}"
        return number

    def _close(self, fd: int) -> int:
        if fd not in self._target.files:
            return -errno.EBADF
        os.close(self._target.files.pop(fd))
        return 0

    def _mmap(self, start: int, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
        memory = self._target.mem
        if flags & _FIXED_NOREPLACE and not memory.is_free(start, start + size):
            return -errno.EEXIST
        if not flags & (_FIXED | _FIXED_NOREPLACE):
            return -errno.EINVAL  # anyprobe chooses all addresses itself
        letters = zip("rwx", (_READ, _WRITE, _EXEC), strict=True)
        perms = "".join(letter if protection & bit else "-" for letter, bit in letters)
        perms += "s" if flags & _SHARED else "p"
        if flags & _ANONYMOUS:
            memory.add(start, size, perms)
            return start
        if fd not in self._target.files:
            return -errno.EBADF
        inode = os.fstat(self._target.files[fd]).st_ino
        memory.add(start, size, perms, self._target.names[inode], inode=inode, offset=offset, fd=self._target.files[fd])
        return start

    def _munmap(self, start: int, size: int) -> int:
        self._target.mem.remove(start, start + size)
        return 0

    def _sigaction(self, signal: int, new: int, old: int, _mask_bytes: int) -> int:
        target = self._target
        before = target.actions.get(signal, bytes(_ACTION_BYTES))
        if new:
            target.actions[signal] = target.mem.read(new, _ACTION_BYTES)
        if old:
            target.mem.write(old, before)
        return 0

    def _nothing(self, *_arguments: int) -> int:
        return 0


def complete_call(target: "SimulatedTarget", thread: SimulatedThread) -> None:
    """Have a thread of the program come back from the system call that it is in; what is not known here returns 0."""
    registers = thread.actual
    call = _OF_PROGRAMS.get(registers.orig_rax)
    registers.rax = 0 if call is None else call(target, registers) & _MASK64
    registers.rcx, registers.r11, registers.orig_rax = registers.rip, registers.eflags, NOT_IN_A_CALL
    thread.load_registers()


def _getpid(target: "SimulatedTarget", _: Registers) -> int:
    return target.pid


def _readv(target: "SimulatedTarget", registers: Registers) -> int:
    """Copy within the target, as ``process_vm_readv`` on the process itself does."""
    if registers.rdi != target.pid:
        return -errno.ESRCH
    try:
        to, room = struct.unpack("<QQ", target.mem.read(registers.rsi, 16))
        source, size = struct.unpack("<QQ", target.mem.read(registers.r10, 16))
        target.mem.write(to, target.mem.read(source, min(room, size)))
    except MemoryFault:
        return -errno.EFAULT
    return int(min(room, size))


_OF_PROGRAMS: dict[int, Callable[["SimulatedTarget", Registers], int]] = {39: _getpid, 310: _readv}
"""The calls that generated code makes, by their numbers."""
