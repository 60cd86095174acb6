"""A held program's start-up: run it to where its libraries are mapped, or relocated, and nothing in them has run."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from anyprobe.core.errors import StopTimeout, TargetError
from anyprobe.target.process.process import Process
from anyprobe.target.system import ptrace
from anyprobe.target.system.wait_status import Kind

if TYPE_CHECKING:
    from anyprobe.target.remote.thread import Thread
    from anyprobe.target.system.ptrace import Registers

_TIMEOUT = 30.0
_ARCH_PRCTL, _ARCH_SET_FS = 158, 0x1002
_MPROTECT, _PROT_READ = 10, 1
_MUNMAP, _PRLIMIT = 11, 302
_RELOCATING = frozenset({9, _MPROTECT, 12, _ARCH_PRCTL, 218, 273, 318, 334})
"""The system calls of glibc's loader from the first thread pointer to the last relocation: ``mmap``, ``mprotect``,
``brk``, ``arch_prctl``, ``set_tid_address``, ``set_robust_list``, ``getrandom``, ``rseq``."""


def run_to_libraries(process: Process, mapped: Callable[[], bool]) -> bool:
    """Let a program held at its first instruction run until its first thread pointer has just been set; hold it there.

    glibc's loader sets the thread pointer once, after it has mapped all libraries and before it relocates the first one
    (``init_tls`` in ``elf/rtld.c``): the IFUNC resolvers and constructors of the libraries are still to come.

    Where the loader has auditors, it does so before it loads these, and the libraries are mapped after that: ``mapped``
    says whether they are. Then what is loaded is held when the first library has been relocated, and is to be made
    read-only: IFUNC resolvers have run by then, in the auditors all kinds of code. Returns whether it was so.
    """
    audited = False
    for registers in _system_calls(process):
        call, first = registers.orig_rax, registers.rdi
        if not audited and call == _ARCH_PRCTL and first == _ARCH_SET_FS:
            if mapped():
                return False
            audited = True
        elif audited and call == _MPROTECT and registers.rdx == _PROT_READ and mapped():
            return True
    raise AssertionError("a held program makes system calls or ends")


def run_to_relocated(process: Process) -> bool:
    """Let a program that ``run_to_libraries`` holds run until all its libraries are relocated; hold it there.

    Before it runs the first constructor, glibc's loader has the C library ask for the size of stacks (since 2.34,
    ``__libc_early_init``), and unmaps its cache of libraries. Returns whether one of these was seen. Otherwise the
    program is held after its first system call that no relocation makes; what it has done until then is over.
    """
    for registers in _system_calls(process):
        if registers.orig_rax not in _RELOCATING:
            return registers.orig_rax in (_MUNMAP, _PRLIMIT)
    raise AssertionError("a held program makes system calls or ends")


def _system_calls(process: Process) -> "Iterator[Registers]":
    """Let a held program run from system call to system call; yield the registers at the end of each, held again."""
    thread = process.held
    if thread is None:
        raise TargetError(f"process {process.pid} is not held")
    deadline = time.monotonic() + _TIMEOUT
    with process.translated("starting"):
        thread.store_registers()
        while True:
            for _ in ("the beginning", "the end"):
                _go_to_a_stop(process, thread, deadline)
            thread.load_registers()
            yield thread.registers


def _go_to_a_stop(process: Process, thread: "Thread", deadline: float) -> None:
    while True:
        thread.resume_with(ptrace.resume_to_syscall)
        if not thread.wait(deadline):
            raise StopTimeout(f"process {process.pid} did not come to its own code in time")
        if thread.ended:
            process.note_end(thread.status)
            raise process.gone()
        if thread.kind is Kind.SYSCALL:
            return
