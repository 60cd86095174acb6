"""System calls made in a stopped thread of the target, which the thread could finish alone (docs/safety.md, rule 1).

Life of an injected call:

1. A signal frame with the thread's whole state is written to memory of a stack that holds nothing: see ``spare_stack``.
2. The registers are set: pc at a ``syscall; ret`` of the program, stack pointer at the frame, whose first word is the
   signal return code. From here on, if the controller dies, the thread makes the call and returns from the "signal".
3. All signals are blocked; the frame holds the true mask.
4. The thread runs to the call's entry and exit. Steps 2 and 4 repeat for further calls.
5. The thread is interrupted again, at a point where the kernel has not decided about restarting a system call; the true
   mask and then the true registers are set. The kernel then takes up the interrupted call as if nothing had been.

The frame's signal return is for the controller's death only: it loses the remaining time of an interrupted sleep.
"""

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from anyprobe.core.errors import PermissionDenied, RemoteCallFailed, StopTimeout, UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import ProcessFacts
from anyprobe.target.remote import frame, restarting
from anyprobe.target.remote.batch import WAIT_US, BatchedCall, Outcome, batch_size, blank_outcome, read_outcome
from anyprobe.target.remote.gadgets import Gadgets
from anyprobe.target.remote.spare_stack import SpareStacks, give_back
from anyprobe.target.remote.thread import Thread, looks
from anyprobe.target.system import gateway, procfs, ptrace
from anyprobe.target.system.wait_status import Kind

READ, WRITE, OPEN, CLOSE, MMAP, MPROTECT, MUNMAP, MADVISE, GETPID = 0, 1, 2, 3, 9, 10, 11, 28, 39
PRCTL, FTRUNCATE, GETTID, MREMAP, FALLOCATE, MEMFD_CREATE = 157, 77, 186, 25, 285, 319
NAMES = {
    READ: "read", WRITE: "write", OPEN: "open", CLOSE: "close", MMAP: "mmap", MPROTECT: "mprotect", MUNMAP: "munmap",
    MADVISE: "madvise", GETPID: "getpid", PRCTL: "prctl", FTRUNCATE: "ftruncate", GETTID: "gettid", MREMAP: "mremap",
    FALLOCATE: "fallocate", 324: "membarrier", MEMFD_CREATE: "memfd_create",
}  # fmt: skip
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_MASK64 = (1 << 64) - 1
_MAX_ERRNO = 4095
_USER_CS = 0x33
_TRAP_FLAG = 0x100
_CALL_TIMEOUT = 5.0
_BELOW_FRAME = 256


class RemoteCalls:
    """Makes system calls in one stopped thread; afterwards its registers, mask and interrupted call are as before."""

    def __init__(
        self, process: ProcessFacts, thread: Thread, top: int, *, spare_room: int = 0, all_stopped: bool = False,
        wait_us: int = WAIT_US,
    ) -> None:  # fmt: skip
        """Choose the thread, which ``fitness`` has found fit, and the top of memory for the frame.

        ``spare_room``: what ``spare_stack`` found to be free below the top, where it has returned that. ``wait_us`` is
        how long the thread waits after many calls to be found.
        """
        self._process, self._thread, self._wait_us = process, thread, wait_us
        self._top, self._spare_room, self._all_stopped = top, spare_room, all_stopped
        self._frame = 0
        self._mask = 0
        self._gadgets = Gadgets(0, 0)
        self._running = False
        self._unclear = False
        """Whether an error came before the result of a call: it may have been made, or may still be about to be."""
        self._parked = False
        """Whether it is stopped in the signal path."""
        self._batch = range(0)
        """The code of a batch that may be running."""
        self._suspends_seccomp = False

    def __enter__(self) -> Self:
        """Put up the frame; the thread itself is not changed yet."""
        with self._process.translated("preparing a system call"):
            self._check_thread()
            self._thread.store_registers()
            self._gadgets = self._process.gadgets()
            self._mask = ptrace.get_signal_mask(self._thread.tid)
            self._put_up_frame(self._top)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the thread its state back."""
        if self._running:
            with self._process.translated("restoring a thread"):
                self._finish()
        if self._spare_room and self._top:
            give_back(self._process, self._top, self._spare_room)

    @property
    def thread(self) -> Thread:
        """The thread that makes the calls."""
        return self._thread

    def place(self, content: bytes) -> int:
        """Put bytes that a call's argument points to below the frame; return their address, good for this scope."""
        self._check_room()
        address = (self._frame - _BELOW_FRAME - len(content)) & ~15
        self._process.mem.write(address, content)
        return address

    def open_descriptor(self, fd: int) -> int:
        """Return a descriptor for the file that one of the thread's refers to; raise ``OSError``.

        The thread's own: a vfork child, and a helper thread, share the memory but have descriptors of their own.
        """
        return int(gateway.open_file(f"/proc/{self._thread.tid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))

    def syscall(self, number: int, *arguments: int) -> int:
        """Make one system call; it must not sleep. Raise ``RemoteCallFailed`` with the target's errno."""
        with self._process.translated("making a system call"):
            result = self._call(number, arguments)
        if result > _MASK64 - _MAX_ERRNO:
            raise RemoteCallFailed(NAMES.get(number, f"system call {number}"), _MASK64 + 1 - result)
        return result

    def run(self, calls: Sequence[BatchedCall], address: int) -> None:
        """Make many system calls with one run of ``batch_code(calls)``, which is at ``address``.

        None of them may sleep. Raise ``RemoteCallFailed`` for the first that does not return what it must; those after
        it are not made.
        """
        code = range(address, address + batch_size(len(calls)))
        with self._process.translated("making system calls"):
            outcome = self._run(code)
        if not outcome.done:
            raise StopTimeout(f"system calls in thread {self._thread.tid} take too long")
        if outcome.succeeded < len(calls):
            number = calls[outcome.succeeded].number
            failed = outcome.last > _MASK64 - _MAX_ERRNO
            error = _MASK64 + 1 - outcome.last if failed else errno.EEXIST
            raise RemoteCallFailed(NAMES.get(number, f"system call {number}"), error)

    def _run(self, code: range) -> Outcome:
        self.settle()
        blank = blank_outcome(self._wait_us)
        place = self.place(blank)
        registers = self._registers_at(code.start)
        registers.r12 = place
        self._start(registers)
        self._unclear, self._batch = True, code
        self._thread.resume_with(ptrace.resume)
        outcome = Outcome(False, 0, 0)
        for _ in looks(time.monotonic() + _CALL_TIMEOUT):
            stopped = self._thread.poll()
            outcome = read_outcome(self._process.mem.read(place, len(blank)))  # after: its end does not outrun this
            if outcome.done:
                break
            if self._thread.ended:
                raise self._process.gone()
            if stopped:
                self._thread.resume_with(ptrace.resume)  # job control; signals are blocked
        self._park()
        return outcome

    def _park(self) -> None:
        """Stop a batch, wherever it is; if it has left by itself already, its thread is as it was."""
        thread = self._thread
        if not (thread.stopped or thread.ended):
            with contextlib.suppress(ProcessLookupError):
                ptrace.interrupt(thread.tid)
            if not thread.wait(time.monotonic() + _CALL_TIMEOUT):
                raise StopTimeout(f"system calls in thread {thread.tid} take too long")
        if thread.ended:  # as a helper thread does that was left alone
            self._unclear, self._batch, self._running, self._frame = False, range(0), False, 0
            return
        registers = ptrace.Registers()
        ptrace.get_registers(thread.tid, registers)
        inside = registers.rip in self._batch
        if inside:  # the code is about to go: from now on a death or a failure finds it before a `ret` to the restorer
            registers.rip, registers.rsp = self._gadgets.after_syscall, self._frame
            registers.orig_rax = _MASK64
            ptrace.set_registers(thread.tid, registers)
        self._unclear, self._batch, self._parked = False, range(0), True
        if not inside:
            self._running = False
            thread.settle()
            self._find_room()

    def settle(self) -> None:
        """Bring a call that an error interrupted to its end, so that its effects can be looked for and undone."""
        if not self._unclear:
            return
        with self._process.translated("finishing a system call"):
            if self._batch:
                self._park()
                return
            if not self._thread.stopped:
                self._wait(time.monotonic() + _CALL_TIMEOUT)
            if self._thread.kind is Kind.SYSCALL and ptrace.at_syscall_entry(self._thread.tid):
                self._run_to_syscall_stop()
        self._unclear = False

    def begin(self, number: int, *arguments: int) -> None:
        """Let the thread into a system call that ends when something else is done; ``end`` waits for that."""
        with self._process.translated("making a system call"):
            self._begin(number, arguments)

    def end(self) -> int:
        """Wait for the call that was begun; return its result, or raise ``RemoteCallFailed``."""
        with self._process.translated("making a system call"):
            result = self._end()
        if result > _MASK64 - _MAX_ERRNO:
            raise RemoteCallFailed("a system call", _MASK64 + 1 - result)
        return result

    def has_ended(self) -> bool:
        """Return whether the call that was begun has ended."""
        return self._thread.stopped or self._thread.poll()

    def _call(self, number: int, arguments: tuple[int, ...]) -> int:
        self._begin(number, arguments)
        return self._end()

    def _begin(self, number: int, arguments: tuple[int, ...]) -> None:
        self.settle()
        registers = self._registers_at(self._gadgets.syscall_ret)
        registers.rax = number
        for name, value in zip(_ARGUMENTS, arguments, strict=False):
            setattr(registers, name, value & _MASK64)
        self._start(registers)
        self._unclear = True
        self._run_to_syscall_stop()
        self._thread.resume_with(ptrace.resume_to_syscall)

    def _end(self) -> int:
        self._wait(time.monotonic() + _CALL_TIMEOUT)
        if self._thread.kind is not Kind.SYSCALL:
            self._run_to_syscall_stop()
        registers = ptrace.Registers()
        ptrace.get_registers(self._thread.tid, registers)
        self._unclear = False
        return registers.rax

    def _registers_at(self, pc: int) -> ptrace.Registers:
        """Return the registers to start something at ``pc`` with: on the frame, in no system call, not stepping."""
        self._check_room()
        registers = self._thread.registers.copy()
        registers.rip, registers.rsp = pc, self._frame
        registers.orig_rax = _MASK64
        registers.eflags &= ~_TRAP_FLAG
        return registers

    def _start(self, registers: ptrace.Registers) -> None:
        """Point the thread at what it is to do; from the first time on it is borrowed until ``_finish``."""
        ptrace.set_registers(self._thread.tid, registers)
        self._parked = False
        if not self._running:
            # After the registers: a death in between must not leave the mask to a thread without the frame.
            self._running = True
            ptrace.set_signal_mask(self._thread.tid, ptrace.ALL_SIGNALS)

    def _run_to_syscall_stop(self) -> None:
        """Run to the next system call stop; signals met before are all blocked, so the kernel queues them again."""
        deadline = time.monotonic() + _CALL_TIMEOUT
        while True:
            self._thread.resume_with(ptrace.resume_to_syscall)
            self._wait(deadline)
            if self._thread.kind is Kind.SYSCALL:
                return

    def _wait(self, deadline: float) -> None:
        if not self._thread.wait(deadline):
            raise StopTimeout(f"a system call in thread {self._thread.tid} takes too long")
        if self._thread.ended:
            raise self._process.gone()

    def _finish(self) -> None:
        """Stop it in the signal path, where a system call's restart is decided, and restore mask and registers there.

        Whatever fails here leaves a thread that returns through its frame.
        """
        thread = self._thread
        self._running = False
        try:
            if not self._parked:
                ptrace.interrupt(thread.tid)
                if thread.stopped:
                    thread.resume_with(ptrace.resume)
                self._wait(time.monotonic() + _CALL_TIMEOUT)
            ptrace.set_signal_mask(thread.tid, self._mask)
            ptrace.set_registers(thread.tid, thread.registers)
        except BaseException:
            thread.abandon_registers()
            raise
        if self._suspends_seccomp:
            with contextlib.suppress(OSError):
                ptrace.set_options(thread.tid, thread.options)

    def _find_room(self) -> None:
        """Put up a frame where the thread is now, after it went on alone; without room it makes no more calls.

        Memory that was spare before may have become the program's meanwhile.
        """
        process, thread = self._process, self._thread
        self._frame = self._top = 0
        self._mask = ptrace.get_signal_mask(thread.tid)
        if self._spare_room and not fitness(thread, process):
            place = SpareStacks(process, process.mappings(), self._spare_room)
            self._top = place.any(thread) if self._all_stopped else place.own(thread)
            if self._top:
                self._put_up_frame(self._top)

    def _check_room(self) -> None:
        if not self._frame:
            raise StopTimeout(f"thread {self._thread.tid} went on alone, and can make no system call where it is now")

    def _put_up_frame(self, top: int) -> None:
        registers = self._thread.registers.copy()
        before_pc = b""
        if registers.orig_rax == restarting.SYS_RESTART_SYSCALL:
            with contextlib.suppress(MemoryFault):
                before_pc = self._process.mem.read(registers.rip - 7, 7)
        number = restarting.repeated_from_start(registers.orig_rax, registers.rax, before_pc)
        if number is not None:
            registers.rip -= 2
            registers.rax = number
        state = ptrace.get_extended_state(self._thread.tid)
        start, content = frame.build(top, registers, state, self._mask, self._gadgets)
        if not frame.fits(top, start):
            raise UnsupportedTarget("this machine's vector state is too large for an injected call")
        self._process.mem.write(start, content)
        self._frame = start

    def _check_thread(self) -> None:
        """Refuse what would break the call: shadow stacks, seccomp filters."""
        thread = self._thread
        status = procfs.parse_status(procfs.read_file(f"/proc/{thread.pid}/task/{thread.tid}/status"))
        if "shstk" in status.get("x86_Thread_features", "").split():
            raise UnsupportedTarget("the program runs with shadow stacks, where no system call can be injected")
        if status.get("Seccomp", "0") == "0":
            return
        try:
            ptrace.set_options(thread.tid, ptrace.OPTION_SYSGOOD | ptrace.OPTION_SUSPEND_SECCOMP)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL, errno.EBUSY):
                raise
            raise confined(thread.pid) from error
        self._suspends_seccomp = True


def confined(pid: int) -> PermissionDenied:
    """Return the error for a process that filters its system calls, where these filters cannot be suspended."""
    return PermissionDenied(
        "seccomp",
        f"process {pid} is confined by a seccomp filter, which would kill it at our system calls or after a stop",
        "run anyprobe as root outside of any container: it can then suspend the filter",
    )


def fitness(thread: Thread, process: ProcessFacts) -> str:
    """Return why no call can be injected into a stopped thread, wherever the frame is, or an empty string."""
    if thread.registers.cs != _USER_CS:
        return "runs 32-bit code"
    if _in_restartable_sequence(thread, process):
        return "in a restartable sequence"
    if _dispatches(thread, process):
        return "its system calls are given back to it (PR_SET_SYSCALL_USER_DISPATCH)"
    if process.meets_traps and thread.awaits_trap():
        # If we died before its signals are blocked, the trap would show at our call, not at its site.
        return "about to handle a trap"
    return ""


def _dispatches(thread: Thread, process: ProcessFacts) -> bool:
    """Whether a system call would bring SIGSYS upon the thread now, which kills where signals are blocked."""
    try:
        mode, selector, start, length = ptrace.get_dispatch(thread.tid)
    except OSError as error:
        if error.errno in (errno.EIO, errno.EINVAL):  # a kernel without the request
            return False
        raise
    if not mode or start <= process.gadgets().syscall_ret < start + length:
        return False
    try:
        return not selector or process.mem.read(selector, 1) != b"\0"
    except MemoryFault:
        return True


def _in_restartable_sequence(thread: Thread, process: ProcessFacts) -> bool:
    """Whether moving the pc away would make the kernel forget to abort a sequence that was preempted."""
    try:
        area = ptrace.get_rseq_area(thread.tid)
        if not area:
            return False
        descriptor = int.from_bytes(process.mem.read(area + 8, 8), "little")
        if not descriptor:
            return False
        content = process.mem.read(descriptor, 24)
    except MemoryFault:
        return True
    except OSError as error:
        if error.errno in (errno.EIO, errno.EINVAL):  # a kernel without the request
            return False
        raise
    start = int.from_bytes(content[8:16], "little")
    length = int.from_bytes(content[16:24], "little")
    return start <= thread.registers.rip < start + length
