"""Whether the target's threads may read the time stamp counter: ``prctl(PR_SET_TSC)`` can forbid it to a thread.

The setting is inherited by the threads that one creates. Where it is forbidden, ``rdtsc`` is a SIGSEGV, in the vdso's
clock too.
"""

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout
from anyprobe.target.remote import frame
from anyprobe.target.remote.calls import PRCTL, RemoteCalls, fitness
from anyprobe.target.remote.spare_stack import SpareStacks

if TYPE_CHECKING:
    from anyprobe.target.process.process import Process
    from anyprobe.target.remote.thread import Thread
    from anyprobe.target.system.procfs import Mapping

_PR_GET_TSC, _PR_TSC_SIGSEGV = 25, 2
_ASKED = 1024
"""How many threads are asked, the first one among them; each costs a call."""
_TRIES = 5


def thread_without_timestamps(process: "Process") -> tuple[int | None, int]:
    """Return a thread that may not read the counter, if one of those asked may not, and the pause in microseconds.

    They are asked one after the other, while the rest run on; the pause is the longest of one.
    """
    if process.held is None:
        return _asked_one_by_one(process)
    found = None
    with process.stop() as stop:
        threads = sorted(stop.threads, key=lambda thread: thread.tid != process.pid)
        for thread in threads[:_ASKED]:
            if _is_forbidden(process, thread, stop.mappings):
                found = thread.tid
                break
    return found, stop.pause_us


def _asked_one_by_one(process: "Process") -> tuple[int | None, int]:
    longest = 0
    process.gadgets()
    mappings = process.mappings()
    asked = deque((tid, _TRIES) for tid in sorted(process.threads(), key=lambda tid: tid != process.pid)[:_ASKED])
    while asked:
        tid, tries = asked.popleft()
        begin, answer = time.monotonic_ns(), None
        with suppress(StopTimeout), process.visit(tid) as thread:
            answer = thread is not None and _is_forbidden(process, thread, mappings)
        took = (time.monotonic_ns() - begin) // 1000
        if answer:
            return tid, took
        longest = max(longest, took)
        if answer is None and tries > 1:  # it was not stopped in time
            asked.append((tid, tries - 1))
    return None, longest


def _is_forbidden(process: "Process", thread: "Thread", mappings: "list[Mapping]") -> bool:
    """Ask one stopped thread; what cannot be asked now is taken to be as the others."""
    top = 0 if fitness(thread, process) else SpareStacks(process, mappings).own(thread)
    if not top:
        return False
    with RemoteCalls(process, thread, top, spare_room=frame.ROOM) as remote:
        place = remote.place(bytes(8))
        remote.syscall(PRCTL, _PR_GET_TSC, place)
        return int.from_bytes(process.mem.read(place, 4), "little") == _PR_TSC_SIGSEGV
