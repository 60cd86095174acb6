"""Wait statuses, decoded."""

import os
from enum import Enum

from anyprobe.target.system import ptrace


class Kind(Enum):
    """What a wait status says."""

    ENDED = "ended"
    TRAPPED = "trapped"
    """The stop that we asked for, or a group stop."""
    SIGNAL = "signal"
    """About to be given a signal."""
    SYSCALL = "syscall"
    EVENT = "event"


def decode(status: int) -> tuple[Kind, int]:
    """Return the kind and its signal, event or raw status."""
    if not os.WIFSTOPPED(status):
        return Kind.ENDED, status
    signal = os.WSTOPSIG(status)
    event = status >> 16
    if event == ptrace.EVENT_STOP:
        return Kind.TRAPPED, signal
    if event:
        return Kind.EVENT, event
    if signal & 0x80:
        return Kind.SYSCALL, signal & 0x7F
    return Kind.SIGNAL, signal


def describe(status: int) -> str:
    """Return an end's wait status in words."""
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exited with status {os.WEXITSTATUS(status)}"
