"""Other processes that run in the same address space: children of vfork, ``posix_spawn`` and ``clone(CLONE_VM)``."""

import errno
import os
import time

from anyprobe.target.system import gateway, procfs

_REUSE_TIME = 0.2
"""In a shorter time than this, seconds, the kernel does not come back to a pid it has given out."""


class Relatives:
    """Finds the processes that share an address space.

    Asking the kernel about every process each time would be slow. But a process comes to share memory only by being
    created, and the kernel's counter of pids tells whether any was created since the last look.
    """

    def __init__(self, pid: int) -> None:
        """Start with no known process."""
        self._pid = pid
        self._voice = pid
        self._last_pid = -1
        self._looked = 0.0
        self._strangers: set[int] = {pid, os.getpid()}
        self._sharing: list[int] = []

    def begin_alone(self) -> None:
        """Take note that no other process shares the memory: it came with a program that was executed just now.

        Precondition: that program has not run yet.
        """
        self._last_pid = procfs.read_last_pid()  # first: who comes while the others are listed is asked about
        self._looked = time.monotonic()
        self._strangers = {self._pid, os.getpid(), *procfs.read_processes()}

    def find(self) -> list[int]:
        """Return the other processes that share the memory now."""
        last_pid = procfs.read_last_pid()
        if self._sharing or last_pid != self._last_pid:
            self._voice = procfs.voice(self._pid)
        self._sharing = [pid for pid in self._sharing if self._shares(pid)]
        if last_pid == self._last_pid:
            return self._sharing
        now = time.monotonic()
        if last_pid < self._last_pid or now > self._looked + _REUSE_TIME:  # known numbers may mean new processes
            self._strangers = {self._pid, os.getpid()}
        self._looked = now
        present = set(procfs.read_processes())
        self._strangers &= present
        for pid in present - self._strangers - set(self._sharing):
            if self._shares(pid):
                self._sharing.append(pid)
            else:
                self._strangers.add(pid)
        self._last_pid = last_pid
        return self._sharing

    def _shares(self, pid: int) -> bool:
        try:
            if not gateway.kcmp_vm(self._voice, pid):
                return False
            # A target that has just died has no memory, which it "shares" with kernel threads and zombies.
            stat = procfs.read_stat(pid)
            return not (stat.kernel_thread or stat.ended)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                return self._looks_shared(pid)
            return False  # gone, a kernel thread, or not readable for this process

    def _looks_shared(self, pid: int) -> bool:
        """Compare where the program and its stack are, which differs by chance of layout between address spaces.

        A fork child has the same layout in memory of its own; stopping it too does no harm.
        """
        try:
            mine, other = procfs.read_stat(self._pid), procfs.read_stat(pid)
        except OSError:
            return False
        return mine.start_stack > 1 and (mine.start_code, mine.start_stack) == (other.start_code, other.start_stack)
