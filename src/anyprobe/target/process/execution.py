"""A thread that is about to execute another program: traced until it has, and then held before the first instruction.

Only the thread that executes is traced, and only from just before the call to the new program's start or the call's
failure. If the controller dies meanwhile, the kernel lets it go: it runs as if it had not been traced.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout
from anyprobe.target.process import permission
from anyprobe.target.process.process import Process, check_kind
from anyprobe.target.remote.thread import Thread, is_traced_here, looks
from anyprobe.target.system import gateway, procfs, ptrace
from anyprobe.target.system.wait_status import Kind

if TYPE_CHECKING:
    from anyprobe.target.system.ptrace import Registers

EXECUTING = frozenset({59, 322})
"""The numbers of ``execve`` and ``execveat``."""
Permits = Callable[["Registers"], bool]
"""Whether a program may be traced that is executed with some registers."""
_STOPPING = 4.0
"""Seconds that a thread which waits anyway has to stop: it has to run for that, and processors may be busy."""
_RELEASING = 1.0
_LETTING_GO = 0.1
"""Seconds for a parent to let go of its child, if it is another controller."""


class Unfollowed(Enum):
    """Why there is no new program to be had."""

    FAILED = "the call has failed"
    """The program goes on as it was: nothing is lost."""
    ENDED = "it has ended"
    NOT_CALLED = "it did not come to the call in time"
    """If it comes there later, that is not seen."""
    STOPPED = "job control has stopped it"
    REFUSED = "the program must not be traced"
    """It runs as it would, with all its rights."""


def follow_execution(
    pid: int, tid: int, let_go: Callable[[], object], timeout: float, permits: Permits | None = None
) -> Process | Unfollowed:
    """Trace a thread that waits for ``let_go`` before it executes; return the new program, held, or why there is none.

    ``permits`` is asked at the system call itself, where what is executed is not known before.
    Raises ``PermissionDenied`` where it may not be traced, ``TargetError`` where the new program cannot be probed: then
    it has been let go already, or never been traced.
    """
    return _Execution(pid, tid, permits).run(let_go, time.monotonic() + timeout)


def held_at_start(thread: Thread, deadline: float, *, launched: bool = False) -> Process:
    """Return the process of a thread that has met the event of its exec, held before the program's first instruction.

    Raises ``TargetError`` for what no user can probe, and ``OSError``; the thread stays stopped, and traced, then.
    """
    # At the event the kernel is still inside execve and would overwrite rax; one step on, it is not.
    ptrace.interrupt(thread.tid)
    thread.resume_with(ptrace.resume)
    while True:
        if not thread.wait(deadline):
            raise StopTimeout(f"process {thread.pid} did not start in time")
        if thread.ended or thread.kind is not Kind.SYSCALL:
            break
        thread.resume_with(ptrace.resume)  # the end of execve, where its calls are traced
    ptrace.set_options(thread.tid, ptrace.OPTION_SYSGOOD)
    thread.load_registers()
    check_kind(thread.pid)
    process = Process(thread.pid, gateway.pidfd_open(thread.pid), launched=launched)
    process.held = thread
    process.relatives.begin_alone()
    return process


class _Leader(Thread):
    """The number of a process's first thread, which is traced once another thread has executed and has it."""

    __slots__ = ("_met",)

    def __init__(self, pid: int, *, child: bool) -> None:
        super().__init__(pid, pid, child=child)
        self._met = False

    def poll(self) -> bool:
        """Take note of a stop or of the end of what is traced under it; return whether there was one."""
        there = super().poll()
        if there and self.ended and self.status is None and not self._met:  # it is the first thread's still
            self.ended = False
            return False
        self._met |= there
        return there


class _Execution:
    """One thread on its way."""

    def __init__(self, pid: int, tid: int, permits: Permits | None) -> None:
        self._permits = permits
        self._child = procfs.read_stat(pid).parent == os.getpid()
        self._thread = Thread(pid, tid, child=self._child and pid == tid)
        self._leader = self._thread if pid == tid else _Leader(pid, child=self._child)
        """The thread that executes has the number of the first thread afterwards."""

    def run(self, let_go: Callable[[], object], deadline: float) -> Process | Unfollowed:
        if not self._seize():
            return Unfollowed.ENDED
        try:
            self._stop()
            let_go()
            found = self._to_exec(deadline)
        except ProcessLookupError:
            found = Unfollowed.ENDED
        except BaseException:
            self._release()
            raise
        if found is not None:
            self._release()
            return found
        return self._held(deadline)

    def _seize(self) -> bool:
        """Begin to trace the thread, after the tracer that has it for a moment; return whether it is there.

        A program that traces its own child does so until that has ended, and may wait for it meanwhile.
        """
        began = time.monotonic()
        while True:
            try:
                ptrace.seize(self._thread.tid, ptrace.OPTION_SYSGOOD | ptrace.OPTION_EXEC)
            except ProcessLookupError:
                return False
            except PermissionError as error:
                tracer = permission.tracer_of(self._thread.tid)
                patience = _LETTING_GO if tracer == procfs.read_stat(self._thread.pid).parent else _STOPPING
                if not tracer or time.monotonic() > began + patience:
                    raise permission.explain(self._thread.tid) from error
                time.sleep(0.0005)
            else:
                return True

    def _stop(self) -> None:
        thread = self._thread
        ptrace.interrupt(thread.tid)
        if not thread.wait(time.monotonic() + _STOPPING):
            raise StopTimeout(f"thread {thread.tid} of process {thread.pid} did not stop in time")
        if not thread.ended:
            thread.settle()

    def _to_exec(self, deadline: float) -> Unfollowed | None:
        """Let it run from system call to system call; return ``None`` when it has become another program."""
        thread = self._thread
        while True:
            if thread.ended:
                return Unfollowed.ENDED
            if thread.in_group_stop:
                return Unfollowed.STOPPED
            if thread.kind is Kind.SYSCALL:
                enters = ptrace.at_syscall_entry(thread.tid)
                if not enters or self._permits is not None:
                    thread.load_registers()
                    executes = thread.registers.orig_rax in EXECUTING
                    if executes and not enters:
                        return Unfollowed.FAILED
                    if executes and self._permits is not None and not self._permits(thread.registers):
                        return Unfollowed.REFUSED
            thread.store_registers()
            thread.resume_with(ptrace.resume_to_syscall)
            if not self._wait(deadline):
                return Unfollowed.NOT_CALLED
            if self._leader.stopped and self._leader.kind is Kind.EVENT:
                return None

    def _wait(self, deadline: float) -> bool:
        """Wait for the next stop, or the end, of the thread under either number."""
        if self._leader is self._thread:
            return self._thread.wait(deadline)
        return any(self._leader.poll() or (self._thread.poll() and not self._became_leader()) for _ in looks(deadline))

    def _became_leader(self) -> bool:
        """Return whether the thread is gone since it has its new number by now, and is on its way to stop."""
        return self._thread.ended and is_traced_here(self._leader.tid)

    def _held(self, deadline: float) -> Process:
        try:
            return held_at_start(self._leader, deadline)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Let it go, under whichever number it has, however long it takes: one that stays traced stops for ever."""
        while True:
            for thread in dict.fromkeys((self._leader, self._thread)):
                if thread is self._leader and thread is not self._thread and not thread.poll() and not thread.stopped:
                    continue
                with suppress(OSError):
                    if thread.release(time.monotonic() + _RELEASING):
                        return
            if not os.path.exists(f"/proc/{self._thread.tid}") and not os.path.exists(f"/proc/{self._leader.pid}"):
                return
