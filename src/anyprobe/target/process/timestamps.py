"""Whether the target's threads may read the time stamp counter: ``prctl(PR_SET_TSC)`` can forbid it to a thread.

The setting is inherited by the threads that one creates. Where it is forbidden, ``rdtsc`` is a SIGSEGV, in the vdso's
clock too. So each thread is asked. Nothing is read where one could not be asked.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout
from anyprobe.target.base import Timestamps
from anyprobe.target.remote import frame
from anyprobe.target.remote.calls import PRCTL, RemoteCalls, fitness
from anyprobe.target.remote.spare_stack import NO_STACK, SpareStacks

if TYPE_CHECKING:
    from anyprobe.target.process.process import Process
    from anyprobe.target.remote.thread import Thread

_PR_GET_TSC, _PR_TSC_SIGSEGV = 25, 2
_ROUNDS = 5
"""How often threads are visited one by one that were not there before, or did not stop in time."""
_LONGEST_PAUSE = 0.01
"""Seconds after which no further thread is asked while all are stopped, but in the next stop."""
_STOPS = 20
"""How many stops may find threads in none of which a call can be made."""
_BETWEEN_STOPS = 0.002
_QUESTION = "cannot be asked whether it may read the time stamp counter"


class _ForbiddenError(Exception):
    """A thread may not read the counter."""

    def __init__(self, thread: "Thread") -> None:
        super().__init__(f"thread {thread.tid} may not read the time stamp counter (PR_SET_TSC)")


def timestamps(process: "Process") -> Timestamps:
    """Return whether all threads may read the counter.

    They are asked one after the other, while the rest run on. All are stopped for those that are on no stack of their
    own: what their call needs is then in memory of the main stack.
    """
    asked: set[int] = set()
    pauses = [0]
    try:
        if process.held is None:
            process.gadgets()
            _visit_all(process, asked, pauses)
            if asked.issuperset(process.threads()) and not process.relatives.find():
                return Timestamps(pause_us=max(pauses))
        return Timestamps(_ask_stopped(process, asked, pauses), pause_us=max(pauses))
    except _ForbiddenError as forbidden:
        return Timestamps(str(forbidden), forbidden=True, pause_us=max(pauses))


def _visit_all(process: "Process", asked: set[int], pauses: list[int]) -> None:
    """Ask the threads that are on stacks of their own, and those that begin meanwhile: who made them may have ended."""
    for _ in range(_ROUNDS):
        fresh = sorted(set(process.threads()) - asked, key=lambda tid: tid != process.pid)
        if not fresh:
            return
        stacks = SpareStacks(process, process.mappings())
        for tid in fresh:
            begin = time.monotonic_ns()
            try:
                with suppress(StopTimeout), process.visit(tid) as thread:
                    if thread is None or not _why_unknown(process, thread, stacks.own):
                        asked.add(tid)
            finally:
                pauses.append((time.monotonic_ns() - begin) // 1000)


def _ask_stopped(process: "Process", asked: set[int], pauses: list[int]) -> str:
    """Ask the others while everything is stopped; return why one could not be asked.

    A thread that waits in vfork is as its child, which has inherited the setting.
    """
    why, futile = "", 0
    while futile < _STOPS:
        before, whole = len(asked), True
        try:
            with process.stop() as stop:
                why, end = "", time.monotonic() + _LONGEST_PAUSE
                stacks = SpareStacks(process, stop.mappings)
                for thread in stop.threads:
                    if thread.tid in asked:
                        continue
                    if not (whole := time.monotonic() < end):
                        break
                    if unknown := _why_unknown(process, thread, stacks.any):
                        why = f"thread {thread.tid} {_QUESTION}: {unknown}"
                    else:
                        asked.add(thread.tid)
        except StopTimeout as error:
            return f"a thread {_QUESTION}: {error}"
        pauses.append(stop.pause_us)
        if whole and not why:
            return ""
        if len(asked) == before:
            futile += 1
            time.sleep(_BETWEEN_STOPS)  # it may leave where it cannot be asked, as a restartable sequence
    return why


def _why_unknown(process: "Process", thread: "Thread", stack: "Callable[[Thread], int]") -> str:
    """Ask one stopped thread, on memory that ``stack`` finds for it; return why it cannot be asked now.

    Raises ``_ForbiddenError`` if it may not read the counter.
    """
    reason = fitness(thread, process)
    top = 0 if reason else stack(thread)
    if not top:
        return reason or NO_STACK
    with RemoteCalls(process, thread, top, spare_room=frame.ROOM) as remote:
        place = remote.place(bytes(8))
        remote.syscall(PRCTL, _PR_GET_TSC, place)
        if int.from_bytes(process.mem.read(place, 4), "little") == _PR_TSC_SIGSEGV:
            raise _ForbiddenError(thread)
    return ""
