"""How long a program's threads have waited for a processor: wall times have it in them, whatever probes do."""

import os
import time

from anyprobe.target.system import procfs

_MOST = 64
"""Threads that are looked at: those that were there first."""


class Waiting:
    """What the threads of a process have waited since it was first looked at."""

    def __init__(self, pid: int) -> None:
        """Begin."""
        self._pid, self._began = pid, time.monotonic()
        self._seen = self._began
        self._threads: dict[int, tuple[int, int]] = {}
        """Of each thread what it had waited when it was seen first, and last, in nanoseconds."""
        self._stolen = self._latest = procfs.stolen_seconds() or 0.0
        self.look()

    def look(self) -> None:
        """See how long they have waited by now; those that have ended keep what was seen of them."""
        for tid, waited in procfs.waited_for_processor(self._pid, _MOST).items():
            self._threads[tid] = self._threads.get(tid, (waited, waited))[0], waited
            self._seen = time.monotonic()
        self._latest = procfs.stolen_seconds() or self._latest

    def shares(self) -> tuple[float, float]:
        """Return what share of the time a thread has waited (that which has most), and what a hypervisor has taken."""
        seconds = max(self._seen - self._began, 1e-9)
        waited = max((last - first for first, last in self._threads.values()), default=0) / 1e9
        stolen = (self._latest - self._stolen) / (os.cpu_count() or 1)
        return round(min(waited / seconds, 1.0), 4), round(min(stolen / seconds, 1.0), 4)
