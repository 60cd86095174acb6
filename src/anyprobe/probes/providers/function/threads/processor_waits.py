"""How long a program's threads have waited for a processor: wall times have it in them, whatever probes do."""

import os
import time

from anyprobe.target.base import RunningProcess
from anyprobe.target.system import procfs


class Waiting:
    """What the threads of a process have waited since it was first looked at."""

    def __init__(self, process: RunningProcess) -> None:
        """Begin."""
        self._process, self._began, self._over = process, time.monotonic(), False
        self._seen = self._read = self._began
        self._threads: dict[int, tuple[int, int]] = {}
        """What each thread had waited when it was seen first, and last, in nanoseconds."""
        self._stolen = self._latest = procfs.stolen_seconds() or 0.0
        self.look()

    def look(self) -> None:
        """See how long they have waited by now; those that have ended keep what was seen of them."""
        if self._over:
            return
        now, self._over = time.monotonic(), self._process.exited()
        there = self._process.scheduled_at_end if self._over else procfs.scheduled(self._process.pid)
        for tid, (_, waited) in there.items():
            self._threads[tid] = self._threads.get(tid, (waited, waited))[0], waited
            self._seen = now
        self._latest, self._read = procfs.stolen_seconds() or self._latest, now

    def shares(self) -> tuple[float, float]:
        """Return what share of the time a thread has waited (that which has most), and what a hypervisor has taken."""
        waited = max((last - first for first, last in self._threads.values()), default=0) / 1e9
        stolen = (self._latest - self._stolen) / (os.cpu_count() or 1)
        return _share(waited, self._seen - self._began), _share(stolen, self._read - self._began)


def _share(seconds: float, whole: float) -> float:
    return round(min(seconds / whole, 1.0), 4) if whole > 0 else 0.0
