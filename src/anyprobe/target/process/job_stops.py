"""Programs that are stopped by SIGSTOP, so that another tracer can come; they go on even if this process is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from anyprobe.target.remote.thread import looks
from anyprobe.target.system import procfs

_GUARDIAN = "import os,signal,sys;os.read(0,1);signal.pidfd_send_signal(int(sys.argv[1]),signal.SIGCONT)"
"""Reads until its standard input ends, as it does with this process, whatever becomes of that."""
_LOOK = 0.05
_STOPPING = 5.0
"""Seconds that threads may take to stop, on a busy machine."""
_STOPPED = frozenset("TtZX")


@contextmanager
def continued_afterwards(pid: int) -> Iterator[None]:
    """Have a process that is stopped within a ``with`` block go on afterwards, or as soon as this process has ended."""
    pidfd = os.pidfd_open(pid)
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARDIAN, str(pidfd)],
            stdin=subprocess.PIPE,
            pass_fds=[pidfd],
            start_new_session=True,  # what the terminal sends is not for it
        ) as guardian:
            try:
                yield
            finally:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                assert guardian.stdin is not None
                guardian.stdin.close()
    finally:
        os.close(pidfd)


def stop_by_signal(pid: int) -> None:
    """Have a process stop: its threads do before they run another instruction, if they are held at this moment."""
    os.kill(pid, signal.SIGSTOP)


def wait_until_stopped(pid: int) -> None:
    """Wait until all threads of a process that has been sent SIGSTOP are stopped, which takes each a turn to run."""
    for _ in looks(time.monotonic() + _STOPPING):
        try:
            states = {procfs.read_stat(pid, tid).state for tid in procfs.read_tasks(pid)}
        except OSError:  # one has just ended, or all have
            continue
        if states <= _STOPPED:
            return


def pc_of(pid: int, tid: int) -> int | None:
    """Return where a stopped thread goes on; None where that cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        return int(procfs.read_file(f"/proc/{pid}/task/{tid}/syscall").split()[-1], 16)
    return None


def wait_until_it_goes_on(pid: int, asked: Callable[[], bool]) -> None:
    """Wait until a stopped process is continued, or a debugger that has come is gone, or this is ``asked`` for."""
    was_traced = False
    while not asked():
        try:
            status = procfs.read_status(pid)
        except OSError:  # it has ended
            return
        traced = status.get("TracerPid", "0") != "0"
        if not traced and (was_traced or status.get("State", "T")[0] != "T"):
            return
        was_traced = traced
        time.sleep(_LOOK)
