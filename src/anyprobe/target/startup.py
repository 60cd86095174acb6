"""A held program's start-up: run it to where its libraries are mapped and nothing in them has run."""

import time

from anyprobe.core.errors import StopTimeout, TargetError
from anyprobe.target import ptrace
from anyprobe.target.process import Process
from anyprobe.target.waitstatus import Kind

_TIMEOUT = 30.0
_ARCH_PRCTL, _ARCH_SET_FS = 158, 0x1002


def run_to_libraries(process: Process) -> None:
    """Let a program held at its first instruction run until its first thread pointer has just been set; hold it there.

    glibc's loader sets the thread pointer once, after it has mapped all libraries and before it relocates the first one
    (``init_tls`` in ``elf/rtld.c``): the IFUNC resolvers and constructors of the libraries are still to come.
    """
    thread = process.held
    if thread is None:
        raise TargetError(f"process {process.pid} is not held")
    deadline = time.monotonic() + _TIMEOUT
    entering = True
    with process.translated("starting"):
        thread.store_registers()
        while True:
            thread.resume_with(ptrace.resume_to_syscall)
            if not thread.wait(deadline):
                raise StopTimeout(f"process {process.pid} did not map its libraries in time")
            if thread.ended:
                process.note_end(thread.status)
                raise process.gone()
            if thread.kind is not Kind.SYSCALL:
                continue
            entering = not entering
            thread.load_registers()
            registers = thread.registers
            if entering and registers.orig_rax == _ARCH_PRCTL and registers.rdi == _ARCH_SET_FS:
                return
