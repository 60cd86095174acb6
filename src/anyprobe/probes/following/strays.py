"""Executions in a followed tree for which no thread has waited, as far as the kernel tells this user of them.

A Go program's, or those of a program that filters its system calls: what they execute has no probes, and is told of by
name. Where the kernel tells of none (without CAP_NET_ADMIN, or in a namespace of process ids) nothing is known of them.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from anyprobe.target.system import procfs
from anyprobe.target.system.proc_events import ProcEvents

_WAIT = 0.1
_ENDING = 5.0
_DEEP = 64
"""Processes that are gone up through to find whose descendant one is."""


class Strays:
    """Listens to the kernel's process events in a thread, and tells of what was executed unexpectedly."""

    def __init__(self, is_ours: Callable[[int], bool], tell: Callable[[str], object]) -> None:
        """Listen from now on.

        Args:
            is_ours: Says whether a process is one of the tree's, by its id.
            tell: Called with the path of each program that was executed, in the thread.

        """
        self._is_ours, self._tell = is_ours, tell
        self._expected: Counter[int] = Counter()
        self._found: set[int] = set()
        """Processes of the tree that were found by their parents."""
        self._guard, self._ending = threading.Lock(), False
        self._events: ProcEvents | None = None
        with suppress(OSError):
            self._events = ProcEvents()
        self._thread = threading.Thread(target=self._run, name="anyprobe strays", daemon=True)
        if self._events is not None:
            self._thread.start()

    def expect(self, pid: int) -> None:
        """Note that a process is about to execute a program, and that this is known of."""
        with self._guard:
            self._expected[pid] += 1

    def expect_no_more(self, pid: int) -> None:
        """Note that it has not executed it."""
        self._was_expected(pid)

    def catch_up(self) -> None:
        """Tell of everything that has happened until now."""
        if self._events is not None and self._thread.is_alive():
            self._look(0.0)

    def end(self) -> None:
        """Look once more, and listen no more."""
        self._ending = True
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_ENDING)

    def _run(self) -> None:
        assert self._events is not None
        try:
            while not self._ending:
                self._look(_WAIT)
            self._look(0.0)
        finally:
            self._events.close()

    def _look(self, seconds: float) -> None:
        assert self._events is not None
        for pid in self._events.read(seconds):
            if not self._was_expected(pid) and self._belongs(pid):
                self._found.add(pid)
                path = "a program"
                with suppress(OSError):
                    path = os.readlink(f"/proc/{pid}/exe")
                self._tell(path)

    def _was_expected(self, pid: int) -> bool:
        with self._guard:
            if self._expected[pid] <= 0:
                del self._expected[pid]
                return False
            self._expected[pid] -= 1
            return True

    def _belongs(self, pid: int) -> bool:
        """Return whether a process is of the tree, or one of its ancestors is."""
        for _ in range(_DEEP):
            if self._is_ours(pid) or pid in self._found:
                return True
            try:
                pid = procfs.read_stat(pid).parent
            except OSError:
                return False
            if pid <= 1:
                return False
        return False
