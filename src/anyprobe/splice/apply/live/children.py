"""Fork children that were made while an ``int3`` stood in the text that they copied.

Such a child works: it has handler, table and patches, too. But its ``int3`` stays, and would kill it if it blocked
SIGTRAP later. So it gets the rest of the change, in a stop of its own.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import AnyprobeError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.memfds import is_ours
from anyprobe.splice.apply.live.writes import Rewrite
from anyprobe.splice.apply.recovery.restoring import in_window
from anyprobe.splice.apply.text import write_at_rest
from anyprobe.target.process.process import Process
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

_BIRTH = 0.003
"""Seconds that a child may take to appear once its memory is copied. It is copied before the last bytes are written."""


def ticks_now() -> int:
    """Return the time as start times of processes are given, a little early."""
    return procfs.now() - 1


def complete_in_children(parent: int, inodes: frozenset[int], windows: Sequence[Rewrite], began: int) -> None:
    """Write the rest of a change into the processes that were forked since ``began`` and have a part of it.

    What fails here leaves a child that works, and that the session's end, or ``detach``, restores.
    """
    if not windows:
        return
    time.sleep(_BIRTH)
    for pid in _born_since(began):
        if pid == parent or not _maps_one(pid, inodes):
            continue
        with suppress(AnyprobeError, MemoryFault, OSError):
            child = Process.open(pid)
            try:
                _complete(child, windows)
            finally:
                child.close()


def _born_since(began: int) -> Iterator[int]:
    for pid in procfs.read_processes():
        with suppress(OSError):
            if procfs.read_stat(pid).start_time >= began:
                yield pid


def _maps_one(pid: int, inodes: frozenset[int]) -> bool:
    with suppress(OSError):
        return any(m.inode in inodes and is_ours(m) for m in procfs.read_mappings(pid))
    return False


def _complete(child: Process, windows: Sequence[Rewrite]) -> None:
    if not _unfinished(child, windows):
        return
    child.meets_traps = True
    with child.stop() as stop:
        stop.verify()
        for window in _unfinished(child, windows):
            write_at_rest(child.mem, window.address, window.new)


def _unfinished(child: Process, windows: "Iterable[Rewrite]") -> list[Rewrite]:
    return [w for w in windows if in_window(child.mem.read(w.address, len(w.new)), w.old, w.new)]
