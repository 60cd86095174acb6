"""What is known of a handler where it is placed: its code, and where in the target what it needs is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from anyprobe.core.code import SKIP, InputKind, NativeCode
from anyprobe.splice.codegen.handlers.memory_routines import UNKNOWN, ReadingFacts

PLACE = {"ip": 11, "func": 18}
"""Where, from the return address on, the displacement stands by which a patch tells an address: after it, in the two
instructions that follow ``lea rsp, [rsp+136]``."""

INSTANCES, INSTANCE_BYTES, INSTANCE_DATA = 256, 256, 56
"""Instances of a thread, bytes of one (a power of two), and where in it the data is, after the site's stack pointer."""
INSTANCE_CLEARED = (INSTANCE_DATA, INSTANCE_DATA + 64)
"""What is zero where a call begins: the first word of the data, and the one that says which of them were stored."""
INSTANCE_THREADS = 1024
"""Threads that have instances of their own, where a program has no more when its probes come."""
SHARED_INSTANCES = 1 << 14
"""Instances before those, which all threads of all fork children share: known by the stack pointer, and in the upper 16
bits the number of the child's copy of all blocks."""
OWN_INSTANCES_AT = SHARED_INSTANCES * INSTANCE_BYTES
"""Where those of the threads begin, whose numbers count from 1."""


class CallEnd(Enum):
    """Where a handler of returns is called that runs where the caller goes on."""

    AT_JUMP = "jump"
    """Where the function is left by a jump: runs nothing if the call is going to end in a caller that is watched."""
    AT_ENTRY = "entry"
    """Where the function is entered: notes the call, runs nothing."""
    IN_CALLER = "caller"
    """Where the caller goes on: runs once for each call that ends there."""


@dataclass(frozen=True, slots=True)
class GoCalls:
    """Where the data of calls of Go functions is."""

    table: int
    """Address of heads and calls (``data.layouts.goroutines``)."""
    number_at: int
    """Where ``runtime.g`` has the goroutine's number."""


@dataclass(frozen=True, slots=True)
class HandlerFacts:
    """A handler, and where in the target what it needs is."""

    code: NativeCode
    storages: Sequence[int] = ()
    """Addresses of its storages."""
    misses: int = 0
    reading: ReadingFacts = UNKNOWN
    """What is known of the program's memory, and whether system calls may be made."""
    instances: int = 0
    """Address of the instances of the calls that it has data of; 0: none."""
    instance_threads: int = INSTANCE_THREADS
    """How many threads have some of their own there."""
    enters: bool = False
    """Whether it is called where calls begin."""
    pool: int = 0
    """Instances that all threads share; 0: each has some of its own."""
    nanoseconds: int = 0
    """Nanoseconds per tick of the TSC, times two to the 32."""
    pid: int = 0
    errno: int = 0
    """Where ``errno`` is, from the thread pointer on; 0: a word says it by the time the handler runs."""
    errno_word: int = 0
    """Where the address of that word is written once it is known."""

    unwinding: int = 0
    """Address of the tables by which stacks are gone up; 0: by frame pointers alone."""
    stubs: int = 0
    """Address of the directory of stubs, for those that are told the true ``ctx.caller`` where it was replaced."""
    takes_target: bool = False
    """Whether patches push where control goes before the argument, as ``ctx.ip``: they alone know."""

    reads_clock: bool = False
    """Whether it reads the time stamp counter: where that is forbidden, its hits are missed."""
    needs_block: bool = True
    """Whether it runs only where threads have blocks. If not, it also does, unguarded, where they have none: what it
    changes is safe under interruption, and it is not hit itself."""
    takes_trap: bool = False
    """Whether a landing pushes the number of the trap before the argument."""
    watches: tuple[tuple[int, int], ...] = ()
    """Ranges of memory, by address and length: it runs before stores to these alone, and is told where they go."""
    go_calls: GoCalls | None = None
    """What it has data by of the calls of Go functions; None: nothing."""
    stacks: int = 0
    """Address of the first of the stacks on which it runs where the program's may have no room; 0: there are none."""
    ends: CallEnd | None = None
    """Where it is called, if calls are followed to where their callers go on."""
    tells_ip: bool = False
    """Whether it is known in the caller where the call has left the function."""

    @property
    def is_told_more(self) -> bool:
        """Whether patches push a word before the argument."""
        return self.takes_target or self.takes_trap or bool(self.watches)

    @property
    def asks_place(self) -> bool:
        """Whether the handler asks where it runs, so that patches say so after the call."""
        return self.tells_ip or any(each.kind is InputKind.CONTEXT and each.name in PLACE for each in self.code.inputs)

    @property
    def asks_ip(self) -> bool:
        """Whether it asks for the instruction's address."""
        return any(each.kind is InputKind.CONTEXT and each.name == "ip" for each in self.code.inputs)

    @property
    def system_calls(self) -> bool:
        """Whether it may make system calls, by which memory is read."""
        return self.reading.system_calls

    @property
    def calls_routines(self) -> bool:
        """Whether it calls anyprobe's routines, which may depend on what is known of the program's memory."""
        return (self.pool > 0 and self.enters) or any(each.kind is InputKind.ROUTINE for each in self.code.inputs)

    @property
    def redirects(self) -> bool:
        """Whether it may send the thread somewhere else."""
        return any(each.written and each.name == "rip" for each in self.code.inputs)

    @property
    def moves_stack(self) -> bool:
        """Whether it may give the thread another stack pointer."""
        return any(each.written and each.name == "rsp" for each in self.code.inputs)

    @property
    def has_data(self) -> bool:
        """Whether it has data of the call."""
        return any(each.kind is InputKind.INSTANCE for each in self.code.inputs)

    @property
    def lacks_on_spare_stacks(self) -> str:
        """What it uses that there is not where it runs on one of these stacks; empty if nothing."""
        if self.pool or (self.has_data and self.go_calls is None):
            return "ctx.data"
        if self.redirects or self.moves_stack:
            return "way to send threads elsewhere"
        if self.takes_target or self.takes_trap:
            return "places after instructions"
        return "errno" if any(each.name == "errno" for each in self.code.inputs) else ""

    @property
    def skips(self) -> bool:
        """Whether it may let a call return at once."""
        return any(each.kind is InputKind.ROUTINE and each.name == SKIP for each in self.code.inputs)


CALL_BYTES = 1856
"""Bytes of the routine besides the handler and its words."""
POOL_BYTES = 512
"""Bytes that instances out of a pool take besides."""
ENDS_BYTES = 512
"""Bytes that following calls to their callers takes besides."""
STORAGE_BYTES = 16
"""Bytes that the address of a storage takes for patches which change it themselves."""


def instances_bytes(threads: int = INSTANCE_THREADS) -> int:
    """Return the size of the instances of all threads."""
    return OWN_INSTANCES_AT + (threads + 1) * INSTANCES * INSTANCE_BYTES


def forget_instances(memory: memoryview, copy: int, pool: int = 0) -> None:
    """Free the instances of a fork child that has ended, by the number of its copy of all blocks, from 1.

    ``pool``: how many there are in a pool of all threads, if that is what the memory is.
    """
    import numpy as np

    size = pool * INSTANCE_BYTES if pool else OWN_INSTANCES_AT
    words = np.frombuffer(memory[:size], dtype=np.uint64).reshape(-1, INSTANCE_BYTES // 8)
    own = words[:, 0] >> np.uint64(48) == copy
    if pool:
        words[own, 2] = 0  # its thread: others may take it from then on
    words[own, 0] = 0


def handler_bytes(hooks: Iterable[object]) -> int:
    """Return an upper bound of the code that the handlers of some hooks take."""
    found = {id(facts): facts for hook in hooks if (facts := getattr(hook, "handler", None)) is not None}
    return sum(
        len(facts.code.code)
        + 64 * len(facts.code.inputs)
        + CALL_BYTES
        + STORAGE_BYTES
        + POOL_BYTES * (facts.pool > 0)
        + ENDS_BYTES * (facts.ends is not None)
        for facts in found.values()
    )
