"""Executions in a followed tree for which no thread has waited, as far as the kernel tells this user of them.

Those of a program that filters its system calls, or of old Go programs: what they execute has no probes, and is told
of by name. Where the kernel tells of none (without CAP_NET_ADMIN, or in a namespace of process ids) nothing is known of
them.
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

    def __init__(self, tell: Callable[[str], object], *, of_children: bool = True) -> None:
        """Listen from now on; ``tell`` is called with the path of each program that was executed, in the thread.

        ``of_children``: also what fork children execute, which may be none of the user's.
        """
        self._tell, self._of_children = tell, of_children
        self._since: dict[int, tuple[int, int | None]] = {}
        """The processes that are followed: since when, in the kernel's ticks, and when they began, where that is known.

        The number of one that has ended is soon another's, on a machine that has few numbers.
        """
        self._expected: Counter[int] = Counter()
        self._found: dict[int, int | None] = {}
        """Processes of the tree that were found by their parents, and when they began."""
        self._guard, self._looking, self._ending = threading.Lock(), threading.Lock(), False
        self._events: ProcEvents | None = None
        with suppress(OSError):
            self._events = ProcEvents()
        self._thread = threading.Thread(target=self._run, name="anyprobe strays", daemon=True)
        if self._events is not None:
            self._thread.start()

    def follow(self, pid: int, *, from_start: bool) -> None:
        """Tell of what a process executes from now on, and of what those do that it makes from now on.

        Children that it has made before have no probes by which they could be followed. ``from_start``: it has none.
        """
        self._since[pid] = 0 if from_start else procfs.now(), _start_of(pid)

    def forget(self, pid: int) -> None:
        """Follow a process no more, which has ended."""
        self._since.pop(pid, None)

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
            self._look()

    def end(self) -> None:
        """Look once more, and listen no more."""
        self._ending = True
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_ENDING)

    def _run(self) -> None:
        assert self._events is not None
        try:
            while not self._ending:
                if self._events.wait(_WAIT):
                    self._look()
            self._look()
        finally:
            self._events.close()

    def _look(self) -> None:
        assert self._events is not None
        with self._looking:  # who catches up waits for what the other has read and not told of yet
            for pid in self._events.read(0.0):
                if not self._was_expected(pid) and self._belongs(pid):
                    self._found[pid] = _start_of(pid)
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
        """Return whether a process is of the tree, or one of its ancestors was when it made the next one."""
        born: int | None = None
        for _ in range(_DEEP):
            try:
                stat = procfs.read_stat(pid)
            except OSError:
                return born is None and pid in self._since  # it has just ended
            since, started = self._since.get(pid, (0, -1))
            if started in {None, stat.start_time}:
                return born is None or born > since
            if not self._of_children:
                return False
            if self._found.get(pid, -1) in {None, stat.start_time}:
                return True
            born, pid = stat.start_time, stat.parent
            if pid <= 1:
                return False
        return False


def _start_of(pid: int) -> int | None:
    with suppress(OSError):
        return procfs.read_stat(pid).start_time
    return None
