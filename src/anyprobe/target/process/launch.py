"""Starting a program that is held before its first instruction, the loader's.

It stays traced by the OS thread that launched it until ``Process.resume``. If the controller dies meanwhile, the kernel
lets it go: it runs as if it had been started without us.
"""

import errno
import os
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

from anyprobe.core.errors import InternalError, StopTimeout, UsageError
from anyprobe.target.process import inherited, permission
from anyprobe.target.process.execution import held_at_start
from anyprobe.target.process.process import Process
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import gateway, ptrace
from anyprobe.target.system.wait_status import Kind

_EXEC_TIMEOUT = 30.0
_DEVNULL = -3  # as subprocess.DEVNULL


class HasFileno(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Return its descriptor."""
        ...


Stream = int | HasFileno | None
"""A descriptor, an open file, ``subprocess.DEVNULL``, or ``None`` for the controller's own."""


def launch(
    argv: Sequence[str],
    *,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    process_group: int | None = None,
) -> Process:
    """Start a program and return it, stopped at its first instruction; ``Process.resume`` lets it go.

    ``process_group`` is the one that it joins, 0 one of its own, ``None`` that of this process.
    """
    if not argv:
        raise UsageError("there is no command to run")
    streams = [_descriptor(stream) for stream in (stdin, stdout, stderr)]
    go_read, go_write = os.pipe()
    failure_read, failure_write = os.pipe()
    try:
        pid = _fork()
        if pid == 0:
            _become(argv, streams, env, cwd, process_group, go_read, go_write, failure_write)
        os.close(failure_write)
        failure_write = -1
        try:
            return _hold(pid, argv[0], go_write, failure_read)
        except BaseException:
            _kill(pid)
            raise
    finally:
        for fd in (go_read, go_write, failure_read, failure_write):
            if fd >= 0:
                os.close(fd)


def _hold(pid: int, name: str, go_write: int, failure_read: int) -> Process:
    thread = Thread(pid, pid, child=True)
    try:
        ptrace.seize(pid, ptrace.OPTION_SYSGOOD | ptrace.OPTION_EXEC)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise permission.explain(pid) from error
        raise InternalError(f"cannot trace our own child: {error.strerror}") from error
    try:
        os.write(go_write, b"x")
        _run_until_exec(thread, name, failure_read)
        return held_at_start(thread, time.monotonic() + _EXEC_TIMEOUT, launched=True)
    except OSError as error:
        raise InternalError(f"cannot start {name!r}: {error.strerror}") from error


def _run_until_exec(thread: Thread, name: str, failure_read: int) -> None:
    while True:
        _wait(thread, name)
        if thread.ended:
            number = int.from_bytes(os.read(failure_read, 4), "little")
            raise UsageError(f"cannot run {name!r}: {os.strerror(number) if number else 'it was killed'}")
        if thread.kind is Kind.EVENT:
            return
        thread.resume_with(ptrace.resume)


def _wait(thread: Thread, name: str) -> None:
    if not thread.wait(time.monotonic() + _EXEC_TIMEOUT):
        raise StopTimeout(f"{name!r} did not start in time")


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of forking with threads about; the child only makes a few calls before it execs.
        warnings.simplefilter("ignore", DeprecationWarning)
        return gateway.fork()


def _become(
    argv: Sequence[str],
    streams: list[int | None],
    env: Mapping[str, str] | None,
    cwd: str | None,
    process_group: int | None,
    go_read: int,
    go_write: int,
    failure_write: int,
) -> None:
    """Turn the child into the program, once the controller traces it. Never returns."""
    try:
        os.close(go_write)
        if os.read(go_read, 1) != b"x":  # the controller is gone
            os._exit(127)
        for number, stream in enumerate(streams):
            if stream is not None:
                os.dup2(stream, number)
        inherited.restore()
        if process_group is not None:
            os.setpgid(0, process_group)
        if cwd is not None:
            os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(inherited.environment() if env is None else env))  # noqa: S606
    except OSError as error:
        os.write(failure_write, (error.errno or errno.EINVAL).to_bytes(4, "little"))
    except ValueError:  # a null byte in an argument
        os.write(failure_write, errno.EINVAL.to_bytes(4, "little"))
    finally:
        os._exit(127)


def _descriptor(stream: Stream) -> int | None:
    if stream is None:
        return None
    if isinstance(stream, int):
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if stream == _DEVNULL else stream
    return stream.fileno()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, gateway.WALL)
    except (ProcessLookupError, ChildProcessError):
        pass
