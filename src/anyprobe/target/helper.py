"""A thread made for a moment, with descriptors of its own, in which system calls are made while the program runs on.

A descriptor that we opened in a running program would be the program's, too: another thread's ``open`` would not get
the number that it counts on, a fork would copy it. So a borrowed thread makes one that shares everything but the table
of descriptors, and waits, as in vfork, until that one has ended. It begins, and ends, on a signal frame whose state is
the call of ``exit``: if the controller dies, it returns into that, and then the borrowed thread goes on.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout
from anyprobe.target import frame, ptrace
from anyprobe.target.remote import RemoteCalls
from anyprobe.target.thread import Thread

if TYPE_CHECKING:
    from anyprobe.target.process import Process

_CLONE, _EXIT = 56, 60
_VM, _FS, _SIGHAND, _PTRACE, _VFORK = 0x100, 0x200, 0x800, 0x2000, 0x4000
_THREAD, _SYSVSEM, _PARENT_SETTID = 0x10000, 0x40000, 0x100000
_FLAGS = _VM | _FS | _SIGHAND | _PTRACE | _VFORK | _THREAD | _SYSVSEM | _PARENT_SETTID
_PATIENCE = 2.0
_PAUSE = 50e-6
_WAIT_US = 200_000
"""How long it waits for us behind many calls: a thread that has left could not be found again."""
_FRAMES = 3
"""The borrowed thread's, the one that ends the helper, and the helper's for its calls."""


@contextmanager
def helped(process: "Process", remote: RemoteCalls) -> Iterator[RemoteCalls]:
    """Make a helper in a borrowed thread and end it with the scope; calls are made in the helper meanwhile.

    Raises ``StopTimeout`` where the borrowed thread has no room on its stack, ``RemoteCallFailed`` where no thread can
    be made.
    """
    word = remote.place(bytes(8))
    top = word & -64
    _check_room(process, top)
    fate = _put_up_fate(process, remote.thread, top)
    remote.begin(_CLONE, _FLAGS, fate, word, 0, 0)
    thread: Thread | None = None
    try:
        thread = _begun(process, remote, word)
        if thread is None:
            remote.end()
            raise process.gone()
        with process.translated("reading a helper's registers"):
            thread.load_registers()
        with suppress(OSError):  # it is ours, and somebody waits for it
            os.sched_setscheduler(thread.tid, os.SCHED_FIFO, os.sched_param(1))
        with RemoteCalls(process, thread, (fate - 256) & -64, wait_us=_WAIT_US) as calls:
            yield calls
    finally:
        if thread is not None and not thread.release(time.monotonic() + _PATIENCE):
            process.unreleased.append(thread)
        remote.settle()


def _check_room(process: "Process", top: int) -> None:
    stack = next((m for m in process.mappings() if m.start <= top < m.end), None)
    if stack is None or top - _FRAMES * frame.ROOM < stack.start:
        raise StopTimeout(f"no thread of process {process.pid} has room on its stack for a helper")


def _put_up_fate(process: "Process", thread: Thread, top: int) -> int:
    """Write the frame whose state calls ``exit``, and return where it is."""
    gadgets = process.gadgets()
    registers = thread.registers.copy()
    registers.rip, registers.rax, registers.rdi, registers.rsp = gadgets.syscall_ret, _EXIT, 0, top
    state = ptrace.get_extended_state(thread.tid)
    start, content = frame.build(top, registers, state, ptrace.ALL_SIGNALS, gadgets)
    process.mem.write(start, content)
    return start


def _begun(process: "Process", remote: RemoteCalls, word: int) -> Thread | None:
    """Wait for the helper to stop where it begins; ``None`` if there is none, which the call's end says."""
    deadline = time.monotonic() + _PATIENCE
    while not (tid := int.from_bytes(process.mem.read(word, 4), "little")):
        if remote.has_ended():
            return None
        if time.monotonic() > deadline:
            raise StopTimeout(f"a helper thread of process {process.pid} takes too long to begin")
        time.sleep(_PAUSE)
    thread = Thread(process.pid, tid)
    if not thread.wait(deadline):
        raise StopTimeout(f"the helper thread {tid} of process {process.pid} does not stop")
    return None if thread.ended else thread
