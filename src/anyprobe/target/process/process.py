"""A live process: opened with every check that needs no change, then stopped for short scopes."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, TypeVar

from anyprobe.core.errors import (
    InternalError,
    NoSuchProcess,
    PermissionDenied,
    TargetError,
    UnsupportedTarget,
)
from anyprobe.target.base import Timestamps
from anyprobe.target.process import permission
from anyprobe.target.process.interrupts import DeferredInterrupts
from anyprobe.target.process.stopping import Stop, stopped
from anyprobe.target.process.tracee import ENDINGS, Tracee, all_ended
from anyprobe.target.remote import frame
from anyprobe.target.remote.calls import RemoteCalls
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import gateway, procfs

if TYPE_CHECKING:
    from anyprobe.target.remote.function_calls import FunctionCalls

_T = TypeVar("_T")
_TRACER_GRACE = 0.5
_END_PATIENCE = 1.0
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MACHINES = {3: "i386", 8: "MIPS", 21: "PowerPC", 22: "S390", 40: "ARM", 183: "AArch64", 243: "RISC-V"}
_X86_64 = 62


class Process(Tracee):
    """A process that anyprobe may probe. ``open`` it; nothing is attached outside of ``stop`` and ``borrow``."""

    @classmethod
    def open(cls, pid: int) -> "Process":
        """Check everything that can be checked without touching the process; raise a typed error or return it."""
        if pid == os.getpid():
            raise UnsupportedTarget("anyprobe cannot attach to its own process; use attach_self()")
        try:
            pidfd = gateway.pidfd_open(pid)
        except OSError as error:
            raise _no_such_process(pid, error) from error
        try:
            check_kind(pid)
            _check_tracer(pid)
            return cls(pid, pidfd)
        except OSError as error:
            gateway.close(pidfd)
            if error.errno in (errno.EPERM, errno.EACCES):
                raise permission.explain(pid) from error
            if error.errno in procfs.GONE_ERRORS:
                raise NoSuchProcess(f"process {pid} has just ended") from error
            raise TargetError(f"cannot inspect process {pid}: {error.strerror}") from error
        except BaseException:
            gateway.close(pidfd)
            raise

    def stop(self, timeout: float = 2.0) -> AbstractContextManager[Stop]:
        """Stop everything that runs in this address space for a scope."""
        return self._exclusive(stopped(self, timeout))

    def borrow(
        self, timeout: float = 2.0, *, own_stack: bool = False, room: int = frame.ROOM
    ) -> AbstractContextManager[RemoteCalls]:
        """Stop one suitable thread for a scope and make system calls in it, with ``room`` for them; the others run on.

        Where no thread is on a stack of its own, all are stopped, or ``NoStack`` is raised if it has to be its own.
        """
        from anyprobe.target.process.borrowing import borrowed

        return self._exclusive(borrowed(self, timeout, own_stack=own_stack, room=room))

    def calling(self, timeout: float, fits: Callable[[Thread], str]) -> "AbstractContextManager[FunctionCalls]":
        """Stop one thread for a scope and call a function in it, of those to which ``fits`` objects by no text."""
        from anyprobe.target.process.calling import calling

        return self._exclusive(calling(self, timeout, fits))

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Have no thread stop anything in it for a scope, which comes before what other threads want to do next.

        Who looks for a thread to borrow gives way.
        """
        turn = object()
        self._awaited.append(turn)
        try:
            with self._exclusive(nullcontext(), first=True):
                self._awaited.remove(turn)
                yield
        finally:
            if turn in self._awaited:
                self._awaited.remove(turn)

    def visit(self, tid: int) -> AbstractContextManager[Thread | None]:
        """Stop one thread for a scope, to look at it; the others run on."""
        from anyprobe.target.process.borrowing import visited

        return self._exclusive(visited(self, tid))

    def _permits(self, filters: int, tid: int, calls: frozenset[int] | None) -> bool:
        from anyprobe.target.process.filters import GENERATED, permitted

        if filters not in self._permitted and self._holder != threading.get_native_id():
            with suppress(TargetError), self.stop() if self.held is not None else self.visit(tid):
                self._permitted[filters] = permitted(tid, filters)
        return (GENERATED if calls is None else calls) <= self._permitted.get(filters, frozenset())

    def helper_thread(self, top: int, timeout: float = 2.0) -> AbstractContextManager[RemoteCalls]:
        """Make system calls in a thread made for them, with a stack below ``top`` and descriptors of its own."""
        from anyprobe.target.process.helper_thread import with_helper_thread  # hardly ever needed

        return self._exclusive(with_helper_thread(self, top, timeout))

    @contextmanager
    def waiting_helper_thread(self, timeout: float = 2.0) -> Iterator[RemoteCalls]:
        """Make system calls in a thread made for them, on the stack of a borrowed one, which waits meanwhile."""
        from anyprobe.target.process.helper_thread import WAITING_ROOM, with_waiting_helper_thread  # once in a session

        with (
            self.borrow(timeout, own_stack=True, room=WAITING_ROOM) as remote,
            with_waiting_helper_thread(self, remote) as calls,
        ):
            yield calls

    def thread_pointers(self) -> list[int] | None:
        """Return the thread pointers of all threads; ``None`` where that cannot be told for certain."""
        from anyprobe.target.process.thread_pointers import thread_pointers

        return thread_pointers(self)

    def timestamps(self) -> Timestamps:
        """Return whether all threads may read the time stamp counter."""
        from anyprobe.target.process.timestamps import timestamps

        return timestamps(self)

    def run_to_libraries(self, mapped: Callable[[], bool]) -> bool:
        """Let it run to where its libraries are mapped: see ``startup``."""
        from anyprobe.target.process.startup import run_to_libraries

        return run_to_libraries(self, mapped)

    def run_to_relocated(self) -> bool:
        """Let it run from there to where its libraries are relocated: see ``startup``."""
        from anyprobe.target.process.startup import run_to_relocated

        return run_to_relocated(self)

    def resume(self) -> None:
        """Let a launched program go; no tracer is attached to it afterwards."""
        held, self.held = self.held, None
        if held and not held.release(time.monotonic() + 1):
            self.held = held
            raise TargetError(f"process {self.pid} cannot be let go")
        self.exited()

    def discard(self) -> None:
        """End a launched program that is held before its first instruction."""
        with suppress(TargetError):
            self.send_signal(signal.SIGKILL)
            self.resume()
            self.wait(_END_PATIENCE)
        self.close()

    def close(self) -> None:
        """Let a held program go and close the descriptors."""
        with suppress(TargetError):
            self.resume()
        with suppress(OSError):
            self.mem.close()
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            ENDINGS.forget(pidfd)
            with suppress(OSError):
                gateway.close(pidfd)

    @contextmanager
    def _exclusive(self, scope: AbstractContextManager[_T], *, first: bool = False) -> Iterator[_T]:
        """Enter a scope in which threads are stopped: one at a time, and Ctrl-C comes after it.

        Those that are not ``first`` let those pass that are, for a while: a thread that has just left a scope would
        mostly be the next one otherwise, and a program's thread waits for the others.
        """
        if self._holder == threading.get_native_id():
            raise InternalError("stops of one process cannot be nested")
        if not first:
            self.let_pass()
        with DeferredInterrupts(), self._lock:
            self._holder = threading.get_native_id()
            try:
                self._retry_unreleased()
                with scope as value:
                    yield value
            finally:
                self._holder = None
                self.end_keeper()

    def _retry_unreleased(self) -> None:
        self.unreleased = [thread for thread in self.unreleased if not thread.release(0)]


def check_exists(pid: int) -> None:
    """Raise ``NoSuchProcess`` if a process does not exist, or is a thread of one."""
    try:
        gateway.close(gateway.pidfd_open(pid))
    except OSError as error:
        raise _no_such_process(pid, error) from error


def _no_such_process(pid: int, error: OSError) -> TargetError:
    with suppress(OSError, ValueError):
        group = procfs.group_of(pid)
        if group != pid:
            return NoSuchProcess(f"{pid} is a thread of process {group}; give the process id")
    if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
        return NoSuchProcess(f"there is no process {pid}")
    if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return PermissionDenied(
            "seccomp",
            f"pidfd_open is not permitted: {error.strerror}",
            "Linux 5.3 without a filter over anyprobe is needed",
        )
    return TargetError(f"cannot open process {pid}: {error.strerror}")


def check_kind(pid: int) -> None:
    """Refuse a process that no user can probe."""
    stat = procfs.read_stat(pid)
    if stat.kernel_thread:
        raise UnsupportedTarget(f"{pid} is a kernel thread ({stat.comm}); anyprobe probes user programs")
    if all_ended(pid):
        raise UnsupportedTarget(
            f"process {pid} ({stat.comm}) is a zombie: it has ended, its parent {stat.parent} has yet to take note"
        )
    if pid == 1 and _is_machine_init():
        raise UnsupportedTarget(
            "process 1 is the machine's init, whose death would be the machine's; anyprobe does not touch it"
        )
    fd = gateway.open_file(f"/proc/{procfs.voice(pid)}/exe", os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = gateway.read(fd, 20)
    finally:
        gateway.close(fd)
    if header[:4] != b"\x7fELF" or len(header) < 20:
        raise UnsupportedTarget(f"process {pid} does not run an ELF executable")
    machine = int.from_bytes(header[18:20], "little" if header[5] == 1 else "big")
    if machine not in (_X86_64, 3):
        name = _MACHINES.get(machine, f"ELF machine {machine}")
        raise UnsupportedTarget(
            f"process {pid} runs a program for another architecture ({name}); anyprobe knows x86-64"
        )
    if header[4] != 2:
        raise UnsupportedTarget(f"process {pid} is a 32-bit program; anyprobe probes 64-bit ones")


def _check_tracer(pid: int) -> None:
    """Refuse a process that is traced for longer than another controller's transaction takes."""
    deadline = time.monotonic() + _TRACER_GRACE
    while tracer := permission.tracer_of(pid):
        if time.monotonic() > deadline:
            raise permission.traced_by(pid, tracer)
        time.sleep(0.0005)


def _is_machine_init() -> bool:
    try:
        return gateway.readlink("/proc/1/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return True
