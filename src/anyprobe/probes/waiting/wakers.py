# mypy: disable-error-code="valid-type, no-untyped-def"
# ruff: noqa: ANN001 - fields of a tracepoint have their types there; with annotations they are meant by position
"""Handlers in the kernel for who wakes threads: at each switch of a processor to another task, and at each waking."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anyprobe.data.aggregates.aggregations import Hist
from anyprobe.data.findings.wakers import BY, INTERRUPTED, READY, WOKEN
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.types.annotations import stack, u64

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session

PAIRS, TASKS, PROCESSORS = 16_384, 16_384, 8192
"""Pairs of a waker and where the sleeper was, and threads that are off processors at a time."""
_INTERRUPTS = ("local_timer", "call_function_single", "call_function", "irq_handler", "softirq")
"""Tracepoints at whose ``_entry`` and ``_exit`` a processor does something else than what its task asked for."""
FRAMES = 16
_SLEEPS = 0x47
"""States of tasks in which they sleep: interruptible, not interruptible, stopped, parked. One that is traced is stopped
by its debugger, such as anyprobe, and one that is dead does not wake."""
Hit = Any
"""What a handler is called with is typed by their compiler, and so is what they store."""
Stored = Any


def place_wakers(session: "KernelSession", processes: "Sequence[Session]") -> None:
    """Place them for threads of some processes, and of what these start.

    Args:
        session: in which hits of all tasks count, since others wake these.
        processes: sessions on them, which have names for their addresses.
    """
    chosen = tuple(each.pid for each in processes)
    for each in processes:
        session.collection.naming.know(each.pid, each.symbols)
    started: Stored = Map("started", by=("pid",), capacity=TASKS, shown=False)
    asleep: Stored = Map("asleep since", by=("tid",), capacity=TASKS, shown=False)
    in_kernel: Stored = Map("asleep in the kernel", by=("tid",), capacity=TASKS, value=stack, shown=False)
    in_program: Stored = Map("asleep in the program", by=("tid",), capacity=TASKS, value=stack, shown=False)
    ready: Stored = Map("ready since", by=("tid",), capacity=TASKS, shown=False)
    woken: Stored = Hist(WOKEN, by=BY, capacity=PAIRS)
    by_interrupt: Stored = Hist(INTERRUPTED, by=BY[-3:], capacity=PAIRS)
    waited: Stored = Hist(READY)

    interrupted: Stored = Map("interrupted", by=("cpu",), capacity=PROCESSORS, shown=False)

    @session.entry("tracepoint:sched:sched_switch")
    def switch(ctx: Hit, prev_state, next_pid) -> None:
        now, coming = ctx.now, u64(next_pid)
        if interrupted.get(u64(ctx.cpu), 0) != 0:  # a beginning or an end was missed
            interrupted[u64(ctx.cpu)] = 0
        since = ready.get(coming, 0)
        if since != 0:
            waited.add(now - since)
            ready[coming] = 0
        if asleep.get(coming, 0) != 0:  # it was sent away while it prepared to sleep, and has not slept
            asleep[coming] = 0
        if ctx.pid in chosen or started.get(u64(ctx.pid), 0) != 0:
            tid = u64(ctx.tid)
            if prev_state & _SLEEPS:
                in_kernel[tid] = ctx.kstack(FRAMES)
                in_program[tid] = ctx.ustack(FRAMES)
                asleep[tid] = now
            elif prev_state & 0xFF == 0:
                ready[tid] = now

    @session.entry("tracepoint:sched:sched_waking")
    def waking(ctx: Hit, pid) -> None:
        tid = u64(pid)
        since = asleep.get(tid, 0)
        if since != 0:
            now = ctx.now
            asleep[tid] = 0
            ready[tid] = now
            if interrupted.get(u64(ctx.cpu), 0) > 0:
                by_interrupt[ctx.kstack(FRAMES), in_kernel[tid], in_program[tid]].add(now - since)
            else:
                woken[ctx.tid, ctx.comm, ctx.ustack(FRAMES), ctx.kstack(FRAMES), in_kernel[tid], in_program[tid]].add(
                    now - since
                )

    # a new thread's number is noted like a process's: no process can have it meanwhile
    @session.entry("tracepoint:sched:sched_process_fork")
    def forks(ctx: Hit, child_pid) -> None:
        if ctx.pid in chosen or started.get(u64(ctx.pid), 0) != 0:
            started[u64(child_pid)] = 1

    @session.entry("tracepoint:sched:sched_process_exit")
    def exits(ctx: Hit, pid) -> None:  # noqa: ARG001 - each handler has it
        started.delete((u64(pid),))
        asleep.delete((u64(pid),))
        ready.delete((u64(pid),))

    # ends first: of an interrupt that is under way the end alone is seen then, and not the beginning
    @session.entry(*(f"rawtracepoint:{each}_exit" for each in _INTERRUPTS))
    def ends(ctx: Hit) -> None:
        depth = interrupted.get(u64(ctx.cpu), 0)
        if depth > 0:
            interrupted[u64(ctx.cpu)] = depth - 1

    @session.entry(*(f"rawtracepoint:{each}_entry" for each in _INTERRUPTS))
    def begins(ctx: Hit) -> None:
        interrupted[u64(ctx.cpu)] = interrupted.get(u64(ctx.cpu), 0) + 1
