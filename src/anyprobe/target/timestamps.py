"""Whether the target's threads may read the time stamp counter: ``prctl(PR_SET_TSC)`` can forbid it to a thread.

The setting is inherited by the threads that one creates. Where it is forbidden, ``rdtsc`` is a SIGSEGV, in the vdso's
clock too.
"""

from typing import TYPE_CHECKING

from anyprobe.target.remote import PRCTL, RemoteCalls, fitness

if TYPE_CHECKING:
    from anyprobe.target.process import Process

_PR_GET_TSC, _PR_TSC_SIGSEGV = 25, 2
_ASKED = 8
"""How many threads are asked in one stop, the first one among them; each costs a call."""


def thread_without_timestamps(process: "Process") -> tuple[int | None, int]:
    """Return a thread that may not read the counter, if one of those asked may not, and the pause in microseconds."""
    found = None
    with process.stop() as stop:
        threads = sorted(stop.threads, key=lambda thread: thread.tid != process.pid)
        for thread in threads[:_ASKED]:
            if fitness(thread, process, [] if process.scratch else stop.mappings):
                continue
            with RemoteCalls(process, thread) as remote:
                place = remote.place(bytes(8))
                remote.syscall(PRCTL, _PR_GET_TSC, place)
                setting = int.from_bytes(process.mem.read(place, 4), "little")
            if setting == _PR_TSC_SIGSEGV:
                found = thread.tid
                break
    return found, stop.pause_us
