"""A held program's start-up: run it to where its libraries are mapped and nothing in them has run."""

import time
from collections.abc import Callable

from anyprobe.core.errors import StopTimeout, TargetError
from anyprobe.target.process.process import Process
from anyprobe.target.system import ptrace
from anyprobe.target.system.wait_status import Kind

_TIMEOUT = 30.0
_ARCH_PRCTL, _ARCH_SET_FS = 158, 0x1002
_MPROTECT, _PROT_READ = 10, 1


def run_to_libraries(process: Process, mapped: Callable[[], bool]) -> bool:
    """Let a program held at its first instruction run until its first thread pointer has just been set; hold it there.

    glibc's loader sets the thread pointer once, after it has mapped all libraries and before it relocates the first one
    (``init_tls`` in ``elf/rtld.c``): the IFUNC resolvers and constructors of the libraries are still to come.

    Where the loader has auditors, it does so before it loads these, and the libraries are mapped after that: ``mapped``
    says whether they are. Then what is loaded is held when the first library has been relocated, and is to be made
    read-only: IFUNC resolvers have run by then, in the auditors all kinds of code. Returns whether it was so.
    """
    thread = process.held
    if thread is None:
        raise TargetError(f"process {process.pid} is not held")
    deadline = time.monotonic() + _TIMEOUT
    entering, audited = True, False
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
            if not entering:
                continue
            call, first = registers.orig_rax, registers.rdi
            if not audited and call == _ARCH_PRCTL and first == _ARCH_SET_FS:
                if mapped():
                    return False
                audited = True
            elif audited and call == _MPROTECT and registers.rdx == _PROT_READ and mapped():
                return True
