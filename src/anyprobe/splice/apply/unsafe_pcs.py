"""Where threads may not be when a change is made, and where they go instead."""

import signal
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.splice.apply.blocked_syscalls import SYSCALL, Sleepers, after_copy
from anyprobe.splice.emitted import BODY, original_of

if TYPE_CHECKING:
    from anyprobe.splice.emitted import EmittedSplice, FunctionChange

NOWHERE = -1
FAULTS = (signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
"""What an instruction may bring upon its thread, at its own pc: after an ``int3`` the next one has still to be met."""


class UnsafePcs:
    """Finds the changes that a pc may be in the way of: the displaced ranges, and the patches that go.

    A thread in a patch that goes stays there, unless it is asleep and may stay so for ever: no new splice overwrites
    where it comes back (``Claims.landings``).
    """

    def __init__(self, changes: "Sequence[FunctionChange]") -> None:
        """Take the changes; each address is displaced by one splice at most."""
        ranges = [
            (*splice.displaced, change)
            for change in changes
            for splice in change.added
            if not splice.is_springboard  # it stands in what another splice displaces
        ]
        self._ranges = sorted(ranges, key=lambda item: item[0])
        self._lows = [low for low, _, _ in self._ranges]
        self._leaving = {
            id(splice.patch): (splice.patch, change)
            for change in changes
            for splice in change.removed
            if splice.patch is not None
        }
        bodies = [(patch, change) for patch, change in self._leaving.values() if patch.front is BODY]
        self._bodies = sorted(bodies, key=lambda item: item[0].address)
        self._sleepers = Sleepers(patch for patch, _ in self._leaving.values())

    def at(self, pc: int) -> "FunctionChange | None":
        """Return the change that displaces the instruction at a pc, or some bytes of it."""
        index = bisect_right(self._lows, pc) - 1
        found = self._ranges[index] if index >= 0 else None
        return found[2] if found is not None and pc < found[1] else None

    def leaving(self, pc: int) -> "tuple[FunctionChange, int] | None":
        """Return the change that takes out the copy of a ``syscall`` after which a pc is, and the place after it."""
        found = self._sleepers.after_original(pc)
        return None if found is None else (self._leaving[id(found[0])][1], found[1])

    def out_of_copy(self, pc: int) -> "tuple[FunctionChange, int] | None":
        """Return the change that takes out a function's copy in which a pc is, and the original's pc."""
        index = bisect_right(self._bodies, pc, key=lambda item: item[0].address) - 1
        patch, change = self._bodies[index] if index >= 0 else (None, None)
        original = original_of(patch, pc) if patch is not None and pc < patch.end else None
        return None if original is None or change is None else (change, original)


def destination(change: "FunctionChange", pc: int, *, asleep: bool = False, faulted: bool = False) -> int | None:
    """Return where a thread at ``pc`` must go when the change is made: ``None`` it may stay, ``NOWHERE`` it cannot.

    A thread that is asleep before ``pc`` may come back to the system call's instruction, which is displaced. One that
    has ``faulted`` at ``pc`` has arrived there: its handler is shown the copy, and may skip it. So has one at a
    repeated instruction, which may be half done: before the copy a signal would have it begin the line again.
    """
    for splice in change.added:
        low, high = splice.displaced
        patch = splice.patch
        if patch is None:
            continue
        if asleep and low <= pc - len(SYSCALL) < high:
            found = after_copy(patch, pc)
            return NOWHERE if found is None else found
        if faulted and low <= pc < high:
            return next((copy for old, copy in patch.copies if old == pc), None if pc == low else NOWHERE)
        if not asleep and low < pc < high:
            places = patch.copies if _is_repeated(splice, pc) else patch.starts
            return next((place for old, place in places if old == pc), NOWHERE)
    return None


def _is_repeated(splice: "EmittedSplice", pc: int) -> bool:
    at = [insn for insn in splice.planned.insns if insn.address + splice.bias == pc]
    if not at:
        return False
    from anyprobe.splice.translate.idempotence import is_repeated

    return any(map(is_repeated, at))
