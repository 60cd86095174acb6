"""How it is noticed that processes have executed programs: by the kernel's notifications, or by looking."""

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress

from anyprobe.core.errors import AnyprobeError
from anyprobe.target.system import procfs
from anyprobe.target.system.proc_events import ProcEvents

LOOKS = 0.02
"""Seconds between two looks at all processes."""
_YOUNG = 1.0
"""Seconds for which a new process is looked at again: it may execute a program yet."""


class Watch(ABC):
    """Tells of processes that have executed a program since it began."""

    how: str
    """How it notices, in words."""
    misses = False
    """Whether it may miss processes that end soon."""

    @abstractmethod
    def wait(self, seconds: float) -> list[int]:
        """Return such processes as soon as there are any, after so many seconds without."""

    @abstractmethod
    def lost(self) -> int:
        """Return how many processes may have been missed."""

    @abstractmethod
    def close(self) -> None:
        """Watch no more."""


class Connector(Watch):
    """The kernel's process events."""

    how = "the kernel's process events"

    def __init__(self) -> None:
        """Listen; raise ``OSError`` where that is not permitted."""
        self._events, self._overflows = ProcEvents(), 0

    def wait(self, seconds: float) -> list[int]:
        """Return what the kernel has told; all processes where it had no room to tell of some."""
        found = self._events.read(seconds)
        if self._events.overflows > self._overflows:
            self._overflows = self._events.overflows
            found += procfs.read_processes()
        return found

    def lost(self) -> int:
        """Return 0: where there was no room all processes have been looked at, and those that had ended by then."""
        return self._overflows

    def close(self) -> None:
        """Listen no more."""
        self._events.close()


class Tracepoint(Watch):
    """A program of BPF at the kernel's tracepoint of executions."""

    how = "a BPF program at sched_process_exec"

    def __init__(self) -> None:
        """Place it; raise ``AnyprobeError`` where the kernel takes none."""
        from anyprobe.handlers.intrinsics import emit
        from anyprobe.probes.providers.kernel.session import kernel

        def executed(ctx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - a handler
            emit("executed", pid=ctx.pid)

        with ExitStack() as stack:
            self._session = stack.enter_context(kernel())
            self._session.entry("rawtracepoint:sched_process_exec")(executed)
            self._stack = stack.pop_all()

    def wait(self, seconds: float) -> list[int]:
        """Return what the program has written."""
        end = time.monotonic() + seconds
        while True:
            found = [int(fields["pid"]) for _, fields in self._session.rows()]
            if found or time.monotonic() >= end:
                return found
            time.sleep(min(LOOKS / 4, seconds))

    def lost(self) -> int:
        """Return how many records had no room."""
        return sum(count for causes in self._session.snapshot().dropped.values() for count in causes.values())

    def close(self) -> None:
        """Remove the program."""
        self._stack.close()


class Looking(Watch):
    """Looks at all processes again and again."""

    misses = True

    def __init__(self, why: str) -> None:
        """Know the processes of now; ``why``: the kernel does not tell."""
        self.how = f"looks, {round(1 / LOOKS)} a second, since the kernel does not tell ({why})"
        self._known, self._young = set(procfs.read_processes()), dict[int, float]()
        self._last, self._unseen = procfs.read_last_pid(), 0

    def wait(self, seconds: float) -> list[int]:
        """Return the processes that have begun lately, each for a second again and again."""
        time.sleep(min(LOOKS, seconds))
        last, there = procfs.read_last_pid(), set(procfs.read_processes())
        now, fresh = time.monotonic(), there - self._known
        self._young |= dict.fromkeys(fresh, now)
        # numbers are given to threads, too: those of which nothing is there may have been processes
        given = range(self._last + 1, last + 1)
        self._unseen += sum(1 for each in given if each not in there and not _is_task(each))
        self._known, self._last = there, last
        self._young = {pid: since for pid, since in self._young.items() if pid in there and now - since < _YOUNG}
        return list(self._young)

    def lost(self) -> int:
        """Return how many numbers were given to processes or threads that had ended at the next look."""
        return self._unseen

    def close(self) -> None:
        """Look no more."""


def _is_task(number: int) -> bool:
    """Return whether there is a process or a thread of this number."""
    with suppress(OSError):
        return bool(procfs.read_file(f"/proc/{number}/stat"))
    return False


def best_watch() -> Watch:
    """Return the best way to notice executions that this user may use."""
    try:
        return Connector()
    except OSError as failure:
        why = f"process events: {failure.strerror or failure}"
    try:
        return Tracepoint()
    except (AnyprobeError, OSError) as refusal:
        return Looking(f"{why}; sched_process_exec: {str(refusal).splitlines()[0]}")
