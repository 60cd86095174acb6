"""Whether an ``int3`` may stand for a moment in a running program: SIGTRAP is anyprobe's and open in all threads."""

import time
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.userspace.signal_actions import blocked_now, current_action, query_actions
from anyprobe.splice.userspace.trap_handler import TRAP_BIT
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.splice.userspace.traps import Traps
    from anyprobe.target.base import ProcessFacts, SystemCalls

_PATIENCE = 0.05
"""Seconds to wait for threads that sleep to unblock SIGTRAP: libc blocks all signals for moments."""
_RUNNING_PATIENCE = 1.0
"""Seconds for threads that run, or would if they had a processor: on a busy machine moments are longer."""
_PAUSE = 0.001


def wrong_action(process: "ProcessFacts", remote: "SystemCalls", traps: "Traps", site: int) -> Refusal | None:
    """Return why the signal actions are not as they must be. Precondition: the handler is installed."""
    return traps.replaced(current_action(process, remote), site) or _masking_handler(process, remote, site)


def disturbed(process: "ProcessFacts", site: int) -> Refusal | None:
    """Return why no ``int3`` may be placed at this moment, after waiting a little for a better one."""
    began = time.monotonic()
    while relatives := process.relatives.find():
        if time.monotonic() - began > _PATIENCE:
            detail = f"process {relatives[0]} runs in the same memory with signal actions of its own"
            return Refusal(Reason.TRAP_UNSAFE, site, detail)
        time.sleep(_PAUSE)
    try:
        while tid := blocked_now(process):
            if time.monotonic() - began > _patience_with(process.pid, tid):
                detail = f"thread {tid} has SIGTRAP blocked: a trap would kill the program"
                return Refusal(Reason.TRAP_UNSAFE, site, detail)
            time.sleep(_PAUSE)
    except StopTimeout as error:
        return Refusal(Reason.TRAP_UNSAFE, site, str(error))
    return None


def _patience_with(pid: int, tid: int) -> float:
    try:
        return _RUNNING_PATIENCE if procfs.read_stat(pid, tid).running else _PATIENCE
    except OSError:  # it ends
        return _RUNNING_PATIENCE


def _masking_handler(process: "ProcessFacts", remote: "SystemCalls", site: int) -> Refusal | None:
    """Return a refusal if a signal handler of the program runs with SIGTRAP blocked."""
    for number, action in query_actions(process, remote, process.handled_signals() & ~TRAP_BIT).items():
        if action.is_handler and action.mask & TRAP_BIT:
            detail = f"the program's handler of signal {number} runs with SIGTRAP blocked"
            return Refusal(Reason.TRAP_UNSAFE, site, detail)
    return None
