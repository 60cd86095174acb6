"""What threads are called."""

from collections.abc import Iterable
from contextlib import suppress

from anyprobe.target.system import procfs


class ThreadNames:
    """The names of threads, by process and by the id that the program knows them by."""

    def __init__(self) -> None:
        """Know none."""
        self._names: dict[tuple[int, int], str] = {}
        self._seen: set[tuple[int, int]] = set()

    def look(self, pids: Iterable[int], *, again: bool = False) -> None:
        """Read the names of threads that have not been seen yet; ``again``: of all that are there."""
        for pid in pids:
            with suppress(OSError):
                for tid in procfs.read_tasks(pid):
                    if again or (pid, tid) not in self._seen:
                        self._seen.add((pid, tid))
                        self._read(pid, tid)

    def _read(self, pid: int, tid: int) -> None:
        with suppress(OSError, ValueError):
            status = procfs.read_status(tid)
            self._names[pid, procfs.own_number(status.get("NSpid", ""), tid)] = status["Name"]

    def of(self, pid: int, tid: int) -> str:
        """Return the name of a thread, empty if it was never seen."""
        return self._names.get((pid, tid), "")
