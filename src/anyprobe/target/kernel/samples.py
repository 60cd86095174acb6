"""Samples of tasks, taken by the kernel's clock events: rings in memory that the kernel writes and anyprobe reads.

Each processor has an event; for users who may not have that, each task has one on each processor, which those that it
makes later inherit. All events of a processor write into one ring. Nothing is stopped, or written into a process.
"""

import errno
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from mmap import PAGESIZE
from typing import NamedTuple

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import bpf, perf
from anyprobe.target.kernel.perf import GENERAL_REGISTERS, Sampling
from anyprobe.target.system import gateway, procfs

MOST_STACK_BYTES, USUAL_STACK_BYTES = 65528, 16384
"""How much of a stack is copied with each sample where there is room for it, and where there is not."""
MOST_SWITCHES = 10_000
"""For as many switches in a second rings have room between two looks."""
_FEWEST_SAMPLES = 16
"""A ring has room for so many."""
RING_PAGES, _LEAST_PAGES, _ALL_PAGES = 2048, 8, 8192
"""The size of each processor's ring, halved where so much memory cannot be locked; and of all together."""
_ROUNDS = 8
_SETTLED = 0.001
"""Seconds after which a new task is told in the ring of the one that made it."""
_HEAD, _TAIL, _SIZE = 1024 // 8, 1032 // 8, 1048 // 8
"""Words of a ring's first page: what the kernel has written, what has been read, how much room there is."""
_RECORD = struct.Struct("<IHH")
_LOST, _NAME, _THROTTLED, _FORK, _SAMPLE, _MAPPED, _LOST_SAMPLES, _SWITCHED = 2, 3, 5, 7, 9, 10, 13, 14
_OF_PROCESSES = frozenset({_NAME, _FORK, _SAMPLE, _MAPPED})
"""Kinds of records that have the process first."""
_SHORTEST = 24
"""Bytes that each record has at least."""
_EXECUTED = _AWAY = 1 << 13
_KERNEL_CONTEXTS = (1 << 64) - 4095
"""From here on numbers in a chain of calls are no addresses, but say what kind those after them are."""
_LATE = 1_000_000
"""Nanoseconds by which a record may come later than its time says: it is written after that was taken."""
_REFUSED = frozenset({errno.EACCES, errno.EPERM})
_UNLOCKED = frozenset({errno.EPERM, errno.ENOMEM, errno.EAGAIN})


class Sample(NamedTuple):
    """What a thread did at one moment."""

    time: int
    pid: int
    tid: int
    in_kernel: tuple[int, ...]
    """The addresses on the kernel's stack, innermost first; of time in the program there are none."""
    registers: tuple[int, int, int] | None
    """``rbp``, ``rsp`` and ``rip`` of the program; None where that has none, or is no 64-bit one."""
    stack: bytes
    """What is at ``rsp``: the whole stack, or its beginning."""
    address: int = 0
    """Where the memory is, if it is of a watchpoint."""
    general: tuple[int, ...] = ()
    """The values of ``perf.GENERAL_REGISTERS``, if it is of a watchpoint."""


class Mapped(NamedTuple):
    """Code that a process has mapped."""

    time: int
    pid: int
    mapping: procfs.Mapping


class Forked(NamedTuple):
    """A new process, or a new thread."""

    time: int
    pid: int
    parent: int
    """The process that has made it."""
    tid: int
    made_by: int
    """The thread that has."""


class Named(NamedTuple):
    """A thread with another name; ``executed``: since it has executed a program, which has the process to itself."""

    time: int
    pid: int
    tid: int
    name: str
    executed: bool


class Switched(NamedTuple):
    """A thread has a processor again."""

    time: int
    tid: int


class Lost(NamedTuple):
    """Records for which a ring had no room."""

    time: int
    records: int


class Throttled(NamedTuple):
    """The kernel samples less for a while, as samples take too much time."""

    time: int


Record = Sample | Mapped | Forked | Named | Switched | Lost | Throttled


class Ring:
    """The ring of a processor."""

    def __init__(self, event: int, pages: int) -> None:
        """Map the ring of an event, of a power of two of pages; raise ``OSError`` where these cannot be locked."""
        self._mapped = gateway.mmap_shared(event, (1 + pages) * PAGESIZE)
        self._words = memoryview(self._mapped)[:PAGESIZE].cast("Q")
        self.size = len(self._mapped) - PAGESIZE
        self._seen = 0

    @property
    def head(self) -> int:
        """Up to where there are records now."""
        return self._words[_HEAD]

    def heads(self, until: int) -> Iterator[bytes]:
        """Yield the beginnings of the records up to a position that have not been seen by this yet."""
        self._seen = max(self._seen, self._words[_TAIL])
        while self._seen < until:
            content = self._at(self._seen, _SHORTEST)
            size = _RECORD.unpack_from(content)[2]
            if not size:  # which the kernel does not write
                return
            yield content
            self._seen += size

    def drain(self, until: int, is_wanted: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Yield the records up to a position that have not been read yet, of those whose beginnings are wanted."""
        tail = self._words[_TAIL]
        while tail < until:
            begin = self._at(tail, _SHORTEST)
            size = _RECORD.unpack_from(begin)[2]
            if not size:
                break
            if is_wanted(begin):
                yield self._at(tail, size)
            tail += size
        self._words[_TAIL] = tail

    def _at(self, position: int, size: int) -> bytes:
        begin = position % self.size
        first = self._mapped[PAGESIZE + begin : PAGESIZE + min(begin + size, self.size)]
        return first if len(first) == size else first + self._mapped[PAGESIZE : PAGESIZE + size - len(first)]

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._mapped.close()


class Sampler:
    """Samples some processes, and what they make later.

    Where that is permitted, all processors are sampled, and what is of other processes is left out: so threads that run
    for a short time have their share of samples. An event of a thread samples it after a whole period at first.
    """

    watches = False
    """Whether samples are of watchpoints."""
    room = 1
    """How many times as much memory as usual the rings have, where so much can be locked."""

    def __init__(self, hertz: int, stack_bytes: int | None = None) -> None:
        """Sample nothing yet. Without ``stack_bytes``, as much of each stack as the rings have room for."""
        self.how = Sampling(hertz, stack_bytes or MOST_STACK_BYTES, kernel=True)
        self.everywhere = True
        """Whether events are of processors, and not of threads."""
        self._members: set[int] = set()
        """The processes that are wanted."""
        self._clocks: list[int] = []
        self._given = stack_bytes is not None
        self._processors = bpf.online_processors()
        self._events: dict[int, list[int]] = {number: [] for number in self._processors}
        self._rings: dict[int, Ring] = {}
        self._tasks: set[int] = set()
        self._records: list[Record] = []

    @property
    def ring_bytes(self) -> int:
        """How much room each ring has."""
        return min((ring.size for ring in self._rings.values()), default=0)

    @property
    def may_take_programs(self) -> bool:
        """Whether this user may have programs in the kernel, as far as that is known."""
        return self.everywhere

    @property
    def samplers(self) -> list[int]:
        """The descriptors of the events that sample."""
        return [event for own in self._events.values() for event in own]

    def watch(self, pid: int) -> None:
        """Sample all threads of a process from now on."""
        self._members.add(pid)
        if self.everywhere and not self._rings:
            self._begin_everywhere()
        for _ in range(_ROUNDS):
            with suppress(FileNotFoundError, ProcessLookupError):
                found = set(procfs.read_tasks(pid)) - self._tasks
                if self._tasks:
                    time.sleep(_SETTLED)
                    self._take()  # those that threads with events have made have their own
                found -= self._tasks
                if not found:
                    return
                for tid in sorted(found):
                    self._add(tid)

    def _begin_everywhere(self) -> None:
        """Sample all processors, if this user may."""
        try:
            self._begin(perf.ALL)
        except KernelRefused as refusal:
            if refusal.errno not in _REFUSED:
                raise
            self.everywhere = False

    def _add(self, tid: int) -> None:
        """Sample a thread, and count its time; one that has ended is left out."""
        self._tasks.add(tid)
        try:
            if self.everywhere:
                self._clocks.append(perf.open_clock(tid))
            else:
                self._begin(tid)
        except KernelRefused as refusal:
            if refusal.errno != errno.ESRCH:
                raise

    def _begin(self, task: int) -> None:
        """Open events of a task on each processor, and a ring for each processor if there are none yet."""
        opened: list[int] = []
        try:
            opened.extend(self._opened(task, processor) for processor in self._processors)
        except KernelRefused:
            for event in opened:
                gateway.close(event)
            raise
        for processor, event in zip(self._processors, opened, strict=True):
            self._events[processor].append(event)
        if self._rings:
            for processor, event in zip(self._processors, opened, strict=True):
                perf.share_ring(event, self._events[processor][0])
            return
        self._map_rings()
        room = self.ring_bytes // _FEWEST_SAMPLES
        if not self._given and room < self.how.stack_bytes:  # events are as they were opened
            self.close()
            self._given = True
            self.how = self.how._replace(stack_bytes=min(room, USUAL_STACK_BYTES) & ~7)
            self._begin(task)

    def _opened(self, task: int, processor: int) -> int:
        try:
            return self._open(task, processor)
        except KernelRefused as refusal:
            if self.everywhere or not self.how.kernel or refusal.errno not in _REFUSED:
                raise
        self.how = self.how._replace(kernel=False)  # as the user may sample programs alone
        return self._open(task, processor)

    def _open(self, task: int, processor: int) -> int:
        return perf.open_sampler(task, processor, self.how)

    def _map_rings(self) -> None:
        """Map a ring for each processor, all of one size: as large as can be locked."""
        pages = self.room * RING_PAGES
        while pages > _LEAST_PAGES and pages * len(self._processors) > self.room * _ALL_PAGES:
            pages //= 2
        while True:
            try:
                for processor, events in self._events.items():
                    self._rings[processor] = Ring(events[0], pages)
            except OSError as failure:
                self._unmap()
                pages //= 2
                if failure.errno not in _UNLOCKED or pages < _LEAST_PAGES:
                    detail = "no more memory can be locked: raise kernel.perf_event_mlock_kb, or RLIMIT_MEMLOCK"
                    raise KernelRefused("map a ring of samples", failure.errno or 0, detail) from None
            else:
                return

    def _unmap(self) -> None:
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def records(self, *, final: bool = False) -> list[Record]:
        """Return what the rings have, in the order of time; what may follow something later next time, unless final."""
        until = time.monotonic_ns() - _LATE
        self._take()
        self._records.sort(key=lambda record: record.time)
        count = len(self._records)
        if not final:
            count = next((at for at, record in enumerate(self._records) if record.time > until), count)
        found, self._records = self._records[:count], self._records[count:]
        return found

    def _take(self) -> None:
        """Read the rings.

        A child's samples may be in another ring than what tells of its making. So the ends of all rings are noted
        first; all that is there by then tells which processes have been made; and reading stops at the ends.
        """
        ends = {processor: ring.head for processor, ring in self._rings.items()}
        for ring in self._rings.values():
            for begin in ring.heads(ring.head):
                if _RECORD.unpack_from(begin)[0] == _FORK:
                    self._note_fork(*struct.unpack_from("<III", begin, 8))
        for processor, ring in self._rings.items():
            for content in ring.drain(ends[processor], self._is_wanted):
                record = parsed(content, chains=self.how.kernel, watches=self.watches)
                if record is not None:
                    self._records.append(record)

    def _note_fork(self, pid: int, parent: int, tid: int) -> None:
        if parent in self._members:
            self._members.add(pid)
            self._tasks.add(tid)
        else:  # the number was another one's
            self._members.discard(pid)

    def _is_wanted(self, begin: bytes) -> bool:
        """Return whether a record is about a process that is sampled, or about none."""
        kind, _, _ = _RECORD.unpack_from(begin)
        if not self.everywhere or kind not in _OF_PROCESSES:
            return True
        pid, _ = struct.unpack_from("<II", begin, 8)
        return pid in self._members

    def processor_ns(self) -> int:
        """Return how long all sampled tasks, those that were made later included, have run on processors."""
        events = self._clocks if self.everywhere else [each for own in self._events.values() for each in own]
        return sum(map(perf.count, events))

    def close(self) -> None:
        """End sampling."""
        self._unmap()
        for events in self._events.values():
            for event in events:
                gateway.close(event)
            events.clear()
        for event in self._clocks:
            gateway.close(event)
        self._clocks.clear()


def permits(*, kernel: bool) -> bool:
    """Return whether this user may sample programs of its own; ``kernel``: with their time in the kernel, too."""
    try:
        gateway.close(perf.open_sampler(0, bpf.first_processor(), Sampling(1, 0, kernel=kernel)))
    except KernelRefused:
        return False
    return True


class SwitchSampler(Sampler):
    """Samples some processes, and what they make later, wherever a thread of theirs gives its processor up."""

    room = 2

    def __init__(self, stack_bytes: int | None = None) -> None:
        """Sample nothing yet."""
        super().__init__(MOST_SWITCHES, stack_bytes)
        self.everywhere = False  # all other processes' switches would be sampled, too

    def _open(self, task: int, processor: int) -> int:
        return perf.open_switches(task, processor, self.how)

    @property
    def may_take_programs(self) -> bool:
        """Whether it is worth trying."""
        return True

    def processor_ns(self) -> int:
        """Return nothing: no time on processors is measured."""
        return 0


class WatchSampler(Sampler):
    """Samples some processes, and what they make later, where they write to some memory."""

    watches, room = True, 4  # a loop makes a hundred thousand a second

    def __init__(self, watchpoints: Sequence[perf.Watchpoint], stack_bytes: int) -> None:
        """Watch nothing yet."""
        super().__init__(1, stack_bytes)
        self.everywhere = False
        self._watchpoints = list(watchpoints)
        self._present = self._watchpoints[0]

    def _begin(self, task: int) -> None:
        for each in self._watchpoints:
            self._present = each
            super()._begin(task)

    def _open(self, task: int, processor: int) -> int:
        return perf.open_watchpoint(task, processor, self.how, self._present)

    def count(self) -> int:
        """Return how often the memory was written to."""
        return sum(perf.count(event) for own in self._events.values() for event in own)


def parsed(content: bytes, *, chains: bool, watches: bool = False) -> Record | None:
    """Return a record; None for one that says nothing here.

    ``chains``: samples have the kernel's stacks; ``watches``: they are of watchpoints.
    """
    kind, what, _ = _RECORD.unpack_from(content)
    if kind == _SAMPLE:
        return _sample(content, chains=chains, watches=watches)
    moment = struct.unpack_from("<Q", content, len(content) - 8)[0]
    if kind == _MAPPED:
        pid, _, start, size, offset, major, minor, inode, _, protection, _ = struct.unpack_from(
            "<IIQQQIIQQII", content, 8
        )
        path = _text(content, 72)
        if "\\012" in path:
            path = path.replace("\\012", "\n")
        perms = "".join(letter if protection >> bit & 1 else "-" for bit, letter in enumerate("rwx")) + "p"
        mapping = procfs.Mapping(start, start + size, perms, offset, f"{major:02x}:{minor:02x}", inode, path, False)
        return Mapped(moment, pid, mapping)
    if kind == _FORK:
        return Forked(moment, *struct.unpack_from("<IIII", content, 8))
    if kind == _NAME:
        pid, tid = struct.unpack_from("<II", content, 8)
        return Named(moment, pid, tid, _text(content, 16), bool(what & _EXECUTED))
    if kind == _SWITCHED:
        return None if what & _AWAY else Switched(moment, struct.unpack_from("<I", content, 12)[0])
    if kind in (_LOST, _LOST_SAMPLES):
        return Lost(moment, struct.unpack_from("<Q", content, 16 if kind == _LOST else 8)[0])
    return Throttled(moment) if kind == _THROTTLED else None


def _sample(content: bytes, *, chains: bool, watches: bool) -> Sample:
    pid, tid, moment = struct.unpack_from("<IIQ", content, 8)
    at = 24
    address = 0
    if watches:
        address, at = struct.unpack_from("<Q", content, at)[0], at + 8
    chain: Iterable[int] = ()
    if chains:
        count = struct.unpack_from("<Q", content, at)[0]
        chain = struct.unpack_from(f"<{count}Q", content, at + 8)
        at += 8 + 8 * count
    kind = struct.unpack_from("<Q", content, at)[0]
    at += 8
    registers: tuple[int, int, int] | None = None
    general: tuple[int, ...] = ()
    if kind and watches:
        general = struct.unpack_from(f"<{len(GENERAL_REGISTERS)}Q", content, at)
        registers, at = (general[6], general[7], general[8]), at + 8 * len(GENERAL_REGISTERS)
    elif kind:
        registers = struct.unpack_from("<QQQ", content, at)
        at += 24
    room = struct.unpack_from("<Q", content, at)[0]
    filled = struct.unpack_from("<Q", content, at + 8 + room)[0] if room else 0
    stack = content[at + 8 : at + 8 + filled]
    in_kernel = tuple(each for each in chain if each < _KERNEL_CONTEXTS)
    is_whole = kind == 2
    return Sample(moment, pid, tid, in_kernel, registers if is_whole else None, stack, address, general)


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode("utf-8", "surrogateescape")
