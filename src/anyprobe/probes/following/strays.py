"""Executions in a followed tree for which no thread has waited, as far as the kernel tells this user of them.

Those of a program that filters its system calls, or of old Go programs: what they execute has no probes, and is told
of by name. Where the kernel tells of none (without CAP_NET_ADMIN, or in a namespace of process ids) nothing is known of
them.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from anyprobe.target.system.proc_events import Happened, ProcEvent, ProcEvents

_WAIT = 0.1
_ENDING = 5.0


@dataclass(eq=False, slots=True)
class Coming:
    """An execution that is being followed."""

    pid: int
    has_begun: bool = False
    """Whether the kernel has told of it."""


class Strays:
    """Listens to the kernel's process events in a thread, and tells of what was executed unexpectedly."""

    def __init__(self, tell: Callable[[str], object], *, of_children: bool = True) -> None:
        """Listen from now on; ``tell`` is called with the path of each program that was executed, in the thread.

        ``of_children``: also what fork children execute, which may be none of the user's.
        """
        self._tell, self._of_children = tell, of_children
        self._tree: dict[int, int] = {}
        """The processes of the tree that live, and from when on what they do belongs to it."""
        self._expected: Counter[int] = Counter()
        self._coming: list[Coming] = []
        """The executions that are followed just now."""
        self.seen = 0
        """How many executions in the tree the kernel has told of."""
        self._guard, self._looking, self._ending = threading.Lock(), threading.Lock(), False
        self._events: ProcEvents | None = None
        with suppress(OSError):
            self._events = ProcEvents(lives=True)
        self._thread = threading.Thread(target=self._run, name="anyprobe strays", daemon=True)
        if self._events is not None:
            self._thread.start()

    @property
    def sees_all(self) -> bool:
        """Whether the kernel tells this user of all executions."""
        return self._events is not None and not self._events.overflows

    def follow(self, pid: int, *, from_start: bool) -> None:
        """Tell of what a process executes from now on, and of what those do that it makes from now on.

        Children that it has made before have no probes by which they could be followed. ``from_start``: it has none.
        """
        with self._guard:
            self._tree.setdefault(pid, 0 if from_start else time.monotonic_ns())

    def expect(self, pid: int) -> None:
        """Note that a process is about to execute a program, and that this is known of."""
        with self._guard:
            self._expected[pid] += 1

    @contextmanager
    def following(self, pid: int) -> Iterator[None]:
        """Expect that a process executes a program; in the end of a ``with`` block it is told what came of that."""
        coming = Coming(pid)
        with self._guard:
            self._expected[pid] += 1
            self._coming.append(coming)
        try:
            yield
        finally:
            with self._guard:
                self._coming.remove(coming)

    @property
    def settled(self) -> int:
        """How many executions in the tree the kernel has told of, but for those that are just being followed."""
        with self._guard:
            return self.seen - sum(each.has_begun for each in self._coming)

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
            for event in self._events.events(0.0):
                self._note(event)

    def _note(self, event: ProcEvent) -> None:
        with self._guard:
            by, pid = event.parent or event.pid, event.pid
            belongs = event.when >= self._tree.get(by, event.when + 1)
            if event.what is Happened.ENDED:
                if belongs:  # its number is another's from here on
                    del self._tree[pid]
                return
            if event.what is Happened.FORKED:
                if belongs and self._of_children:
                    self._tree[pid] = 0
                return
        was_expected = self._was_expected(pid)
        if belongs or was_expected:
            with self._guard:
                self.seen += 1
                for coming in self._coming:
                    coming.has_begun |= coming.pid == pid
        if belongs and not was_expected:
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
