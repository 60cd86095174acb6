"""What the kernel's log says of what has ended programs: at which instruction that was (``/dev/kmsg``).

These are faults, and system calls that a seccomp filter ends a process for, where no daemon takes audit records.

Every user may read it where ``kernel.dmesg_restrict`` is 0, else the administrator. Faults are told while
``debug.exception-trace`` is 1, as it is from the start, and not more than ten in five seconds.
"""

import os
import re
from contextlib import suppress
from functools import cache
from typing import NamedTuple

_MOST = 8192
"""Bytes of a record."""
_FAULT = re.compile(
    r";(?:traps: )?(?P<name>.*)\[(?P<tid>\d+)\]:? (?P<what>.*?) ip[ :](?P<pc>[0-9a-f]+) sp[ :][0-9a-f]+"
    r"(?:.*? in (?P<file>[^\[]+)\[)?"
)
_FORBIDDEN = re.compile(r"audit: type=1326 .* pid=(?P<tid>\d+) .* sig=31 .* ip=0x(?P<pc>[0-9a-f]+) code=0x80000000")
"""SECCOMP_RET_KILL_PROCESS: SIGSYS."""
_FIRST_PIDS = 0xEFFFFFFC
"""The inode of the first namespace of process ids, whose numbers the log has."""


class Fault(NamedTuple):
    """One line of the log."""

    tid: int
    """The thread's number in the first namespace."""
    pc: int
    file: str
    """The name of the file that the instruction is of, or the special name of its memory; empty where it is of none."""
    is_forbidden: bool = False
    """Whether it is a system call that a filter forbids."""


class KernelLog:
    """The faults since this was made."""

    def __init__(self) -> None:
        """Begin at the end of the log; raise ``OSError`` where it may not be read."""
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)
        self._faults: list[Fault] = []
        self.has_our_numbers = os.stat("/proc/self/ns/pid").st_ino == _FIRST_PIDS
        """Whether threads have the same numbers for this process."""

    def faults(self) -> list[Fault]:
        """Return what it has told by now, the first one first."""
        while True:
            try:
                record = os.read(self._fd, _MOST)
            except BrokenPipeError:  # what was not read in time is gone
                continue
            except OSError:
                return self._faults
            text = record.decode(errors="replace")
            if found := _FAULT.search(text):
                self._faults.append(Fault(int(found["tid"]), int(found["pc"], 16), found["file"] or ""))
            elif found := _FORBIDDEN.search(text):
                self._faults.append(Fault(int(found["tid"]), int(found["pc"], 16), "", is_forbidden=True))


@cache
def kernel_log() -> KernelLog | None:
    """Return the log since this was called first, None where it may not be read."""
    with suppress(OSError):
        return KernelLog()
    return None
