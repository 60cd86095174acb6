"""Threads of filtered programs that sleep: how they are attached to, and how they sleep on.

A stop has a sleeping thread go through ``restart_syscall`` afterwards, of which a filter (seccomp) may know nothing: it
would kill the program, or have the call fail. Filters can be suspended for as long as a thread is traced, by a tracer
that may administer the machine; but a thread has to stop to be let go of, which would interrupt the sleep again. Only
the end of its tracer lets go of one that sleeps. A tracer is a thread, not a process: so such a thread is attached to
by a thread of this process that is made for it, the keeper, and ends when all sleep again.

While it is stopped, it has the value with which the kernel makes the interrupted call anew, filters or not: if we die,
it sleeps longer, and lives.
"""

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout
from anyprobe.target.process import permission
from anyprobe.target.process.attaching import ATTACHMENTS
from anyprobe.target.remote.calls import confined
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import gateway, procfs, ptrace

if TYPE_CHECKING:
    from anyprobe.target.process.tracee import Tracee

_ENDING = 5.0
_PAUSE = 50e-6


def attach(process: "Tracee", thread: Thread, *, asleep: bool, others: Collection[Thread] = ()) -> None:
    """Attach to a thread that was seen ``asleep``, or not; ``others``: those that are attached to already.

    Raises:
        OSError: as ``ptrace.seize``.
        PermissionDenied: it sleeps, and going on could kill it; nothing was done to it.
    """
    if not (asleep and _is_filtered(thread)):
        ATTACHMENTS.seize(thread.tid, others)
        return
    keeper = process.keeper = process.keeper or Keeper()
    thread.options = ptrace.OPTION_SYSGOOD | ptrace.OPTION_SUSPEND_SECCOMP
    for is_last in (False, True):
        try:
            keeper.seize(thread.tid, thread.options)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL) or _may_be_passing(thread):
                raise
            if is_last:  # the first time it may have been traced, and be let go by the time that was looked at
                raise confined(thread.pid) from error
        else:
            break
    thread.kept = True


def _may_be_passing(thread: Thread) -> bool:
    """Return whether a refusal may be for a tracer, or since the thread has just ended: none for want of a right."""
    if permission.tracer_of(thread.tid):
        return True
    try:
        return procfs.read_stat(thread.pid, thread.tid).ended
    except OSError as error:
        if error.errno not in procfs.GONE_ERRORS:
            raise
        return True


def _is_filtered(thread: Thread) -> bool:
    try:
        thread.filtered = procfs.is_filtered(thread.pid, thread.tid)
    except OSError as error:
        if error.errno not in procfs.GONE_ERRORS:
            raise
        return False  # it has ended since it was listed, as attaching to it says
    return thread.filtered


class Keeper:
    """A thread of this process that makes ptrace requests for others; ``end`` lets go of what it still traces."""

    def __init__(self) -> None:
        """Start it."""
        self._requests: queue.SimpleQueue[tuple[Callable[[], int], Future[int]] | None] = queue.SimpleQueue()
        self._kept: set[int] = set()
        self._thread = threading.Thread(target=self._serve, name="keeper", daemon=True)
        self._thread.start()

    def seize(self, tid: int, options: int) -> None:
        """Attach to a thread; from now on requests about it are made here. Raises ``OSError``."""
        gateway.TRACERS[tid] = self._run
        try:
            ptrace.seize(tid, options)
        except BaseException:
            gateway.TRACERS.pop(tid, None)
            raise
        self._kept.add(tid)

    def end(self) -> None:
        """End it, and wait until it has: then nothing is traced by it any more."""
        self._requests.put(None)
        self._thread.join()
        for tid in self._kept:
            gateway.TRACERS.pop(tid, None)
        deadline = time.monotonic() + _ENDING
        while os.path.exists(f"/proc/self/task/{self._thread.native_id}"):  # ``join`` returns a moment before
            if time.monotonic() > deadline:
                raise StopTimeout("a thread of anyprobe's own does not end")
            time.sleep(_PAUSE)

    def _run(self, call: Callable[[], int]) -> int:
        done: Future[int] = Future()
        self._requests.put((call, done))
        return done.result()

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            call, done = request
            try:
                done.set_result(call())
            except OSError as error:
                done.set_exception(error)
