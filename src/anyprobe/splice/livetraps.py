"""Whether an ``int3`` may stand for a moment in a running program: SIGTRAP must be ours, and open in every thread."""

import time
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetExited
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.signalactions import current_action
from anyprobe.splice.traphandler import SIGTRAP, TRAP_BIT, SignalAction
from anyprobe.target import procfs

if TYPE_CHECKING:
    from anyprobe.splice.traps import Traps
    from anyprobe.target.process import Process
    from anyprobe.target.remote import RemoteCalls

_RT_SIGACTION, _MASK_BYTES = 13, 8
_PATIENCE = 0.05
"""Seconds to wait for threads to unblock SIGTRAP: libc blocks all signals for moments."""
_PAUSE = 0.001


def wrong_action(process: "Process", remote: "RemoteCalls", traps: "Traps", site: int) -> Refusal | None:
    """Return why the signal actions are not as they must be. Precondition: the handler is installed."""
    return traps.replaced(current_action(process, remote), site) or _masking_handler(process, remote, site)


def disturbed(process: "Process", site: int) -> Refusal | None:
    """Return why no ``int3`` may be placed at this moment, after waiting a little for a better one."""
    deadline = time.monotonic() + _PATIENCE
    while relatives := process.relatives.find():
        if time.monotonic() > deadline:
            detail = f"process {relatives[0]} runs in the same memory with signal actions of its own"
            return Refusal(Reason.TRAP_UNSAFE, site, detail)
        time.sleep(_PAUSE)
    while tid := blocking_thread(process):
        if time.monotonic() > deadline:
            detail = f"thread {tid} has SIGTRAP blocked: a trap would kill the program"
            return Refusal(Reason.TRAP_UNSAFE, site, detail)
        time.sleep(_PAUSE)
    return None


def blocking_thread(process: "Process") -> int:
    """Return a thread that has SIGTRAP blocked now, 0 if there is none."""
    for tid in process.threads():
        try:
            status = procfs.parse_status(procfs.read_file(f"/proc/{process.pid}/task/{tid}/status"))
        except OSError as error:
            if error.errno not in procfs.GONE_ERRORS:
                raise
            continue
        kernel_worker = status.get("Kthread", "0") != "0"
        if not kernel_worker and int(status.get("SigBlk", "0"), 16) & TRAP_BIT:
            return tid
    if process.exited():
        raise TargetExited(process.pid, process.exit_status)
    return 0


def _masking_handler(process: "Process", remote: "RemoteCalls", site: int) -> Refusal | None:
    """Return a refusal if a signal handler of the program runs with SIGTRAP blocked."""
    caught = int(procfs.read_status(process.pid).get("SigCgt", "0"), 16)
    for number in range(1, 65):
        if number == SIGTRAP or not caught >> (number - 1) & 1:
            continue
        place = remote.place(bytes(SignalAction.SIZE))
        remote.syscall(_RT_SIGACTION, number, 0, place, _MASK_BYTES)
        action = SignalAction.unpack(process.mem.read(place, SignalAction.SIZE))
        if action.is_handler and action.mask & TRAP_BIT:
            detail = f"the program's handler of signal {number} runs with SIGTRAP blocked"
            return Refusal(Reason.TRAP_UNSAFE, site, detail)
    return None
