"""One controller at a time changes a process: a lock that the kernel gives back when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyprobe.core.errors import SessionConflict

if TYPE_CHECKING:
    from anyprobe.target.process import Process

_PATIENCE = 10.0
_PAUSE = 0.001


@contextmanager
def exclusive(process: "Process") -> Iterator[None]:
    """Keep other controllers from changing what is installed in a process, for one transaction.

    While everything is stopped ptrace does that. But journal and patches are also written between stops, and must not
    be removed by somebody else meanwhile: what is mapped in their place may be the program's. The lock is on a file of
    the process in ``/proc``, which nobody else has a reason to lock.
    """
    with process.translated("locking"):
        fd = os.open(f"/proc/{process.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SessionConflict(f"another anyprobe is changing process {process.pid}; try again") from None
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(fd)
