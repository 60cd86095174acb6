"""An x86-64 emulator over the memory of a simulated target: it runs one thread at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import unicorn
from unicorn import x86_const

from anyprobe.target.system.ptrace import Registers
from support.simulated.areas import Area, SimulatedMemory
from support.simulated.threads import NOT_IN_A_CALL, SimulatedThread

_SYSCALL = b"\x0f\x05"
_MOST = 10_000_000
"""Instructions of one run: what needs more has gone astray."""


class Astray(Exception):  # noqa: N818 - what became of a thread
    """A thread that executes what it must not, or does not come to an end."""


class Machine:
    """Runs code as a processor would, memory protection included."""

    _NAMES: ClassVar = {
        name: getattr(x86_const, f"UC_X86_REG_{name.upper()}")
        for name in ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi",
                     "rdi", "rip", "rsp", "fs_base", "gs_base")
    } | {"eflags": x86_const.UC_X86_REG_EFLAGS}  # fmt: skip

    def __init__(self, memory: SimulatedMemory) -> None:
        """See all that is mapped, now and later."""
        self._engine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        self._blank = self._engine.context_save()
        self._contexts: dict[int, unicorn.UcContext] = {}
        self._called = self._trapped = False
        self._memory = memory
        self._engine.hook_add(unicorn.UC_HOOK_INSN, self._system_call, None, 1, 0, x86_const.UC_X86_INS_SYSCALL)
        self._engine.hook_add(unicorn.UC_HOOK_INTR, self._interrupt)
        memory.watch(self)

    def added(self, area: Area) -> None:
        """Map an area."""
        m = area.mapping
        kinds = (unicorn.UC_PROT_READ, unicorn.UC_PROT_WRITE, unicorn.UC_PROT_EXEC)
        protection = sum(kind for kind, letter in zip(kinds, m.perms, strict=False) if letter != "-")
        self._engine.mem_map_ptr(m.start, m.end - m.start, protection, area.pointer)

    def removed(self, area: Area) -> None:
        """Unmap an area."""
        self._engine.mem_unmap(area.mapping.start, area.mapping.end - area.mapping.start)

    def run(self, thread: SimulatedThread, until: int, *, instructions: int = 0) -> None:
        """Run a thread until it comes to an address, or for some instructions, or until it makes a system call.

        Raises:
            Astray: It executes what is no code, or touches memory that it must not.

        """
        engine, registers = self._engine, thread.actual
        engine.context_restore(self._contexts.get(thread.tid, self._blank))
        for name, number in self._NAMES.items():
            engine.reg_write(number, getattr(registers, name))
        engine.ctl_flush_tb()  # code may have been written since, by whoever shares the memory
        self._called = self._trapped = False
        try:
            engine.emu_start(registers.rip, until, count=instructions or _MOST)
        except unicorn.UcError as error:
            at = engine.reg_read(x86_const.UC_X86_REG_RIP)
            raise Astray(f"thread {thread.tid} at {at:#x}: {error}") from error
        finally:
            self._contexts[thread.tid] = engine.context_save()
            self._keep(thread)
        if not instructions and not self._called and not self._trapped and thread.actual.rip != until:
            raise Astray(f"thread {thread.tid} at {thread.actual.rip:#x}: it has not come to {until:#x}")

    @contextmanager
    def tracing(self, low: int, high: int) -> Iterator[Counter[int]]:
        """Count how often each instruction of a range is executed in a scope, by its address."""
        seen: Counter[int] = Counter()

        def note(_engine: unicorn.Uc, address: int, _size: int, _: object) -> None:
            seen[address] += 1

        hook = self._engine.hook_add(unicorn.UC_HOOK_CODE, note, None, low, high - 1)
        try:
            yield seen
        finally:
            self._engine.hook_del(hook)

    def _keep(self, thread: SimulatedThread) -> None:
        registers = Registers()
        for name, number in self._NAMES.items():
            setattr(registers, name, self._engine.reg_read(number))
        registers.cs, registers.orig_rax = 0x33, NOT_IN_A_CALL
        if self._called:
            if self._memory.read(registers.rip, len(_SYSCALL)) == _SYSCALL:
                registers.rip += len(_SYSCALL)
            registers.orig_rax = registers.rax
        if self._trapped:
            thread.awaited.add(5)
        thread.actual = registers
        thread.load_registers()

    def _system_call(self, engine: unicorn.Uc, _: object) -> None:
        self._called = True
        engine.emu_stop()

    def _interrupt(self, engine: unicorn.Uc, number: int, _: object) -> None:
        if number != 3:
            raise Astray(f"interrupt {number}")
        self._trapped = True
        engine.emu_stop()
