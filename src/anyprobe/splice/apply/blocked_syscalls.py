"""Threads inside a system call: where one may go when the code around its ``syscall`` moves.

Such a thread's pc is after the ``syscall``, and where the kernel restarts the call it executes the two bytes before
the pc once more. So only a place after another ``syscall`` will do, and bytes that end in one may not change unseen.
"""

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.splice.emitted import EmittedPatch

if TYPE_CHECKING:
    from anyprobe.target.base import StoppedThread

SYSCALL = b"\x0f\x05"
_NO_CALL = 1 << 63


def is_asleep(memory: Memory, thread: "StoppedThread") -> bool:
    """Return whether a thread is inside a system call that a ``syscall`` made, or has not gone on since."""
    if thread.registers.orig_rax >= _NO_CALL:
        return False
    try:
        return bytes(memory.read(thread.registers.rip - len(SYSCALL), len(SYSCALL))) == SYSCALL
    except MemoryFault:
        return False


def after_copy(patch: EmittedPatch, pc: int) -> int | None:
    """Return where in a patch a thread asleep before ``pc`` goes on: after a copy of its ``syscall``."""
    copies = (place + len(SYSCALL) for old, place in patch.copies if old + len(SYSCALL) == pc)
    return next((target for target in copies if _follows_syscall(patch, target)), None)


def _follows_syscall(patch: EmittedPatch, target: int) -> bool:
    end = target - patch.address
    return patch.code[max(end - len(SYSCALL), 0) : end] == SYSCALL


class Sleepers:
    """Finds the original place of threads asleep in the displaced copies of some patches."""

    def __init__(self, patches: Iterable[EmittedPatch]) -> None:
        """Take the patches; none overlaps another."""
        self._patches = sorted(patches, key=lambda patch: patch.address)
        self._starts = [patch.address for patch in self._patches]

    def after_original(self, pc: int) -> tuple[EmittedPatch, int] | None:
        """Return the patch, and the address after the ``syscall``, of whose copy there ``pc`` is the end."""
        index = bisect_right(self._starts, pc) - 1
        patch = self._patches[index] if index >= 0 else None
        if patch is None or pc > patch.end or not _follows_syscall(patch, pc):
            return None
        copied = (old for old, place in patch.copies if place + len(SYSCALL) == pc)
        return next(((patch, old + len(SYSCALL)) for old in copied), None)

    def wake_in_original(self, memory: Memory, threads: Iterable["StoppedThread"]) -> None:
        """Have threads that sleep in copies of system calls wake in the text, which is restored."""
        for thread in threads:
            found = self.after_original(thread.registers.rip)
            if found is None or not is_asleep(memory, thread):
                continue
            with suppress(MemoryFault):
                if memory.read(found[1] - len(SYSCALL), len(SYSCALL)) == SYSCALL:
                    thread.registers.rip = found[1]
                    thread.store_registers()
