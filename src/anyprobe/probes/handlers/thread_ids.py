"""Whether threads have their ids where handlers read them, as ``ctx.tid``."""

from typing import TYPE_CHECKING

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.splice.codegen.handlers.facts import TID_OFFSET

if TYPE_CHECKING:
    from anyprobe.probes.host import ProbeHost


def tids_are_kept(session: "ProbeHost") -> bool:
    """Return whether each thread has its id where glibc keeps it, false if a thread has not begun; raise if not."""
    with session.splicing.access.stop("prepare") as stop:
        for thread in stop.threads:
            if thread.registers.fs_base == 0:
                return False
            place = thread.registers.fs_base + TID_OFFSET
            found = int.from_bytes(session.process.mem.read(place, 4), "little")
            if found != thread.tid:
                raise UnsupportedTarget(f"ctx.tid: thread {thread.tid} does not have its id where glibc keeps it")
    return True
