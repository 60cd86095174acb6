"""Attaching to threads of a program that executes another one: the kernel makes that wait, perhaps for this process.

A thread that executes has all other threads of its process end, and until they have, no thread can be attached to. For
the kernel a traced thread has ended once its tracer has taken note. So a thread of this process that has attached to
some and attaches to one more may wait for ever for what only it would do, in a call that no signal interrupts. Here
another thread of this process takes note of ends meanwhile.
"""

import threading
import time
from collections.abc import Collection
from contextlib import suppress

from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import gateway, ptrace

_PATIENCE = 0.02
"""Seconds that the kernel may take to attach before a look whether it waits for anyprobe."""
_IDLE = 1.0
"""Seconds without an attachment after which the watch ends."""


class Attachments:
    """Attaches to threads, and takes note of the ends of those that were attached to before."""

    def __init__(self) -> None:
        """Begin without a watch."""
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[float, Collection[Thread]]] = {}
        self._last = 0.0
        self._is_watched = False

    def seize(self, tid: int, others: Collection[Thread]) -> None:
        """Attach to a thread as ``ptrace.seize`` does; ``others``: those that this thread traces already.

        Raises:
            OSError: as ``ptrace.seize``.
        """
        if not others:
            ptrace.seize(tid)
            return
        caller = threading.get_ident()
        with self._lock:
            self._last = time.monotonic()
            self._pending[caller] = self._last, others
            if not self._is_watched:
                threading.Thread(target=self._watch, name="attaching", daemon=True).start()
                self._is_watched = True
        try:
            ptrace.seize(tid)
        finally:
            with self._lock:
                del self._pending[caller]

    def _watch(self) -> None:
        while True:
            time.sleep(_PATIENCE)
            with self._lock:  # the thread that attaches waits for this, so no other one looks at its threads
                now = time.monotonic()
                for since, threads in self._pending.values():
                    if now - since > _PATIENCE:
                        _take_note(threads)
                if not self._pending and now - self._last > _IDLE:
                    self._is_watched = False
                    return


def _take_note(threads: Collection[Thread]) -> None:
    """Wait for those threads that have ended; the first of a process is taken over by the one that executes."""
    for thread in threads:
        if thread.ended or thread.tid == thread.pid:
            continue
        with suppress(OSError):
            status = gateway.wait_end(thread.tid, reap=True)
            if status is not None:
                thread.stopped, thread.ended, thread.status = False, True, status


ATTACHMENTS = Attachments()
