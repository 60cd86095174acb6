"""A live process: opened with every check that needs no change, then stopped for short scopes."""

import errno
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from typing import TypeVar

from anyprobe.core.errors import (
    InternalError,
    NoSuchProcess,
    PermissionDenied,
    TargetError,
    TargetExited,
    UnsupportedTarget,
)
from anyprobe.target.process import emulators, permission
from anyprobe.target.process.called_name import called_name
from anyprobe.target.process.interrupts import DeferredInterrupts
from anyprobe.target.process.relatives import Relatives
from anyprobe.target.process.stopping import Stop, stopped
from anyprobe.target.process.thread import Thread
from anyprobe.target.remote import gadgets as gadget_search
from anyprobe.target.remote.calls import RemoteCalls
from anyprobe.target.system import gateway, procfs
from anyprobe.target.system.memory import TargetMemory
from anyprobe.target.system.procfs import Mapping

_T = TypeVar("_T")
_TRACER_GRACE = 0.5
_EXEC_PATIENCE = 0.5
_END_PATIENCE = 1.0
_NOT_SHOWN = 1
"""What /proc/PID/stat has for the start of the text where one may not look."""
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MACHINES = {3: "i386", 8: "MIPS", 21: "PowerPC", 22: "S390", 40: "ARM", 183: "AArch64", 243: "RISC-V"}
_X86_64 = 62


class Process:
    """A process that anyprobe may probe. ``open`` it; nothing is attached outside of ``stop`` and ``borrow``."""

    def __init__(self, pid: int, pidfd: int, *, launched: bool = False) -> None:
        """Keep a process whose identity is fixed by ``pidfd``; use ``open`` or ``launch``."""
        self.pid = pid
        self.exit_status: int | None = None
        """The wait status of its end, if it is our child."""
        self.held: Thread | None = None
        """The thread of a launched program that has not been let go yet."""
        self.stopped_threads: list[Thread] = []
        self.unreleased: list[Thread] = []
        """Threads that would not stop, so could not be detached; the next stop tries again."""
        self.borrowed_us = 0
        """How long the thread that made the last deputy stood still."""
        self.relatives = Relatives(pid)
        self._pidfd = pidfd
        self._launched = launched
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._gadgets: gadget_search.Gadgets | None = None
        stat = _settled_stat(pid)
        self.child = stat.parent == os.getpid()
        """Whether whoever started it is in our process."""
        self._identity = (stat.start_time, stat.start_stack)
        self._name, self._last_name = stat.comm, stat.comm
        self.heap_start = stat.start_heap
        """Where the heap of ``brk`` begins or will begin; 0 where that is not known."""
        self.meets_traps = False
        """Whether traps of ours are in its text, or have been."""
        self.parks = False
        """Whether its signal handlers may leave contexts for others: see ``splice.apply.suspended_contexts``."""
        self.exe = gateway.readlink(f"/proc/{procfs.voice(pid)}/exe")
        self.mem = TargetMemory(pid, self._any_stopped_thread)

    @cached_property
    def called(self) -> str:
        """The name by which the program was started, where that leads to its file, else the file's."""
        return called_name(self.pid, self.exe)

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

    @property
    def root(self) -> str:
        """What to put before a path of its so that it is found from our mount namespace."""
        return _root_prefix(self.pid)

    def mappings(self) -> list[Mapping]:
        """Return the memory map as it is now."""
        with self.translated("reading the memory map"):
            found = procfs.read_mappings(self.pid)
        if not found:  # a process that has just ended has no memory left
            raise self.gone()
        return found

    def auxv(self) -> dict[int, int]:
        """Return the auxiliary vector."""
        with self.translated("reading the auxiliary vector"):
            return procfs.read_auxv(self.pid)

    def threads(self) -> list[int]:
        """Return the ids of the tasks that the kernel lists, workers included; it leaves some out while others end."""
        with self.translated("listing threads"):
            return procfs.read_tasks(self.pid)

    def all_threads(self) -> list[int]:
        """Return the ids of all tasks, none left out; ``StopTimeout`` where no list of them was whole."""
        with self.translated("listing threads"):
            return procfs.read_all_tasks(self.pid)

    def exited(self) -> bool:
        """Whether it has ended; a child's status is then in ``exit_status``."""
        if self.child and self.exit_status is None:
            with suppress(OSError):
                if self._launched and gateway.wait_end(self.pid, reap=False) is not None:
                    self._last_name = procfs.read_stat(self.pid).comm  # until it is reaped
                self.exit_status = gateway.wait_end(self.pid, reap=self._launched)
        return self.exit_status is not None or self._pidfd < 0 or bool(_readable(self._pidfd, 0))

    def ended(self) -> bool:
        """Whether it runs no more, announced or not: the kernel may wait for us to reap its threads first."""
        return self.exited() or _all_ended(self.pid)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; return the wait status where it is our child and has ended."""
        _readable(self._pidfd, timeout)
        self.exited()
        return self.exit_status

    def send_signal(self, number: int) -> None:
        """Send a signal; the pid cannot have been given to somebody else."""
        with self.translated("signalling"):
            gateway.pidfd_send_signal(self._pidfd, number)

    def verify(self) -> None:
        """Raise unless this is the process, running the program, that was opened."""
        if self.exited():
            raise self.gone()
        with self.translated("checking"):
            stat = _with_memory(self.pid)
        if stat.start_time != self._identity[0]:
            raise TargetExited(self.pid, self.exit_status)
        if self._is_another(stat):
            raise TargetError(f"process {self.pid} has executed another program since anyprobe attached")

    def _is_another(self, stat: procfs.TaskStat) -> bool:
        return stat.start_stack != self._identity[1] or not self.mem.alive(stat.start_code)

    def became(self) -> str | None:
        """Return the program that it runs since an exec, None while it runs the one that was opened.

        Of a child that has ended there is only the name that its first thread had: of an exec, or one of its choice.
        """
        if self.exited():
            return self._last_name if self._last_name != self._name else None
        with suppress(OSError):
            stat = _with_memory(self.pid)
            if stat.start_time == self._identity[0] and stat.start_code and self._is_another(stat):
                return gateway.readlink(f"/proc/{procfs.voice(self.pid)}/exe")
        return None

    def emulator(self) -> str | None:
        """Return the name of what runs its program in the processor's place, if anything does."""
        image = f"/proc/{procfs.voice(self.pid)}/exe"
        with self.translated("looking at"):
            return emulators.emulator_of(gateway.readlink(image), self.mappings(), image)

    def stop(self, timeout: float = 2.0) -> AbstractContextManager[Stop]:
        """Stop everything that runs in this address space for a scope."""
        return self._exclusive(stopped(self, timeout))

    def borrow(self, timeout: float = 2.0) -> AbstractContextManager[RemoteCalls]:
        """Stop one suitable thread for a scope and make system calls in it; the others run on."""
        from anyprobe.target.process.borrowing import borrowed

        return self._exclusive(borrowed(self, timeout))

    def visit(self, tid: int) -> AbstractContextManager[Thread | None]:
        """Stop one thread for a scope, to look at it; the others run on."""
        from anyprobe.target.process.borrowing import visited

        return self._exclusive(visited(self, tid))

    def deputy(self, top: int, timeout: float = 2.0) -> AbstractContextManager[RemoteCalls]:
        """Make system calls in a thread made for them, with a stack below ``top`` and descriptors of its own."""
        from anyprobe.target.remote.helper_thread import with_deputy  # hardly ever needed

        return self._exclusive(with_deputy(self, top, timeout))

    def resume(self) -> None:
        """Let a launched program go; nobody is attached to it afterwards."""
        held, self.held = self.held, None
        if held and not held.release(time.monotonic() + 1):
            self.held = held
            raise TargetError(f"process {self.pid} cannot be let go")
        self.exited()

    def gadgets(self) -> gadget_search.Gadgets:
        """Return the target's instructions that injected calls borrow."""
        if self._gadgets is None or not gadget_search.still_there(self.mem, self._gadgets):
            mappings = self.mappings()
            try:
                found = gadget_search.find(self.mem, mappings)
            except UnsupportedTarget:  # of a file that was patched when it was searched; look again
                gadget_search.forget(mappings)
                found = gadget_search.find(self.mem, mappings)
            if not gadget_search.still_there(self.mem, found):
                gadget_search.forget(mappings)
                found = gadget_search.find(self.mem, mappings)
            self._gadgets = found
        return self._gadgets

    def note_end(self, status: int | None) -> None:
        """Keep the wait status of our child's end, met while tracing it."""
        if self.child and status is not None:
            self.exit_status = status

    def gone(self) -> TargetError:
        """Return the error for a thread or process that vanished under us."""
        deadline = time.monotonic() + 0.1
        while time.monotonic() < deadline:
            if self.ended():
                return TargetExited(self.pid, self.exit_status)
            time.sleep(0.001)
        return TargetError(f"a thread of process {self.pid} vanished while anyprobe worked on it; nothing was changed")

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Turn an ``OSError`` of this scope into an error of ours."""
        try:
            yield
        except OSError as error:
            if error.errno in procfs.GONE_ERRORS:
                raise self.gone() from error
            if error.errno in (errno.EPERM, errno.EACCES) and not self.exited():
                with suppress(OSError):
                    raise permission.explain(self.pid) from error
            raise TargetError(f"{doing} process {self.pid} failed: {error.strerror}") from error

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
            with suppress(OSError):
                gateway.close(pidfd)

    def _any_stopped_thread(self) -> int | None:
        return next((thread.tid for thread in self.stopped_threads if thread.stopped), None)

    @contextmanager
    def _exclusive(self, scope: AbstractContextManager[_T]) -> Iterator[_T]:
        """Enter a scope in which threads are stopped: one at a time, and Ctrl-C comes after it."""
        if self._holder == threading.get_native_id():
            raise InternalError("stops of one process cannot be nested")
        with DeferredInterrupts(), self._lock:
            self._holder = threading.get_native_id()
            try:
                self._retry_unreleased()
                with scope as value:
                    yield value
            finally:
                self._holder = None

    def _retry_unreleased(self) -> None:
        self.unreleased = [thread for thread in self.unreleased if not thread.release(0)]


def _no_such_process(pid: int, error: OSError) -> TargetError:
    with suppress(OSError, ValueError):
        group = int(procfs.read_status(pid)["Tgid"])
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
    """Refuse what cannot be probed, whoever we are."""
    stat = procfs.read_stat(pid)
    if stat.kernel_thread:
        raise UnsupportedTarget(f"{pid} is a kernel thread ({stat.comm}); anyprobe probes user programs")
    if _all_ended(pid):
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


def _settled_stat(pid: int) -> procfs.TaskStat:
    """Return the state of a process, outside of an exec that is under way.

    Whoever started it may be told so (``vfork`` returns, descriptors are closed) while the kernel still lays the new
    program out: first there is neither text nor stack, then a stack that is moved once more.
    """
    deadline = time.monotonic() + _EXEC_PATIENCE
    stat = _with_memory(pid)
    while time.monotonic() < deadline:
        before, stat = stat, _with_memory(pid)
        laid_out = stat.start_code and (stat.start_stack or stat.start_code == _NOT_SHOWN)
        same = (before.start_code, before.start_stack) == (stat.start_code, stat.start_stack)
        if stat.ended or (laid_out and same):
            break
        if not laid_out:
            time.sleep(0.0005)
    return stat


def _with_memory(pid: int) -> procfs.TaskStat:
    """Return the state of a process, of whose memory the first thread may know no more, once it has ended."""
    stat = procfs.read_stat(pid)
    if not stat.ended:
        return stat
    return procfs.read_stat(pid, procfs.voice(pid))._replace(start_time=stat.start_time, parent=stat.parent)


def _check_tracer(pid: int) -> None:
    """Refuse a process that somebody traces for longer than another controller's transaction takes."""
    deadline = time.monotonic() + _TRACER_GRACE
    while tracer := permission.tracer_of(pid):
        if time.monotonic() > deadline:
            raise permission.traced_by(pid, tracer)
        time.sleep(0.0005)


def _all_ended(pid: int) -> bool:
    try:
        if not procfs.read_stat(pid).ended:
            return False
        tids = procfs.read_tasks(pid)
        return all(procfs.read_stat(pid, tid).ended for tid in tids) and procfs.is_whole(pid, tids)
    except OSError as error:
        return error.errno in procfs.GONE_ERRORS


def _is_machine_init() -> bool:
    try:
        return gateway.readlink("/proc/1/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def _root_prefix(pid: int) -> str:
    """Return what to put before a path of the target, so that it is found from our mount namespace."""
    pid = procfs.voice(pid)
    prefix = f"/proc/{pid}/root"
    try:
        same = gateway.readlink(f"/proc/{pid}/ns/mnt") == gateway.readlink("/proc/self/ns/mnt")
        return "" if same and gateway.readlink(prefix) == "/" else prefix
    except OSError:
        return prefix


def _readable(fd: int, timeout: float | None) -> bool:
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))
