"""Serialising the cores that run a process, so that bytes written meanwhile are what they execute next.

After ``serialise`` every thread of the address space has executed a serialising instruction or will do so before its
next instruction. That needs a registration, which the kernel keeps for as long as the address space lives; the first
one waits for all cores to have passed a quiet moment, some ten milliseconds.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.target.base import SystemCalls

MEMBARRIER = 324
"""The number of the system call."""
PRIVATE_EXPEDITED_SYNC_CORE, REGISTER_PRIVATE_EXPEDITED_SYNC_CORE = 1 << 5, 1 << 6


def register(remote: "SystemCalls") -> None:
    """Announce that the process will be serialised; ``RemoteCallFailed`` where the kernel cannot."""
    remote.syscall(MEMBARRIER, REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0)


def serialise(remote: "SystemCalls") -> None:
    """Have every core that runs the process execute a serialising instruction. Precondition: it is registered."""
    remote.syscall(MEMBARRIER, PRIVATE_EXPEDITED_SYNC_CORE, 0, 0)
