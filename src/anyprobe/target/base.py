"""What the splice engine asks of a target, as protocols; implementations are checked against them, not derived.

`Target` and `Quiescence` are general: text and data memory, standing still as a whole, and where each thread is. A
kernel, with code in it that does what ptrace does for processes, can be one. `ProcessTarget`, `ProcessQuiescence` and
`SystemCalls` add what only processes have: signals, descriptors, threads in which system calls are made.
`process.process.Process` is the one that users have, `tests/support/simulated` one without any process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import Memory

if TYPE_CHECKING:
    from anyprobe.target.remote.batch import BatchedCall
    from anyprobe.target.remote.gadgets import Gadgets
    from anyprobe.target.system.procfs import Mapping, Scheduled


class Timestamps(NamedTuple):
    """Whether all threads of a target may read the time stamp counter."""

    why_not: str = ""
    """Why it must not be read, empty if it may."""
    forbidden: bool = False
    """Whether that is because a thread has forbidden it; else one could not be asked."""
    pause_us: int = 0
    """The longest pause of a thread that was asked."""


class DataMemory(Memory, Protocol):
    """Memory that can be written."""

    def write(self, address: int, content: bytes) -> None:
        """Write all of ``content`` to data, also where the target may not; raise where that is impossible."""
        ...


class TextMemory(Memory, Protocol):
    """An address space whose text can be written."""

    def write_text(self, address: int, content: bytes) -> None:
        """Write all of ``content``, where the program may not write; called in ``splice/apply/text.py`` only."""
        ...


class SplicedMemory(DataMemory, TextMemory, Protocol):
    """All memory of a target: data and text."""


class SharedMemory(Protocol):
    """Memory that the controller sees as a whole, and a target in the pieces that are mapped there."""

    @property
    def inode(self) -> int:
        """The number by which its mappings in any process are recognised; 0 where there are none to be seen."""
        ...

    @property
    def descriptor(self) -> int:
        """The file that it is, which another process may be given; -1 where there is none."""
        ...

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of it."""
        ...

    def store(self, offset: int, content: bytes) -> None:
        """Write bytes of it, where the target may be running them."""
        ...

    def extents(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield which of some pages may have been written, as ranges relative to ``offset``."""
        ...

    def allocate(self, offset: int, size: int) -> None:
        """Give bytes of it their memory now, if there is enough."""
        ...

    def give_back(self, offset: int, size: int) -> bool:
        """Give the memory of whole pages back, which are zeros from then on; return whether that could be."""
        ...

    def close(self) -> None:
        """Drop the controller's side."""
        ...


# -- what stands still


class Registers(Protocol):
    """The registers of a thread that stands still, as far as the engine looks at them."""

    rip: int
    rsp: int
    r14: int
    fs_base: int
    orig_rax: int
    """The system call that it is in; no such number outside of any."""


class StoppedThread(Protocol):
    """A thread that stands still."""

    @property
    def pid(self) -> int:
        """The process that it belongs to."""
        ...

    @property
    def tid(self) -> int:
        """Its own number."""
        ...

    @property
    def registers(self) -> Registers:
        """Its registers; those that were changed count from ``store_registers`` on."""
        ...

    def store_registers(self) -> None:
        """Write the registers back if they were changed."""
        ...

    def awaits(self, *signals: int) -> bool:
        """Return whether it is about to be given one of these signals, for what it has just met at its pc."""
        ...

    def awaits_trap(self) -> bool:
        """Return whether it has met an ``int3`` and the signal for it is still to come."""
        ...

    def blocks(self, signal: int) -> bool:
        """Return whether it blocks a signal now, or will when its system call returns."""
        ...


class ImmovableThread(Protocol):
    """A thread that sleeps where it cannot be stopped, and goes on at its pc."""

    @property
    def pid(self) -> int:
        """The process that it belongs to."""
        ...

    @property
    def tid(self) -> int:
        """Its own number."""
        ...

    @property
    def pc(self) -> int:
        """Where it goes on."""
        ...

    @property
    def stack(self) -> int:
        """Its stack pointer."""
        ...


class Quiescence(Protocol):
    """All threads of a target stand still while this exists."""

    @property
    def threads(self) -> Sequence[StoppedThread]:
        """The threads, except those that are ``waiting``."""
        ...

    @property
    def waiting(self) -> Sequence[ImmovableThread]:
        """The threads that sleep where they cannot be stopped."""
        ...

    @property
    def mappings(self) -> "Sequence[Mapping]":
        """The memory map as it was when everything had come to a stop."""
        ...

    @property
    def pause_us(self) -> int:
        """How long the target stood still, in microseconds; valid after the scope."""
        ...

    def verify(self) -> None:
        """Check that this still is the target that was opened; raise ``TargetError``."""
        ...


class Target(Protocol):
    """Something whose code can be spliced."""

    @property
    def mem(self) -> SplicedMemory:
        """Its memory."""
        ...

    meets_traps: bool
    """Whether traps of anyprobe are in its text, or have been."""

    @property
    def heap_start(self) -> int:
        """Where memory grows upwards from, which has to stay free; 0 where nothing does."""
        ...

    def mappings(self) -> "list[Mapping]":
        """Return the memory map as it is now."""
        ...

    def stop(self, timeout: float = ...) -> AbstractContextManager[Quiescence]:
        """Stop everything for a scope; raise ``StopTimeout`` where that takes too long, with nothing changed."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other controllers from changing what is installed in it, for a scope."""
        ...

    def verify(self) -> None:
        """Raise unless this is the target that was opened."""
        ...

    def exited(self) -> bool:
        """Return whether it has ended."""
        ...

    def ended(self) -> bool:
        """Return whether it has ended, announced or not."""
        ...

    def gone(self) -> TargetError:
        """Return the error for a target that has vanished."""
        ...


# -- what only processes have


class SystemCalls(Protocol):
    """System calls that one thread of a process makes for anyprobe."""

    @property
    def thread(self) -> StoppedThread:
        """The thread that makes the calls."""
        ...

    def syscall(self, number: int, *arguments: int) -> int:
        """Make a system call; return its result, or raise ``RemoteCallFailed``."""
        ...

    def run(self, calls: "Sequence[BatchedCall]", address: int) -> None:
        """Make many system calls with one run of ``batch_code(calls)``, which is at ``address``."""
        ...

    def place(self, content: bytes) -> int:
        """Put bytes that a call's argument points to into the process; return their address, good for this scope."""
        ...

    def settle(self) -> None:
        """Bring a call that an error interrupted to its end, so that its effects can be looked for and undone."""
        ...

    def open_descriptor(self, fd: int) -> int:
        """Return a descriptor of the controller's for the file that one of the thread's refers to."""
        ...


class PageMap(Protocol):
    """Which pages of a process are in memory, and whose they are: see ``system.pagemap``."""

    def entries(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the address of a page and the entries from it on; raise ``OSError``."""
        ...

    def entry(self, page: int) -> int:
        """Return the entry of one page; raise ``OSError``."""
        ...


class Relatives(Protocol):
    """Finds other processes in the same address space."""

    def find(self) -> list[int]:
        """Return the other processes that share the memory now."""
        ...


class ProcessFacts(Protocol):
    """What can be learned of a process, stopped or not, and what is remembered of it."""

    parks: bool
    """Whether its signal handlers may leave contexts for others: see ``splice.apply.suspended_contexts``."""
    meets_traps: bool
    """Whether traps of anyprobe are in its text, or have been."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    @property
    def mem(self) -> SplicedMemory:
        """Its memory."""
        ...

    @property
    def root(self) -> str:
        """What to put before a path of its so that it is found from the controller's mount namespace."""
        ...

    @property
    def exit_status(self) -> int | None:
        """The wait status of its end, where it is known."""
        ...

    @property
    def relatives(self) -> Relatives:
        """Finds the processes that share its memory."""
        ...

    def mappings(self) -> "list[Mapping]":
        """Return the memory map as it is now."""
        ...

    def exited(self) -> bool:
        """Return whether it has ended."""
        ...

    def gadgets(self) -> "Gadgets":
        """Return the instructions of the process that injected calls borrow."""
        ...

    def handled_signals(self) -> int:
        """Return which signals the process handles, as a mask; raise ``OSError``."""
        ...

    def thread_blocking(self, signal: int, *, pending: bool = False) -> int:
        """Return a thread that blocks a signal at this moment, or has it ``pending``, 0 if there is none."""
        ...

    def tracer(self) -> int:
        """Return the process that traces it, 0 if there is none."""
        ...

    def descriptors(self, pid: int) -> Iterator[tuple[int, str, int]]:
        """Yield the descriptors of a process in its memory: number, path, inode. Raise ``OSError``."""
        ...

    def page_map(self) -> AbstractContextManager[PageMap]:
        """Open the page map for a scope; raise ``OSError``."""
        ...

    def gone(self) -> TargetError:
        """Return the error for a process that has vanished."""
        ...

    def translated(self, doing: str) -> AbstractContextManager[None]:
        """Turn an ``OSError`` of a scope into a ``TargetError``."""
        ...


class ProcessQuiescence(Quiescence, Protocol):
    """Everything that shares a process's memory stands still while this exists."""

    @property
    def process(self) -> ProcessFacts:
        """The process."""
        ...

    def remote(self, pid: int | None = None) -> AbstractContextManager[SystemCalls]:
        """Make system calls in a thread, of one process if given; ``StopTimeout`` if none is suitable now."""
        ...


class ProcessTarget(Target, ProcessFacts, Protocol):
    """A process whose code can be spliced."""

    @property
    def held(self) -> StoppedThread | None:
        """The thread of a launched program that has not been let go yet."""
        ...

    @property
    def borrowed_us(self) -> int:
        """How long the thread that was borrowed last stood still."""
        ...

    @property
    def paused_us(self) -> int:
        """How long all did because of it, 0 where the others ran on."""
        ...

    def all_threads(self) -> list[int]:
        """Return the ids of all tasks, none left out."""
        ...

    def thread_pointers(self) -> list[int] | None:
        """Return the thread pointers of all threads; ``None`` where that cannot be told for certain."""
        ...

    def stop(self, timeout: float = ...) -> AbstractContextManager[ProcessQuiescence]:
        """Stop everything that runs in this address space for a scope."""
        ...

    def borrow(self, timeout: float = ...) -> AbstractContextManager[SystemCalls]:
        """Stop one suitable thread for a scope and make system calls in it; the others run on."""
        ...

    def visit(self, tid: int) -> AbstractContextManager[StoppedThread | None]:
        """Stop one thread for a scope, to look at it; the others run on."""
        ...

    def helper_thread(self, top: int, timeout: float = ...) -> AbstractContextManager[SystemCalls]:
        """Make system calls in a thread made for them, with a stack below ``top`` and descriptors of its own."""
        ...

    def waiting_helper_thread(self, timeout: float = ...) -> AbstractContextManager[SystemCalls]:
        """Make system calls in a thread made for them, on the stack of a thread that waits meanwhile."""
        ...

    def has_shadow_stacks(self) -> bool:
        """Return whether its first thread runs on a shadow stack; raise ``OSError``."""
        ...

    def is_filtered(self, calls: frozenset[int] | None = None) -> bool:
        """Return whether a thread has filters that are not known to permit some system calls, all of generated code."""
        ...

    def inner_pid(self) -> int:
        """Return its id in its own namespace of ids, 0 where that is not told; raise ``OSError``."""
        ...

    def stack_limit(self) -> int:
        """Return how far its main stack may grow, in bytes; raise ``OSError``."""
        ...

    def timestamps(self) -> Timestamps:
        """Return whether all threads may read the time stamp counter.

        Threads are visited one by one, those that are on stacks of their own.
        """
        ...


class RunningProcess(ProcessTarget, Protocol):
    """A process in which probes can be had by names: it runs a program, and ends at some time."""

    @property
    def exe(self) -> str:
        """The path of its executable."""
        ...

    @property
    def called(self) -> str:
        """The name by which the program was started, where that leads to its file, else the file's."""
        ...

    @property
    def ended_at(self) -> float:
        """When it was first seen to have ended, by ``time.monotonic``; 0 before that."""
        ...

    def watch_end(self) -> None:
        """Have the time of its end noted when it ends, not when it is next asked for."""
        ...

    @property
    def scheduled_at_end(self) -> "dict[int, Scheduled]":
        """What threads that were there at its end had had of processors; nothing before that."""
        ...

    def became(self) -> str | None:
        """Return the program that it runs since an exec, None while it runs the one that was opened."""
        ...

    def undisturbed(self) -> AbstractContextManager[None]:
        """Have no thread of this process stop anything in it for a scope."""
        ...

    def wait(self, timeout: float | None = ...) -> int | None:
        """Wait for the end; return the wait status where it is a child and has ended."""
        ...

    def run_to_libraries(self, mapped: Callable[[], bool]) -> bool:
        """Let it run from its first instruction to where its libraries are mapped; return whether it has auditors."""
        ...

    def run_to_relocated(self) -> bool:
        """Let it run from there to where its libraries are relocated; return whether nothing in them has run."""
        ...

    def resume(self) -> None:
        """Let a launched program go; no tracer is attached to it afterwards."""
        ...

    def close(self) -> None:
        """Let a held program go and close the descriptors."""
        ...
