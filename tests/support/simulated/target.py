"""A target without a process: plain memory, an emulator, and as much of a kernel as the splice engine asks for."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from anyprobe.core.address import PAGE
from anyprobe.core.errors import InternalError, TargetError, TargetExited
from anyprobe.splice.userspace.trap_handler import SignalAction
from anyprobe.target.base import ImmovableThread, RunningProcess, Timestamps
from anyprobe.target.remote.gadgets import Gadgets
from anyprobe.target.system.pagemap import OF_FILE, PRESENT
from anyprobe.target.system.procfs import Mapping, Scheduled
from anyprobe.target.system.ptrace import Registers
from support.simulated.areas import SimulatedMemory
from support.simulated.calls import SimulatedCalls, complete_call
from support.simulated.machine import Astray, Machine
from support.simulated.signals import RETURN_NUMBER, enter_handler, return_from_handler
from support.simulated.threads import NOT_IN_A_CALL, SimulatedThread

PID = 1 << 30
"""No process of this machine can have it."""
LIBRARY = 0x7FFF_0000_0000
"""Where the code lies that every program has: system calls, signal returns, and where calls come back to."""
_LIBRARY_CODE = bytes.fromhex("0f 05 c3  48 c7 c0 0f 00 00 00 0f 05  58 c3  f4")
_GADGETS = Gadgets(LIBRARY, LIBRARY + 3, LIBRARY + 12)
END = LIBRARY + 14
"""Where a called function comes back to."""
STACKS, STACK_BYTES = 0x7FFE_0000_0000, 1 << 17
_SELF, _ID = (0, 0x10), 0x2D0
"""Where glibc keeps a control block's own address, and the thread's id."""
_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_SCRATCH = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
_TRAP = 5


class SimulatedStop:
    """Every thread stands still, as they always do while Python code runs."""

    def __init__(self, target: "SimulatedTarget") -> None:
        """Take the memory map."""
        self.process = target
        self.threads = list(target.running.values())
        self.waiting: list[ImmovableThread] = list(target.waiting)
        self.mappings = target.mappings()
        self.pause_us = 1

    def verify(self) -> None:
        """Check that the target has not ended."""
        self.process.verify()

    @contextmanager
    def remote(self, pid: int | None = None) -> Iterator[SimulatedCalls]:
        """Make system calls in the first thread."""
        assert pid in {None, self.process.pid}
        yield SimulatedCalls(self.process, self.threads[0])


class _Relatives:
    @staticmethod
    def find() -> list[int]:
        return []


class _Pages:
    """The page map: all is in memory, and a file's where nobody has written."""

    def __init__(self, target: "SimulatedTarget") -> None:
        self._target = target

    def entries(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the entries of all pages at once."""
        yield start, np.array([self.entry(page) for page in range(start, end, PAGE)], dtype=np.uint64).tobytes()

    def entry(self, page: int) -> int:
        """Return the entry of one page."""
        area = self._target.mem.area_at(page)
        return PRESENT | (OF_FILE if area.mapping.inode and page not in area.written else 0)


class SimulatedTarget:
    """What `RunningProcess` asks for, with threads that run when a test has them run."""

    def __init__(self) -> None:
        """Map the library and one thread's stack; text comes with ``Program``."""
        self.pid, self.root, self.heap_start = PID, "", 0
        self.exe, self.called = "/simulated/program", "program"
        self.exit_status: int | None = None
        self.scheduled_at_end: dict[int, Scheduled] = {}
        self.ended_at = 0.0
        self.held: SimulatedThread | None = None
        self.borrowed_us = self.paused_us = 0
        self.parks = self.meets_traps = False
        self.relatives = _Relatives()
        self.mem = SimulatedMemory()
        self.files: dict[int, int] = {}
        """The descriptors of the target, and this process's for the same files."""
        self.names: dict[int, str] = {}
        self.actions: dict[int, bytes] = {}
        """What signals do, as ``rt_sigaction`` has it."""
        self.running: dict[int, SimulatedThread] = {}
        self.waiting: list[ImmovableThread] = []
        self.calls_made = self.stops = 0
        self.failing_call: int | None = None
        """The number of the system call that fails, counted like ``calls_made``."""
        self._lock = threading.Lock()
        self._stopped = False
        self.mem.add(LIBRARY, PAGE, "r-xp")
        self.mem.write(LIBRARY, _LIBRARY_CODE)
        self.machine = Machine(self.mem)
        self.main = self.new_thread()

    # -- threads and their runs

    def new_thread(self) -> SimulatedThread:
        """Return a new thread, with a stack and a control block as the C library makes them."""
        number = len(self.running)
        start = STACKS - 2 * number * STACK_BYTES
        self.mem.add(start - PAGE, PAGE, "---p")
        self.mem.add(start, STACK_BYTES, "rw-p", "" if number else "[stack]")
        block = start + STACK_BYTES - PAGE
        for at in _SELF:
            self.mem.write(block + at, block.to_bytes(8, "little"))
        self.mem.write(block + _ID, (PID + number).to_bytes(4, "little"))
        registers = Registers(
            rip=END, rsp=block - 64, rbp=0, fs_base=block, cs=0x33, eflags=0x202, orig_rax=NOT_IN_A_CALL
        )
        thread = SimulatedThread(PID + number, PID + number, registers)
        thread.pid = PID
        self.running[thread.tid] = thread
        return thread

    def begin(self, address: int, *arguments: int, thread: SimulatedThread | None = None) -> SimulatedThread:
        """Have a thread stand at the first instruction of a function, called with arguments."""
        thread = thread or self.main
        registers = thread.actual
        for name in _SCRATCH:
            setattr(registers, name, 0)
        registers.rsp = (registers.fs_base - 64 & -16) - 8
        self.mem.write(registers.rsp, END.to_bytes(8, "little"))
        registers.rip = address
        for name, value in zip(_ARGUMENTS, arguments, strict=False):
            setattr(registers, name, value)
        thread.load_registers()
        return thread

    def step(self, thread: SimulatedThread, instructions: int = 1) -> None:
        """Run some instructions of a thread, or none, but none behind the end of its function."""
        if instructions and thread.actual.rip != END:
            self.machine.run(thread, END, instructions=instructions)

    def run_to(self, thread: SimulatedThread, address: int) -> None:
        """Run a thread until it stands at an address."""
        self.machine.run(thread, address)

    def finish(self, thread: SimulatedThread) -> int:
        """Run a thread until its function has come back; return what that returned. Traps go to their handler."""
        while True:
            self.machine.run(thread, END)
            if _TRAP in thread.awaited:
                enter_handler(self, thread, _TRAP)
            elif thread.actual.orig_rax == RETURN_NUMBER:
                return_from_handler(self, thread)
            elif thread.actual.orig_rax != NOT_IN_A_CALL:
                complete_call(self, thread)
            else:
                return thread.actual.rax

    def call(self, address: int, *arguments: int, thread: SimulatedThread | None = None) -> int:
        """Call a function and return what it returns; registers that it has to keep must be as they were."""
        thread = self.begin(address, *arguments, thread=thread)
        before = thread.actual.copy()
        result = self.finish(thread)
        kept = ("rbx", "rbp", "r12", "r13", "r14", "r15")
        if any(getattr(thread.actual, name) != getattr(before, name) for name in kept):
            raise Astray("a register was not kept")
        if thread.actual.rsp != before.rsp + 8:
            raise Astray("the stack pointer is not where it was")
        return result

    # -- what every target has

    def mappings(self) -> list[Mapping]:
        """Return the memory map."""
        return self.mem.mappings()

    @contextmanager
    def stop(self, timeout: float = 2.0) -> Iterator[SimulatedStop]:
        """Note that everything stands still, which must not be so already."""
        assert timeout > 0
        if self._stopped:
            raise InternalError("stops of one target cannot be nested")
        self._stopped = True
        self.stops += 1
        try:
            yield SimulatedStop(self)
        finally:
            self._stopped = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other controllers out, of which there are none; twice at a time is an error."""
        assert self._lock.acquire(blocking=False), "the lock is held already"
        try:
            yield
        finally:
            self._lock.release()

    def verify(self) -> None:
        """Raise if it has ended."""
        if self.exited():
            raise self.gone()

    def watch_end(self) -> None:
        """Do nothing: it does not end by itself."""

    def exited(self) -> bool:
        """Return whether a test has ended it."""
        return self.exit_status is not None

    def ended(self) -> bool:
        """Return whether a test has ended it."""
        return self.exited()

    def gone(self) -> TargetError:
        """Return the error of a target that has ended."""
        return TargetExited(self.pid, self.exit_status)

    # -- what processes have

    def gadgets(self) -> Gadgets:
        """Return the instructions of the library that injected calls would borrow."""
        return _GADGETS

    def handled_signals(self) -> int:
        """Return which signals have handlers, as a mask."""
        handled = (signal for signal, raw in self.actions.items() if SignalAction.unpack(raw).is_handler)
        return sum(1 << signal - 1 for signal in handled)

    def thread_blocking(self, signal: int, *, pending: bool = False) -> int:
        """Return a thread that blocks a signal, or has it pending."""
        threads = self.running.values()
        return next((t.tid for t in threads if t.blocks(signal) or (pending and t.awaits(signal))), 0)

    def tracer(self) -> int:
        """Return that nobody traces it."""
        return 0

    def descriptors(self, pid: int) -> Iterator[tuple[int, str, int]]:
        """Yield the open descriptors."""
        assert pid == self.pid
        for number, fd in self.files.items():
            inode = os.fstat(fd).st_ino
            yield number, self.names[inode], inode

    @contextmanager
    def page_map(self) -> Iterator[_Pages]:
        """Give the page map."""
        yield _Pages(self)

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Turn an ``OSError`` of a scope into a ``TargetError``."""
        try:
            yield
        except OSError as error:
            raise TargetError(f"{doing} the simulated target failed: {error}") from error

    def all_threads(self) -> list[int]:
        """Return the ids of all threads."""
        return list(self.running)

    def thread_pointers(self) -> list[int] | None:
        """Return the thread pointers."""
        return [thread.actual.fs_base for thread in self.running.values()]

    @contextmanager
    def borrow(self, timeout: float = 2.0) -> Iterator[SimulatedCalls]:
        """Make system calls in the first thread."""
        assert timeout > 0
        yield SimulatedCalls(self, self.main)

    @contextmanager
    def visit(self, tid: int) -> Iterator[SimulatedThread | None]:
        """Look at a thread."""
        yield self.running.get(tid)

    @contextmanager
    def helper_thread(self, top: int, timeout: float = 2.0) -> Iterator[SimulatedCalls]:
        """Make system calls in a thread made for them; its stack must be the target's memory."""
        assert "w" in self.mem.area_at(top - 8).mapping.perms
        with self.borrow(timeout) as calls:
            yield calls

    @contextmanager
    def waiting_helper_thread(self, timeout: float = 2.0) -> Iterator[SimulatedCalls]:
        """Make system calls in a thread made for them."""
        with self.borrow(timeout) as calls:
            yield calls

    def timestamps(self) -> Timestamps:
        """Return that every thread may read the time stamp counter."""
        return Timestamps()

    # -- what processes have in which probes are had by names

    def became(self) -> str | None:
        """Return that it has not executed another program."""
        return None

    def undisturbed(self) -> AbstractContextManager[None]:
        """Return a scope in which nothing is stopped, as nothing else stops anything."""
        return nullcontext()

    def is_filtered(self, calls: frozenset[int] | None = None) -> bool:
        """Return that no system call is filtered."""
        return False

    def inner_pid(self) -> int:
        """Return the id that ``getpid`` returns in it."""
        return self.pid

    def stack_limit(self) -> int:
        """Return the size of a stack."""
        return STACK_BYTES

    def has_shadow_stacks(self) -> bool:
        """Return that there are none."""
        return False

    def wait(self, timeout: float | None = None) -> int | None:
        """Return at once: nothing runs while Python code does."""
        return self.exit_status

    def run_to_libraries(self, mapped: Callable[[], bool]) -> bool:
        """Return at once: it is not held at its start."""
        assert mapped()
        return False

    def run_to_relocated(self) -> bool:
        """Return at once: it is not held at its start."""
        return True

    def resume(self) -> None:
        """Do nothing: it is not held at its start."""

    def close(self) -> None:
        """Leave its memory to the test."""


def as_process(target: SimulatedTarget) -> RunningProcess:
    """Return a simulated target as what the engine works on: that it is one is checked by mypy, here."""
    return target
