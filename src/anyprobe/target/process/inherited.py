"""What this process was started with, and a command that it starts is to have: as if the shell had started that.

Python ignores SIGPIPE and SIGXFSZ from its start and may add to its environment; anyprobe handles signals and may raise
a limit. A program that is anyprobe and nothing else takes note of what there was before. In another, a command inherits
what one of ``subprocess`` would.
"""

import os
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from anyprobe.target.system import procfs

_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_UNCHANGEABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})
_noted: "list[Inherited]" = []


@dataclass(frozen=True)
class Inherited:
    """What there was at the start."""

    ignored: frozenset[int]
    """The signals that were ignored."""
    blocked: frozenset[int]
    descriptors: tuple[int, int]
    """The limit of open files."""
    environment: Mapping[bytes, bytes]


def note() -> None:
    """Take note of what this process was started with; to be called before anything else, and once."""
    entries = procfs.read_file("/proc/self/environ").split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if entry)
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
    _noted[:] = [
        Inherited(
            frozenset(ignored - _BY_PYTHON | _ignored_before_python()),
            frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            {name: value for name, _, value in pairs},
        )
    ]
    if signal.SIGCHLD in ignored:  # the end of a child could not be waited for
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def environment() -> Mapping[bytes, bytes] | Mapping[str, str]:
    """Return the environment for a command."""
    return _noted[0].environment if _noted else os.environ


def restore() -> None:
    """Give this process, a child about to execute a command, what was noted."""
    if not _noted:
        for number in _BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        return
    start = _noted[0]
    for number in signal.valid_signals() - _UNCHANGEABLE:
        signal.signal(number, signal.SIG_IGN if number in start.ignored else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_NOFILE, start.descriptors)
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)


def _ignored_before_python() -> set[int]:
    """Return which signals were ignored of those that Python ignores itself: what its parent ignores, if that is known.

    A parent in Python ignores them for itself, and ``subprocess`` has its children not do so.
    """
    with suppress(OSError, ValueError):
        parent = os.getppid()
        if not os.path.basename(os.readlink(f"/proc/{parent}/exe")).startswith("python"):
            mask = int(procfs.read_status_field(parent, "SigIgn"), 16)
            return {number for number in _BY_PYTHON if mask >> number - 1 & 1}
    return set()
