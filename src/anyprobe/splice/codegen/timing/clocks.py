"""Generated code that reads the clock of timing probes: the time stamp counter, alone or corrected, or the vdso's.

It sees how fast a thread's probes are just now, too, so that their cost is known where they are slow: at one return of
64 the time is taken once more, when all is recorded. Where that takes longer than when the costs of probes were
measured, so do the other probes: another thread runs on the same core, the clock of the processor is lower, or the
program's own data and code have driven those of probes out of the caches.
"""

from typing import Protocol

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.data.snapshots.costs import SLOWED, SLOWED_INSIDE, UNIT, Costs
from anyprobe.isa.assemble import Assembler

_CHANCE = 126
"""Bits of a call's end that are 0 where there is a trial; the lowest bit of the clock may always be."""
_SMOOTHED = 4
"""The power of two of trials that the pace is a mean of, more or less."""
_SLOWEST = 3
"""Times what it took at first; what takes longer was interrupted, or is a page's first use."""
_ANY = 1 << 12
_SHIFT = 16
LOCK = 8
"""Where the page of a perf event has its lock (32 bits), which changes when its thread is given a processor."""


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


def leave_out(time_: str, block: str) -> str:
    """Return code that takes what the thread was not on processors out of a time."""
    return f"sub {time_}, [{block}+{at.BLOCK_OFF}]"


def emit_if_changed(asm: Assembler, block: str, free: str, otherwise: str) -> None:
    """Emit, after the counter was read: go to ``otherwise`` if the thread had no processor since it was looked last."""
    low = "e" + free[1:]
    asm.code(f"""
        mov {free}, [{block}+{at.BLOCK_PAGE}]; mov {low}, [{free}+{LOCK}]
        cmp {low}, [{block}+{at.BLOCK_LOCK}]; jne {otherwise}
    """)


def emit_called(asm: Assembler, facts: ClockFacts) -> None:
    """Emit the routines that are called for the time, or where a thread was not on a processor."""
    if facts.clock:
        from anyprobe.splice.codegen.timing.clock_call import emit_now

        emit_now(asm, facts.clock)
    if facts.layout.on_processors:
        from anyprobe.splice.codegen.timing.processor_clock import emit_routines

        emit_routines(asm, facts.data, facts.rate, facts.layout)


def emit_read_at_entry(asm: Assembler, facts: ClockFacts) -> None:
    """Emit: rax = the time (rcx = block); rdx changes."""
    if facts.clock:
        asm.code("call now")
        return
    if facts.layout.on_processors:  # the page may be another thread's, which has ended
        asm.code(f"mov eax, fs:[{at.TID_OFFSET}]; cmp [rcx+{at.BLOCK_PAGE_OF}], eax; jne enter_waited")
    asm.code("rdtsc; shl rdx, 32; or rax, rdx")
    if facts.layout.on_processors:
        emit_if_changed(asm, "rcx", "rdx", "enter_waited")
        asm.label("enter_on_processor")
        asm.code(leave_out("rax", "rcx"))


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
        emit_if_changed(asm, "rdi", "rax", name + "_waited")
        asm.label(name + "_on_processor")
        asm.code(leave_out("rdx", "rdi"))


def emit_waits(asm: Assembler, facts: ClockFacts, name: str) -> None:
    """Emit where a routine goes from there when the thread was not on a processor."""
    if facts.layout.on_processors:
        asm.code(f"{name}_waited:\n call waited; mov rdx, rax; jmp {name}_on_processor")


def emit_chance(asm: Assembler, name: str) -> None:
    """Emit: go to the trial now and then (rsi = block); the exit is over otherwise."""
    asm.code(f"test byte [rsi+{at.BLOCK_ENDED}], {_CHANCE}; jz {name}_trial")


def emit_trial(asm: Assembler, costs: Costs, name: str, *, on_processors: bool) -> None:
    """Emit the trial (rsi = block); rax and rdx are overwritten."""
    whole, inside = SLOWED * costs.whole, SLOWED_INSIDE * costs.inside
    asm.code(
        f"""
        {name}_trial:
            rdtsc; shl rdx, 32; or rax, rdx
            {leave_out("rax", "rsi") if on_processors else ""}
            sub rax, [rsi+{at.BLOCK_ENDED}]; cmp rax, slowest; ja {name}_done
            inc qword [rsi+{at.BLOCK_TRIALS}]; add [rsi+{at.BLOCK_TRIED}], rax
            shl rax, {at.COST_BITS}; sub rax, pace
            sub rax, [rsi+{at.BLOCK_PACE}]; sar rax, {_SMOOTHED}; add [rsi+{at.BLOCK_PACE}], rax
            mov rax, [rsi+{at.BLOCK_PACE}]
            imul rdx, rax, more_inside; sar rdx, {_SHIFT}; add rdx, entered; mov [rsi+{at.BLOCK_ENTERED}], rdx
            imul rdx, rax, more; sar rdx, {_SHIFT}; add rdx, left; mov [rsi+{at.BLOCK_LEFT}], rdx
            jmp {name}_done
        """,
        slowest=_SLOWEST * costs.pace // UNIT or _ANY,
        pace=costs.pace,
        entered=costs.entered,
        left=costs.left,
        more_inside=_per_pace(inside, costs.pace),
        more=_per_pace(whole - inside, costs.pace),
    )


def _per_pace(cost: float, pace: int) -> int:
    """Return what a part of a tick more of the trial means for a cost, shifted."""
    return round(cost * (1 << _SHIFT) / pace) if pace else 0
