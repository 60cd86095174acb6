"""Where a program was when a fault ended it: as the kernel's log has it, and whose code it was.

The log has no SIGBUS: of these no place is known.
"""

import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.data.snapshots.processes import place_of_death, signal_of
from anyprobe.target.system.kernel_log import Fault, kernel_log

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.emitted import EmittedPatch

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS})


class Death(NamedTuple):
    """The instruction at which a program was ended."""

    pc: int
    place: str
    """The instruction by name: of what a patch has displaced, the original; empty where no code is known."""
    whose: str
    """``program`` or ``anyprobe``; empty where no code is known."""


def deaths_of_children(session: "ProbeHost") -> list[str]:
    """Return in words which fork children signals have ended, and where faults were.

    A child is told by its number, or by memory of the session's that the instruction of a fault lies in.
    """
    log, killed = kernel_log(), dict(session.children.killed())
    children = session.children.numbers() if log is not None and log.has_our_numbers else frozenset[int]()
    own = death_of(session, session.exit_status)
    found = []
    for fault in () if log is None else log.faults():
        covered = fault.tid != session.pid and session.splicing.holdings.covers(fault.pc)
        if fault.tid in children or (covered and (own is None or own.pc != fault.pc)):
            death, status = _at(session, fault.pc), killed.pop(fault.tid, None)
            what = "a system call that is forbidden" if fault.is_forbidden else "a fault"
            if status is None or os.WTERMSIG(status) in _FAULTS:
                found.append(f"fork child {fault.tid}: ended by {what}{place_of_death(*death)}")
            else:  # it has gone on after that
                killed[fault.tid] = status
    return [*found, *(f"fork child {pid}: killed by {signal_of(status)}" for pid, status in sorted(killed.items()))]


def death_of(session: "ProbeHost", status: int | None) -> Death | None:
    """Return where a process was that has ended with a wait status, None where that is not known."""
    log = kernel_log()
    if log is None or status is None or not os.WIFSIGNALED(status) or os.WTERMSIG(status) not in _FAULTS:
        return None
    fault = next((each for each in reversed(log.faults()) if _is_of(session, each, named=log.has_our_numbers)), None)
    return None if fault is None else _at(session, fault.pc)


def _is_of(session: "ProbeHost", fault: Fault, *, named: bool) -> bool:
    """Whether a fault is the session's target's: of its first thread, or at an address where only it has this file.

    Addresses are chosen at random when a program starts, but for those of programs that are linked to a fixed one.
    """
    if named and fault.tid == session.pid:
        return True
    if session.splicing.holdings.covers(fault.pc):
        return True
    loaded = session.objects.holding(fault.pc)
    return loaded is not None and bool(loaded.bias) and loaded.file_name == fault.file


def _at(session: "ProbeHost", pc: int) -> Death:
    patch = next((each for each in session.engine.patches() if each.address <= pc < each.end), None)
    if patch is not None:
        original = _displaced_at(patch, pc)
        named = session.symbols.name(original if original is not None else patch.starts[0][0])
        return Death(pc, named, "program" if original is not None else "anyprobe")
    if session.splicing.holdings.covers(pc):
        return Death(pc, "", "anyprobe")
    if session.objects.holding(pc) is None:
        return Death(pc, "", "")
    return Death(pc, session.symbols.name(pc), "program")


def _displaced_at(patch: "EmittedPatch", pc: int) -> int | None:
    """Return the original address of the displaced instruction at a pc; None where it is code around these."""
    before = dict(patch.starts)
    for (original, copy), (following, end) in pairwise(patch.copies):
        if copy <= pc < before.get(following, end):
            return original
    return None
