"""What a trace knows of threads: their names, and how deep in the traced calls they are."""

import os
from collections.abc import Iterable
from contextlib import suppress

from anyprobe.target.system import procfs

DEEPEST = 24
"""Calls that are shown further in than those around them; recursion may be endless."""
_ENDS = frozenset({"entry", "return"})


class Threads:
    """Names and depths of threads, by process and thread."""

    def __init__(self) -> None:
        """Know of none."""
        self._names: dict[tuple[int, int], str] = {}
        self._seen: set[tuple[int, int]] = set()
        self._calls: dict[tuple[int, int], list[str]] = {}
        self._processes: dict[tuple[int, int], int] = {}
        """The process of each thread, by that of the session that has its hits."""
        self._ends: dict[str, set[str]] = {}
        """Which ends of each function are traced."""

    def look(self) -> None:
        """Have names read anew: threads give themselves others."""
        self._seen.clear()

    def know(self, pid: int) -> None:
        """Remember the names of a process's threads; it may have ended when its hits are shown."""
        with suppress(OSError):
            for tid in map(int, os.listdir(f"/proc/{pid}/task")):
                self._seen.discard((pid, tid))  # it may have executed another program
                self.name(pid, tid)

    def name(self, pid: int, tid: int) -> str:
        """Return the name of a thread; that of the process, or what was known last, once it has ended."""
        thread = pid, tid
        if thread not in self._seen:
            self._seen.add(thread)
            for path in (f"/proc/{pid}/task/{tid}/comm", f"/proc/{pid}/comm"):
                with suppress(OSError), open(path, encoding="utf-8", errors="backslashreplace") as comm:
                    self._names[thread] = comm.readline().rstrip("\n")
                    break
        return self._names.get(thread, "?")

    def process(self, pid: int, tid: int) -> int:
        """Return the process of a thread that hits a session's probes: that of the session, or a fork child.

        A fork child that had ended before its first line is not told from its parent.
        """
        thread = pid, tid
        found = self._processes.get(thread)
        if found is None:
            found = pid
            if not os.path.exists(f"/proc/{pid}/task/{tid}"):
                with suppress(OSError, KeyError, ValueError):
                    found = procfs.group_of(tid)
            self._processes[thread] = found
        return found

    def forget_calls(self, pid: int) -> None:
        """Note that the threads of a process are in no call any more."""
        self._calls = {thread: calls for thread, calls in self._calls.items() if thread[0] != pid}

    def see(self, specs: Iterable[str]) -> None:
        """Note what is traced, by canonical specs."""
        for spec in specs:
            function, _, kind = spec.rpartition(":")
            if kind in _ENDS:
                self._ends.setdefault(function, set()).add(kind)

    def depth(self, pid: int, tid: int, spec: str) -> int:
        """Return in how many traced calls a hit is, of those whose entries and returns are both traced."""
        function, _, kind = spec.rpartition(":")
        calls = self._calls.setdefault((pid, tid), [])
        if kind in _ENDS and len(self._ends.get(function, ())) == len(_ENDS):
            if kind == "entry":
                calls.append(function)
                return min(len(calls) - 1, DEEPEST)
            if function in calls:  # what is above it was left by a jump, or has no line
                while calls.pop() != function:
                    pass
        return min(len(calls), DEEPEST)
