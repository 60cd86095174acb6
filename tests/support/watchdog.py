"""A test that does not end, not even by its time limit, ends the process that runs it, with what it waited for.

pytest-timeout raises in the test; what the test cleans up after itself then may wait for ever in turn, for instance
``with subprocess.Popen(...)`` for a program that was to be told to end. A run would then say nothing at all.
"""

import faulthandler
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

MARGIN = 30.0
"""Seconds that a test has to clean up after its time limit, and again after its programs have been killed."""


class Watchdog:
    """Kills the programs of a test that does not end, then the process that runs it."""

    def __init__(self) -> None:
        """Begin to watch; the standard error of now is where it is said."""
        self._output = os.fdopen(os.dup(2), "w", buffering=1)
        self._changed = threading.Condition()
        self._test: tuple[str, float] | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, name: str, limit: float) -> None:
        """Watch a test; ``limit`` is what pytest-timeout gives it, in seconds."""
        with self._changed:
            self._test = name, time.monotonic() + limit + MARGIN
            self._changed.notify()

    def end(self) -> None:
        """Watch nothing until the next test begins."""
        with self._changed:
            self._test = None
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._test is None:
                    self._changed.wait()
                test = self._test
                self._changed.wait(max(test[1] - time.monotonic(), 0.01))
                if self._test is not test or time.monotonic() < test[1]:
                    continue
                self._say(f"{test[0]} does not end")
                killed = descendants(os.getpid())
                for pid in killed:
                    self._say(described(pid))
                faulthandler.dump_traceback(self._output)
                for pid in killed:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._changed.wait(MARGIN)
                if self._test is test:
                    self._say(f"{test[0]} does not end though its programs have been killed")
                    os._exit(3)

    def _say(self, line: str) -> None:
        print(f"\nwatchdog of process {os.getpid()}: {line}", file=self._output)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def described(pid: int) -> str:
    """Return a line about a process: its command and each thread's state and place in the kernel."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
        states = []
        for task in sorted(os.listdir(f"/proc/{pid}/task"))[:20]:
            state = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
            states.append(f"{task} {state} {Path(f'/proc/{pid}/task/{task}/wchan').read_text()}")
        return f"{pid}: {command}: {', '.join(states)}"
    except OSError as error:
        return f"{pid}: {error}"
