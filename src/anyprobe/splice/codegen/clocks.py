"""Generated code that reads the clock of timing probes: the time stamp counter, alone or corrected, or the vdso's."""

from typing import Protocol

from anyprobe.data.layout import BankLayout
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen import processor_clock


class ClockFacts(Protocol):
    """What is known of a bank's clock: see ``RoutineFacts``."""

    @property
    def layout(self) -> BankLayout:
        """How the bank is made."""
        ...

    @property
    def data(self) -> int:
        """Where it lies."""
        ...

    @property
    def clock(self) -> int:
        """The vdso's function, if that is called."""
        ...

    @property
    def dark(self) -> int:
        """The word that says that the time stamp counter may not be read any more."""
        ...

    @property
    def rate(self) -> int:
        """The counter's rate, if times are those on processors."""
        ...


def emit_called(asm: Assembler, facts: ClockFacts) -> None:
    """Emit the routines that are called for the time, or where a thread was not on a processor."""
    if facts.clock:
        from anyprobe.splice.codegen.clock_call import emit_now

        emit_now(asm, facts.clock)
    if facts.layout.on_processors:
        processor_clock.emit_routines(asm, facts.data, facts.rate)


def emit_read_at_entry(asm: Assembler, facts: ClockFacts) -> None:
    """Emit: rax = the time (rcx = block); rdx changes."""
    if facts.clock:
        asm.code("call now")
        return
    if facts.layout.on_processors:
        processor_clock.emit_if_another(asm, "rcx", "enter_waited")
    asm.code("rdtsc; shl rdx, 32; or rax, rdx")
    if facts.layout.on_processors:
        processor_clock.emit_if_changed(asm, "rcx", "rdx", "enter_waited")
        asm.label("enter_on_processor")
        asm.code(processor_clock.leave_out("rax", "rcx"))


def emit_waits_at_entry(asm: Assembler, facts: ClockFacts) -> None:
    """Emit where an entry goes when the thread was not on a processor."""
    if facts.layout.on_processors:
        asm.code("enter_waited:\n push rdi; mov rdi, rcx; call waited; pop rdi; jmp enter_on_processor")


def emit_read(asm: Assembler, facts: ClockFacts, name: str) -> None:
    """Emit: rdx = the time (rdi = block); rax changes. Where it may not be read, the call is left as it is."""
    if facts.dark:
        asm.code(f"mov rax, dark; cmp dword [rax], 0; jne {name}_done", dark=facts.dark)
    if facts.clock:
        asm.code("call now; mov rdx, rax")
        return
    # unordered like the one at the entry: both mark when they are issued, so what is in flight cancels out
    asm.code("rdtsc; shl rdx, 32; or rdx, rax")
    if facts.layout.on_processors:
        processor_clock.emit_if_changed(asm, "rdi", "rax", name + "_waited")
        asm.label(name + "_on_processor")
        asm.code(processor_clock.leave_out("rdx", "rdi"))


def emit_waits(asm: Assembler, facts: ClockFacts, name: str) -> None:
    """Emit where a routine goes from there when the thread was not on a processor."""
    if facts.layout.on_processors:
        asm.code(f"{name}_waited:\n call waited; mov rdx, rax; jmp {name}_on_processor")
