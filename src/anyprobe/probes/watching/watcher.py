"""A watch while it lasts: writes as they come, each with what has been stored and from where."""

import errno
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from iced_x86 import Instruction

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.closing import Closing
from anyprobe.core.errors import KernelRefused, NoSuchProcess, PermissionDenied, TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import decode_iced
from anyprobe.probes.profiling.spaces import Space, Spaces
from anyprobe.probes.profiling.stacks import walked
from anyprobe.probes.stacks.lines import SourceLines
from anyprobe.probes.stacks.symbols import Symbols
from anyprobe.probes.watching.places import Watched, find, split
from anyprobe.probes.watching.stores import reads_memory, stored, writes_memory
from anyprobe.target.kernel import symbols as kernel_symbols
from anyprobe.target.kernel.perf import GENERAL_REGISTERS
from anyprobe.target.kernel.samples import Forked, Lost, Mapped, Named, Record, Sample, WatchSampler
from anyprobe.target.system import gateway, procfs

STACK_BYTES = 2048
_TAKES = 0.005
"""Seconds after which rings are read again."""
_WALKS = 4096
_END_OF_PROGRAMS = 1 << 47
_REFUSALS = frozenset({errno.EPERM, errno.EACCES})


class Access(NamedTuple):
    """One write, or read."""

    time: int
    pid: int
    tid: int
    watched: Watched
    address: int
    size: int
    pc: int
    """The instruction, or the kernel's address."""
    kind: str
    """``write``, ``read``, or ``kernel``: the kernel's own write, for a system call."""
    old: int | None
    new: int | None
    function: str
    module: str
    line: str
    stack: list[str]


class _Objects:
    """The objects of a process, as ``Symbols`` asks for them."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def holding(self, address: int) -> LoadedObject | None:
        return self._space.holder(address)

    def refresh(self) -> None:
        """Nothing: the kernel tells what is mapped."""


class Watcher(Closing):
    """Watches memory of processes, and of what they start, from its beginning to ``close``."""

    def __init__(
        self, pids: Sequence[int], texts: Sequence[str], *, reads: bool = False, stack_bytes: int = STACK_BYTES
    ) -> None:
        """Watch from now on; the variables are looked up in the first process."""
        for pid in pids:
            if not procfs.is_alive(pid):
                raise NoSuchProcess(f"there is no process {pid}")
        self._spaces = Spaces(pids)
        objects = self._spaces.of(pids[0]).objects
        self.watched = [find(text, objects) for text in texts]
        points = split(self.watched, reads=reads)
        self._owner = {point.address: (each, point) for each in self.watched for point in each.watchpoints(reads=reads)}
        for point in points:
            for pid in pids:
                _check(pid, point.address)
        self._known: dict[tuple[int, int], int | None] = {}
        """What memory holds, by process and address, as far as that is known."""
        self._symbols: dict[int, Symbols[_Objects]] = {}
        self._lines = SourceLines()
        self._instructions: dict[tuple[int, int], Instruction | None] = {}
        self._kernel: kernel_symbols.Symbols | None = None
        self.seen, self.lost = 0, 0
        self._pending: deque[Record] = deque()
        self._taken = 0.0
        self._walks: dict[tuple[object, ...], list[str]] = {}
        """The names of stacks by their content: many writes have the same one."""
        self._begun = set(pids)
        self._gone: set[int] = set()
        """Processes that have executed other programs since."""
        self._sampler = WatchSampler(points, stack_bytes & ~7)
        try:
            for pid in pids:
                for point in points:
                    self._known[pid, point.address] = _read(pid, point.address, point.size)
                self._sampler.watch(pid)
        except BaseException as error:
            self._sampler.close()
            if isinstance(error, KernelRefused) and error.errno in _REFUSALS:
                raise PermissionDenied(
                    "perf",
                    f"memory of process {pid} may not be watched by this user",
                    "kernel.perf_event_paranoid has to be 2 or less, and the process one's own; or be root",
                ) from error
            raise

    def close(self) -> None:
        """Have no debug register in use any more: rings are unmapped first, which hold them."""
        self._sampler.close()

    @property
    def sees_kernel(self) -> bool:
        """Whether the kernel's writes are met, too."""
        return self._sampler.how.kernel

    def count(self) -> int:
        """Return how often the memory was written to, by the kernel's count of it."""
        return self._sampler.count()

    def look(self, *, final: bool = False) -> Iterator[Access]:
        """Yield what has come since the last look."""
        self._take(final=final)
        while self._pending:
            if time.monotonic() > self._taken + _TAKES:
                self._take(final=final)
            record = self._pending.popleft()
            match record:
                case Sample():
                    self.seen += 1
                    if record.address in self._owner and record.pid not in self._gone:
                        yield self._access(record, last=not self._pending)
                case Lost():
                    self.lost += record.records
                    self._known = dict.fromkeys(self._known)  # what was lost has changed it to something unknown
                case Mapped():
                    self._spaces.of(record.pid).add(record.mapping)
                case Forked():
                    self._spaces.fork(record.parent, record.pid, record.tid, record.made_by)
                    self._fork(record.parent, record.pid)
                case Named():
                    self._spaces.rename(record.pid, record.tid, record.name, executed=record.executed)
                    if record.executed and record.pid in self._begun:
                        self._gone.add(record.pid)  # another program has other memory there

    def _take(self, *, final: bool) -> None:
        """Take what has come, often enough for rings to have room: what is to be said of it takes longer than that."""
        self._pending += self._sampler.records(final=final)
        self._taken = time.monotonic()

    def _fork(self, parent: int, pid: int) -> None:
        if parent != pid:
            self._begun.add(pid)
            for (owner, address), value in list(self._known.items()):
                if owner == parent:
                    self._known[pid, address] = value

    def _access(self, sample: Sample, *, last: bool) -> Access:
        watched, point = self._owner[sample.address]
        space = self._spaces.of(sample.pid)
        names = self._symbols.get(sample.pid)
        if names is None:
            names = self._symbols[sample.pid] = Symbols(_Objects(space))
        key = sample.pid, point.address
        old, new, kind, pc = self._known.get(key), None, "write", 0
        if sample.in_kernel:
            kind, pc = "kernel", sample.in_kernel[0]
        elif sample.registers is not None:
            instruction = self._instruction(space, sample.registers[2])
            pc = sample.registers[2] if instruction is None else instruction.ip
            if instruction is not None and reads_memory(instruction):
                kind, new = "read", old
            elif instruction is not None:
                new = _after(instruction, sample, old, point.address, point.size)
        if new is None:
            new = self._now(sample.pid, point.address, point.size) if last else None
        self._known[key] = new
        module, function, line, stack = self._place(space, names, sample, pc)
        return Access(
            sample.time, sample.pid, sample.tid, watched, point.address, point.size, pc, kind, old, new,
            function, module, line, stack,
        )  # fmt: skip

    def _now(self, pid: int, address: int, size: int) -> int | None:
        """Return what memory holds, if it has not been written to since all that has come."""
        found = _read(pid, address, size)
        return found if self.count() == self.seen else None

    def _instruction(self, space: Space, after: int) -> Instruction | None:
        """Return the instruction that has written, before one; one that repeats itself may be interrupted there."""
        key = space.pid, after
        if key not in self._instructions:
            self._instructions[key] = _decoded(space, after)
        return self._instructions[key]

    def _place(
        self, space: Space, names: "Symbols[_Objects]", sample: Sample, pc: int
    ) -> tuple[str, str, str, list[str]]:
        frames = [self._in_kernel(address) for address in sample.in_kernel]
        module, function, line = "[anon]", f"{pc:#x}", ""
        if sample.in_kernel:
            module, function = "[kernel]", frames[0]
        if sample.registers is not None:
            key = sample.pid, sample.registers, sample.stack
            if key not in self._walks:
                self._walks = {} if len(self._walks) > _WALKS else self._walks
                own, _ = walked(space, sample.registers, sample.stack, in_kernel=bool(sample.in_kernel))
                first = sample.registers[2] if sample.in_kernel else pc
                callers = (names.name_of_caller(frame.pc) for frame in own[1:])
                self._walks[key] = [names.name(first), *callers] if own else []
            frames += self._walks[key]
        if not sample.in_kernel:
            loaded = space.holder(pc)
            name = names.name(pc)
            function = name.partition(":")[2] or name
            if loaded is not None:
                module, line = loaded.name, self._lines.at(loaded, pc - loaded.bias)
        return module, function, line, frames

    def _in_kernel(self, address: int) -> str:
        if self._kernel is None:
            with suppress(TargetError):
                self._kernel = kernel_symbols.running()
        found = None if self._kernel is None else self._kernel.containing(address)
        return "[kernel]" if found is None else found.name


def _after(instruction: Instruction, sample: Sample, old: int | None, address: int, size: int) -> int | None:
    """Return what watched memory holds after a store that is, or overlaps it."""
    registers = dict(zip(GENERAL_REGISTERS, sample.general, strict=True))
    known = {} if old is None else {(address, size): old}
    if old is not None:
        content = old.to_bytes(size, "little")
        for width in (1, 2, 4, 8):
            for begin in range(size - width + 1):
                part = int.from_bytes(content[begin : begin + width], "little")
                known[address + begin, width] = part
    found = stored(instruction, registers, known)
    if found is None or found.value is None:
        return None
    value = found.value.to_bytes(found.size, "little")
    if found.address <= address and found.address + found.size >= address + size:
        begin = address - found.address
        return int.from_bytes(value[begin : begin + size], "little")
    if old is None:
        return None
    bytes_now = bytearray(old.to_bytes(size, "little"))
    for number, each in enumerate(value):
        if 0 <= (at := found.address + number - address) < size:
            bytes_now[at] = each
    return int.from_bytes(bytes_now, "little")


def _decoded(space: Space, after: int) -> Instruction | None:
    begin = space.start_of(after - 1)
    if begin is not None:
        with suppress(TargetError, MemoryFault):
            for each in decode_iced(space.code(begin, after - begin), begin):
                if each.next_ip == after and (writes_memory(each) or reads_memory(each)):
                    return each
    with suppress(TargetError, MemoryFault):
        (here, *_) = decode_iced(space.code(after, 15), after)
        if here.has_rep_prefix or here.has_repne_prefix:
            return here
    return None


def _read(pid: int, address: int, size: int) -> int | None:
    """Return what memory of a process holds; None where that cannot be read."""
    with suppress(OSError, OverflowError):
        memory = gateway.open_file(f"/proc/{procfs.voice(pid)}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = gateway.pread(memory, size, address)
        finally:
            gateway.close(memory)
        return int.from_bytes(found, "little") if len(found) == size else None
    return None


def _check(pid: int, address: int) -> None:
    """Refuse an address at which a process has nothing mapped."""
    try:
        mappings = procfs.read_mappings(pid)
    except OSError:
        raise NoSuchProcess(f"there is no process {pid}") from None
    if address >= _END_OF_PROGRAMS or not any(each.start <= address < each.end for each in mappings):
        raise TargetError(f"process {pid} has nothing mapped at {address:#x}")
