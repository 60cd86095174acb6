"""One controller at a time changes a process: a lock that the kernel gives back when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from anyprobe.core.errors import SessionConflict
from anyprobe.target.base import ProcessFacts

_PATIENCE = 10.0
_PAUSE = 0.001


@contextmanager
def exclusive(process: ProcessFacts, patience: float = _PATIENCE) -> Iterator[None]:
    """Keep other controllers from changing what is installed in a process, for one transaction.

    While everything is stopped ptrace does that. But journal and patches are also written between stops, and must not
    be removed by another controller meanwhile: the memory in their place may be the program's. The lock is on a file of
    the process in ``/proc``, which no other program has a reason to lock, and on its pidfd: files of another mount of
    ``/proc``, in a container or beside it, are other files, while the pidfd's inode is the same there. Before Linux 6.9
    that inode is shared, and controllers under another ``/proc`` are not kept out.
    """
    with ExitStack() as stack:
        with process.translated("locking"):
            files = [os.open(f"/proc/{process.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)]
            stack.callback(os.close, files[0])
            files.append(os.pidfd_open(process.pid))
            stack.callback(os.close, files[1])
        deadline = time.monotonic() + patience
        for fd in files if _has_own_file(files[1]) else files[:1]:
            while not _locked(fd):
                if time.monotonic() > deadline:
                    raise SessionConflict(f"another anyprobe is changing process {process.pid}; try again")
                time.sleep(_PAUSE)
        yield


def _has_own_file(pidfd: int) -> bool:
    """Return whether a process's pidfd has an inode of its own, not the one that anonymous descriptors share."""
    fd = os.eventfd(0)
    try:
        return not os.path.sameopenfile(fd, pidfd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
