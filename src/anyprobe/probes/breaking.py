"""Breakpoints: hits that wait until something has been done about them, the program stopped where it was hit if wanted.

A thread that meets one waits as for any callback. To show it as it was, its probes are taken out, and with everything
stopped it gets the registers of the hit: its pc is the instruction, and what a debugger sees is the program's own. That
is one change of registers, before which it waits and after which it runs on: it is never anywhere in between, whenever
anyprobe ends.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts.layout import BLOCK_GUARD, BLOCK_REFUSED
from anyprobe.target.process import job_stops, permission

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.callbacks import Hit
    from anyprobe.probes.providers.function.handlers.hit_stacks import Stack
    from anyprobe.probes.providers.function.handlers.points import Handler
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec
    from anyprobe.target.system.ptrace import Registers

_LONGEST = 3600.0
"""Seconds that a thread waits at most for what is done about its hit."""
_LOOK = 0.05
_KEPT_FLAGS = 160
"""Where, below the stack pointer of the site, a routine keeps what ``lahf`` and ``seto al`` say."""
_LAHF, _OVERFLOW = 0xD5, 1 << 11
_NO_CALL = (1 << 64) - 1
_TRIES, _PAUSE = 50, 0.02
"""How often a thread is looked for where it waits: it may be in a signal handler, which comes back there."""


class ThreadStack(NamedTuple):
    """A thread, and what it has on its stack."""

    tid: int
    stack: "Stack"


@dataclass
class Held:
    """A hit whose thread waits."""

    hit: "Hit"
    go_on: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def let_go(self) -> None:
        """Have the thread go on from where it waits."""
        self.go_on.set()
        self.answered.wait(_LONGEST)


class Breakpoints:
    """The breakpoints of one session."""

    def __init__(self, session: "Session") -> None:
        """Have none yet."""
        self._session = session
        self._host: ProbeHost = session.host
        self._held: queue.SimpleQueue[Held] = queue.SimpleQueue()
        self._probes: list[Probe] = []
        self._standing: dict[int, tuple[int, int]] = {}
        """Threads that stand at a breakpoint, by id: their next arrival there, with the same stack, is no new one."""
        self._closed = False

    def place(self, spec: "Spec", condition: "Handler | None") -> None:
        """Have the hits of a spec wait, those for which a condition holds."""
        self._probes += self._session.callbacks.place([spec], self._wait, timeout=_LONGEST, when=condition)

    def _wait(self, hit: "Hit") -> None:
        if self._closed or self._standing.pop(hit.tid, None) == (hit.ip, hit.regs.rsp):
            return
        held = Held(hit)
        self._held.put(held)
        while not held.go_on.wait(_LOOK) and not self._session.callbacks.ending:
            pass  # until something has been done about it, or the session ends
        try:
            hit.let_go()
        finally:  # for this the controller waits
            held.answered.set()

    def take(self) -> Held | None:
        """Return the next hit whose thread waits, if there is one."""
        try:
            return self._held.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Have no hit wait any more."""
        self._closed = True
        while (held := self.take()) is not None:
            held.let_go()

    def wait_stopped(self, asked: "Callable[[], bool]") -> None:
        """Wait until the program, stopped in ``program_stopped``, has been let go on, or until that is asked for."""
        job_stops.wait_until_it_goes_on(self._session.pid, asked)

    def stacks(self, held: Held) -> list[ThreadStack]:
        """Return the stacks of all threads, that of the hit first; they are stopped while they are read."""
        from anyprobe.probes.providers.function.handlers.hit_stacks import HitStacks

        walker = HitStacks(self._host.symbols, self._host.process.mem.read)
        found = [ThreadStack(held.hit.tid, held.hit.stack)]
        with self._host.process.stop() as stop:
            for thread in stop.threads:
                registers = cast("Registers", thread.registers)
                if registers.r12 != held.hit.waits_at and thread.pid == self._session.pid:
                    found += [ThreadStack(thread.tid, walker.stack(*self._program_state(registers)))]
        return found

    def _program_state(self, registers: "Registers") -> tuple[int, int, int]:
        """Return pc, stack pointer and frame pointer of a thread, those of its hit where it waits for a callback."""
        return self._session.callbacks.frame_at(registers) or (registers.rip, registers.rsp, registers.rbp)

    @contextmanager
    def program_stopped(self, held: Held) -> Iterator[None]:
        """Have the program stopped by SIGSTOP within a ``with`` block, the thread where it was hit, without probes.

        Afterwards the probes are back, and the program goes on.
        """
        pid = self._session.pid
        self._session.remove(*self._probes)
        with job_stops.continued_afterwards(pid):
            self._put_back(held)
            job_stops.wait_until_stopped(pid)
            yield
            if not self._closed and not permission.tracer_of(pid):
                if job_stops.pc_of(pid, held.hit.tid) == held.hit.ip:  # a debugger may have had it go on
                    self._standing[held.hit.tid] = held.hit.ip, held.hit.regs.rsp
                self._session.enable(*self._probes)

    def _put_back(self, held: Held) -> None:
        """Stop the program, its thread where it has been hit."""
        for _ in range(_TRIES):
            with self._host.process.stop() as stop:
                for thread in stop.threads:
                    registers = cast("Registers", thread.registers)
                    if registers.r12 == held.hit.waits_at and self._session.callbacks.frame_at(registers) is not None:
                        held.let_go()  # it finds the answer, should this process end before its registers are written
                        self._forget_handler(registers.fs_base)
                        self._set_registers(held.hit, registers)
                        thread.store_registers()
                        job_stops.stop_by_signal(self._session.pid)
                        return
            time.sleep(_PAUSE)
        held.let_go()
        raise TargetError(f"thread {held.hit.tid} is in a signal handler, which has interrupted it where it was hit")

    def _set_registers(self, hit: "Hit", registers: "Registers") -> None:
        kept = int.from_bytes(self._host.process.mem.read(hit.regs.rsp - _KEPT_FLAGS, 2), "little")
        hit.regs.write_to(registers)
        registers.rip, registers.orig_rax = hit.ip, _NO_CALL
        flags = registers.eflags & ~(_LAHF | _OVERFLOW)
        registers.eflags = flags | kept >> 8 & _LAHF | _OVERFLOW * (kept & 1)

    def _forget_handler(self, thread_pointer: int) -> None:
        """Have the next hit of a thread not be taken for one inside of the handler that it has not left."""
        for bank in self._host.splicing.holdings.banks:
            with suppress(MemoryFault):
                word = self._host.process.mem.read(thread_pointer + bank.slot, 8)
                at = int.from_bytes(word, "little") - bank.piece.address
                if 0 <= at < bank.piece.size:
                    block = bank.arena.view(bank.piece.offset + at, BLOCK_REFUSED + 4)
                    block[BLOCK_GUARD : BLOCK_GUARD + 8] = bytes(8)
                    block[BLOCK_REFUSED : BLOCK_REFUSED + 4] = bytes(4)
