"""Threads made for a moment, with descriptors of their own, in which system calls are made while the program runs on.

A descriptor that we opened in a running program would be the program's, too: another thread's ``open`` would not get
the number that it counts on, a fork would copy it. So a borrowed thread makes one that shares everything but the table
of descriptors. It begins, and ends, on a signal frame whose state is the call of ``exit``: if the controller dies, it
returns into that.

The frame lies in anyprobe's memory; the borrowed thread goes on as soon as the helper thread is there. Before there is
such memory it lies on the borrowed thread's stack, and that one waits, as in vfork, until the helper thread has ended.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from anyprobe.core.errors import AnyprobeError, StopTimeout
from anyprobe.core.memory import MemoryFault
from anyprobe.target.process.borrowing import borrowed
from anyprobe.target.process.tracee import Tracee
from anyprobe.target.remote import frame
from anyprobe.target.remote.calls import RemoteCalls
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import procfs, ptrace

_CLONE, _EXIT = 56, 60
_VM, _FS, _SIGHAND, _PTRACE, _VFORK = 0x100, 0x200, 0x800, 0x2000, 0x4000
_THREAD, _SYSVSEM, _PARENT_SETTID = 0x10000, 0x40000, 0x100000
_FLAGS = _VM | _FS | _SIGHAND | _PTRACE | _THREAD | _SYSVSEM | _PARENT_SETTID
_PATIENCE = 2.0
_PAUSE = 50e-6
_WAIT_US = 50_000
"""How long it waits for the controller after many calls: a thread that has left could not be found again."""
ROOM = 3 * frame.ROOM
"""What must be free below the top: one frame ends the helper thread, one is for its calls; their data lies below."""
WAITING_ROOM = frame.ROOM + ROOM
"""What must be free for a borrowed thread that lends the helper thread a stack below its own frame."""


@contextmanager
def with_helper_thread(process: Tracee, top: int, timeout: float) -> Iterator[RemoteCalls]:
    """Borrow a thread for as long as it takes to make a helper thread with a stack of ``ROOM`` bytes below ``top``."""
    thread: Thread | None = None
    try:
        with borrowed(process, timeout) as remote:
            fate = _put_up_fate(process, remote.thread, top & -64)
            thread = _made(process, remote, fate)
        with _calls_in(process, thread, fate) as calls:
            process.stopped_threads = [thread]
            yield calls
    finally:
        process.stopped_threads = []
        if thread is not None:
            _end(process, thread)


def _made(process: Tracee, remote: RemoteCalls, fate: int) -> Thread:
    """Make a helper thread; one that a failed call has made all the same is let go."""
    word = remote.place(bytes(8))
    try:
        return Thread(process.pid, remote.syscall(_CLONE, _FLAGS, fate, word, 0, 0))
    except BaseException:
        with suppress(AnyprobeError, MemoryFault):
            remote.settle()
            if tid := int.from_bytes(process.mem.read(word, 4), "little"):
                _end(process, Thread(process.pid, tid))
        raise


@contextmanager
def with_waiting_helper_thread(process: Tracee, remote: RemoteCalls) -> Iterator[RemoteCalls]:
    """Make a helper thread on the stack of a thread borrowed with ``WAITING_ROOM``, which waits until it has ended.

    Raises ``RemoteCallFailed`` where no thread can be made.
    """
    word = remote.place(bytes(8))
    top = word & -64
    fate = _put_up_fate(process, remote.thread, top)
    remote.begin(_CLONE, _FLAGS | _VFORK, fate, word, 0, 0)
    thread: Thread | None = None
    try:
        thread = _begun(process, remote, word)
        if thread is None:
            remote.end()
            raise process.gone()
        with _calls_in(process, thread, fate) as calls:
            yield calls
    finally:
        if thread is not None:
            _release(process, thread)
        remote.settle()


@contextmanager
def _calls_in(process: Tracee, thread: Thread, fate: int) -> Iterator[RemoteCalls]:
    """Make calls in a helper thread that has just begun."""
    if not thread.wait(time.monotonic() + _PATIENCE):
        raise StopTimeout(f"the helper thread {thread.tid} of process {process.pid} does not stop")
    if thread.ended:
        raise process.gone()
    with process.translated("reading a helper thread's registers"):
        thread.load_registers()
    with suppress(OSError):  # it is anyprobe's, and the controller waits for it
        os.sched_setscheduler(thread.tid, os.SCHED_FIFO, os.sched_param(1))
    with RemoteCalls(process, thread, (fate - 256) & -64, wait_us=_WAIT_US) as calls:
        yield calls


def _release(process: Tracee, thread: Thread) -> None:
    if not thread.release(time.monotonic() + _PATIENCE):
        process.unreleased.append(thread)


def _end(process: Tracee, thread: Thread) -> None:
    """Let a helper thread go, and see it end: its stack may be unmapped afterwards.

    Raises ``StopTimeout`` if it does not: job control or a frozen group may have stopped it before its frame.
    """
    _release(process, thread)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            if procfs.read_stat(process.pid, thread.tid).ended:
                return
        except OSError:
            return
        time.sleep(_PAUSE)
    raise StopTimeout(f"the helper thread {thread.tid} of process {process.pid} does not end")


def _put_up_fate(process: Tracee, thread: Thread, top: int) -> int:
    """Write the frame whose state calls ``exit``, and return where it is."""
    gadgets = process.gadgets()
    registers = thread.registers.copy()
    registers.rip, registers.rax, registers.rdi, registers.rsp = gadgets.syscall_ret, _EXIT, 0, top
    with process.translated("reading the registers of a thread of"):
        state = ptrace.get_extended_state(thread.tid)
    start, content = frame.build(top, registers, state, ptrace.ALL_SIGNALS, gadgets)
    process.mem.write(start, content)
    return start


def _begun(process: Tracee, remote: RemoteCalls, word: int) -> Thread | None:
    """Wait until a helper thread is there; ``None`` if none has come, which the call's end says."""
    deadline = time.monotonic() + _PATIENCE
    while not (tid := int.from_bytes(process.mem.read(word, 4), "little")):
        if remote.has_ended():
            return None
        if time.monotonic() > deadline:
            raise StopTimeout(f"a helper thread thread of process {process.pid} takes too long to begin")
        time.sleep(_PAUSE)
    return Thread(process.pid, tid)
