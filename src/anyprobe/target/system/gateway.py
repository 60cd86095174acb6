"""The one module through which every system call on the target goes.

Callers write ``gateway.pread(...)``, never ``from gateway import pread``: a test installs faults by rebinding the names
of this module, so that without faults there is no overhead at all. ``faults`` can make the n-th call fail, return
short, or be the controller's last.
"""

import ctypes
import errno
import fcntl
import mmap as _mmap
import os
import signal
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

# PyDLL keeps the GIL: these calls do not block, and while the target is stopped another Python thread must not get in.
_libc = ctypes.PyDLL(None, use_errno=True)

_ptrace = _libc.ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]
_ptrace.restype = ctypes.c_long

# Attaching waits where the program executes another one, perhaps for what another thread of this process has to do.
_waiting_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_waiting_ptrace.argtypes, _waiting_ptrace.restype = _ptrace.argtypes, _ptrace.restype

_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_syscall.restype = ctypes.c_long

# The kernel's own engines are not the stopped target: these calls may take long, and other threads may run.
_blocking = ctypes.CDLL(None, use_errno=True).syscall
_blocking.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_long, ctypes.c_long, ctypes.c_ulong]
_blocking.restype = ctypes.c_long

_MAP_FIXED_NOREPLACE = 0x100000
_PR_SET_PTRACER = 0x59616D61
_SYS_GET_ROBUST_LIST = 274
_SYS_PERF_EVENT_OPEN = 298
_SYS_KCMP = 312
_SYS_BPF = 321
_SYS_DELETE_MODULE = 176
_SYS_FINIT_MODULE = 313
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434
_PERF_FLAG_FD_CLOEXEC = 8
_PIDFD_INFO_BYTES, _PIDFD_INFO_EXIT, _PIDFD_EXIT_CODE_AT = 64, 1 << 3, 60
_PIDFD_GET_INFO = 0xC0000000 | _PIDFD_INFO_BYTES << 16 | 0xFF00 | 11
KCMP_VM = 1
WALL = 0x40000000
_SYSCALL_STOP = 0x80
"""From here on a stop is no stop before a signal: a bit of its own for system calls, events above."""


TRACERS: dict[int, Callable[[Callable[[], int]], int]] = {}
"""What makes ptrace requests about a thread in the thread of this process that traces it, where that is another."""


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def ptrace(request: int, tid: int, address: int, data: int) -> None:
    """Make one ptrace request."""
    _requested(_ptrace, request, tid, address, data)


def ptrace_count(request: int, tid: int, address: int, data: int) -> int:
    """Make one ptrace request that returns a number."""
    return _requested(_ptrace, request, tid, address, data)


def ptrace_waiting(request: int, tid: int, address: int, data: int) -> None:
    """Make one ptrace request that may wait; other threads of this process run meanwhile."""
    _requested(_waiting_ptrace, request, tid, address, data)


def _requested(function: Callable[[int, int, int, int], int], request: int, tid: int, address: int, data: int) -> int:
    def make() -> int:
        result = function(request, tid, address, data)
        if result == -1:
            raise _failed()
        return int(result)

    elsewhere = TRACERS.get(tid)
    return make() if elsewhere is None else elsewhere(make)


def declare_tracer(pid: int) -> None:
    """Let a process trace this one, which Yama otherwise permits to ancestors only; 0: no process."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)  # EINVAL where there is no Yama


def kcmp_vm(pid: int, other: int) -> bool:
    """Return whether two processes share their address space."""
    result = _syscall(_SYS_KCMP, pid, other, KCMP_VM, 0, 0)
    if result == -1:
        raise _failed()
    return bool(result == 0)


def pidfd_open(pid: int) -> int:
    """Return a file descriptor of a process, which pid reuse cannot redirect."""
    fd = _syscall(_SYS_PIDFD_OPEN, pid, 0, 0, 0, 0)
    if fd == -1:
        raise _failed()
    return int(fd)


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process of a pidfd."""
    if _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0, 0) == -1:
        raise _failed()


def pidfd_exit_code(pidfd: int) -> int | None:
    """Return the wait status of a process that has ended and been waited for by its parent; None: not told."""
    information = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("<Q", information, 0, _PIDFD_INFO_EXIT)
    fcntl.ioctl(pidfd, _PIDFD_GET_INFO, information)
    mask, code = struct.unpack_from("<Q", information)[0], struct.unpack_from("<i", information, _PIDFD_EXIT_CODE_AT)[0]
    return int(code) if mask & _PIDFD_INFO_EXIT else None


def robust_list(tid: int) -> int:
    """Return where a thread has its list of robust mutexes, 0 where it has none."""
    head, size = ctypes.c_uint64(), ctypes.c_uint64()
    arguments = ctypes.addressof(head), ctypes.addressof(size)
    if _syscall(_SYS_GET_ROBUST_LIST, tid, *arguments, 0, 0) == -1:
        raise _failed()
    return head.value


def bpf(command: int, attribute: int, size: int) -> int:
    """Give the kernel a command of BPF, with memory to which it may write; return a descriptor or 0."""
    result = _blocking(_SYS_BPF, command, attribute, size, 0, 0)
    if result == -1:
        raise _failed()
    return int(result)


def perf_event_open(attribute: int, processor: int, task: int = -1) -> int:
    """Open an event of a task, or of all processes, on a processor; return its descriptor."""
    result = _blocking(_SYS_PERF_EVENT_OPEN, attribute, task, processor, -1, _PERF_FLAG_FD_CLOEXEC)
    if result == -1:
        raise _failed()
    return int(result)


def finit_module(fd: int) -> None:
    """Load a module of the kernel from its file."""
    parameters = ctypes.create_string_buffer(b"")
    if _blocking(_SYS_FINIT_MODULE, fd, ctypes.addressof(parameters), 0, 0, 0) == -1:
        raise _failed()


def delete_module(name: str) -> None:
    """Remove a module of the kernel; fail where it is in use."""
    text = ctypes.create_string_buffer(name.encode())
    # the kernel takes a pointer first: the address fits where other calls have a number
    if _blocking(_SYS_DELETE_MODULE, ctypes.addressof(text), os.O_NONBLOCK, 0, 0, 0) == -1:
        raise _failed()


def mmap_shared(fd: int, size: int, offset: int = 0) -> _mmap.mmap:
    """Map a memfd of the target, or memory of a driver, into the controller, readable and writable."""
    return _mmap.mmap(fd, size, _mmap.MAP_SHARED, _mmap.PROT_READ | _mmap.PROT_WRITE, offset=offset)


def map_zeros_at(address: int, size: int) -> None:
    """Have memory of this process's own, all zero, at an address where it has had a mapping."""
    mmap = ctypes.CDLL(None).mmap
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    kind = _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
    mmap(address, size, _mmap.PROT_READ | _mmap.PROT_WRITE, kind, -1, 0)


def wait_thread(tid: int) -> int | None:
    """Return the wait status of a traced thread's stop or end."""
    return _taken(tid, os.WSTOPPED | os.WEXITED)


def wait_stop(pid: int) -> int | None:
    """Return the wait status of a child's stop; its end is left to be waited for."""
    return _taken(pid, os.WSTOPPED)


def _taken(tid: int, what: int) -> int | None:
    """Look, and take what is there, except a stop before a signal.

    That signal would be lost if we died with its stop taken. A fault would come again; an ``int3`` would not.
    """
    result = os.waitid(os.P_PID, tid, what | os.WNOHANG | os.WNOWAIT | WALL)
    if result is None:
        return None
    if result.si_code == os.CLD_TRAPPED and result.si_status < _SYSCALL_STOP:
        return result.si_status << 8 | 0x7F
    if what & os.WEXITED:
        found, status = os.waitpid(tid, os.WNOHANG | WALL)
        return status if found else None
    result = os.waitid(os.P_PID, tid, what | os.WNOHANG | WALL)
    return None if result is None else result.si_status << 8 | 0x7F


def wait_end(pid: int, *, reap: bool) -> int | None:
    """Return the wait status of a child that has ended; stops are left to be waited for."""
    options = os.WEXITED | os.WNOHANG | WALL
    result = os.waitid(os.P_PID, pid, options | os.WNOWAIT)  # a traced child's stop is reported whatever we ask for
    if result is None or result.si_code not in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
        return None
    if reap:
        os.waitid(os.P_PID, pid, options)
    if result.si_code == os.CLD_EXITED:
        return result.si_status << 8
    return result.si_status | (0x80 if result.si_code == os.CLD_DUMPED else 0)


def fork() -> int:
    """Fork the controller, to start a program."""
    return os.fork()


open_file = os.open
close = os.close
read = os.read
pread = os.pread
pwrite = os.pwrite
listdir = os.listdir
ioctl = fcntl.ioctl
readlink = os.readlink
fstat = os.fstat
stat = os.stat

_GATED = (
    "ptrace", "wait_thread", "wait_stop", "wait_end", "fork", "kcmp_vm", "robust_list", "pidfd_open",
    "pidfd_send_signal", "mmap_shared", "open_file", "close", "read", "pread", "pwrite", "listdir",
    "readlink", "fstat", "stat", "bpf", "perf_event_open", "ioctl",
    "finit_module", "delete_module",
)  # fmt: skip


class FaultPlan(NamedTuple):
    """What is to go wrong: ``kind`` at the ``call``-th gateway call (counted from 1)."""

    kind: str
    call: int
    errno: int = 0

    @classmethod
    def parse(cls, text: str) -> "FaultPlan":
        """Read ``kill-before:N``, ``kill-after:N``, ``fail:N:ERRNO`` or ``short:N``."""
        kind, _, rest = text.partition(":")
        number, _, code = rest.partition(":")
        if kind not in ("kill-before", "kill-after", "fail", "short") or not number.isdigit():
            raise ValueError(f"not a fault: {text!r}")
        if kind != "fail":
            return cls(kind, int(number))
        return cls(kind, int(number), int(code) if code.isdigit() else getattr(errno, code))


class Faults:
    """Counts the gateway calls and makes one of them go wrong. Only tests install it."""

    def __init__(self) -> None:
        """Start without faults."""
        self.calls = 0
        self.reached = False
        self.log: list[str] | None = None
        self._plan: FaultPlan | None = None
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self, plan: FaultPlan | None = None, *, log: bool = False) -> None:
        """Count calls from now on, and let ``plan`` happen."""
        self.clear()
        self._plan, self.calls, self.reached = plan, 0, False
        self.log = [] if log else None
        for name in _GATED:
            self._originals[name] = globals()[name]
            globals()[name] = self._gate(name, globals()[name])

    def clear(self) -> None:
        """Give every call its plain form back."""
        globals().update(self._originals)
        self._originals.clear()

    def _gate(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - stands for any of them
            self.calls += 1
            if self.log is not None:
                self.log.append(f"{name}{arguments[:3]!r}")
            plan = self._plan
            if plan is None or self.calls != plan.call:
                return call(*arguments, **options)
            self.reached = True
            if plan.kind == "kill-before":
                os.kill(os.getpid(), signal.SIGKILL)
            if plan.kind == "fail":
                raise OSError(plan.errno, os.strerror(plan.errno))
            if plan.kind == "short":
                arguments = _shortened(name, arguments)
            try:
                return call(*arguments, **options)
            finally:  # a call that fails by itself is one, too
                if plan.kind == "kill-after":
                    os.kill(os.getpid(), signal.SIGKILL)

        return gated


def _shortened(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a transfer of half the size."""
    if name == "pwrite":
        fd, data, offset = arguments
        return fd, data[: max(1, len(data) // 2)], offset
    if name in ("read", "pread"):
        return (arguments[0], max(1, arguments[1] // 2), *arguments[2:])
    return arguments


faults = Faults()
