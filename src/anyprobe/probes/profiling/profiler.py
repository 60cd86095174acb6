"""A profile while it is taken: samples are gone up as they come, and named at the end."""

import errno
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from anyprobe.core.errors import KernelRefused, NoSuchProcess, PermissionDenied, TargetError, UsageError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.processes import ProcessInfo, TargetInfo
from anyprobe.data.profile import Key, Profile, ProfiledStack, ProfileFrame
from anyprobe.probes.profiling.names import IN_KERNEL, Names
from anyprobe.probes.profiling.next_command import next_command
from anyprobe.probes.profiling.spaces import Place, Space, Spaces
from anyprobe.probes.unwinding import Frame, walk
from anyprobe.target.kernel import switches
from anyprobe.target.kernel.samples import (
    MOST_STACK_BYTES,
    Forked,
    Lost,
    Mapped,
    Named,
    Record,
    Sample,
    Sampler,
    Throttled,
)
from anyprobe.target.process import permission
from anyprobe.target.process.process import check_exists, check_kind
from anyprobe.target.system import procfs

HERTZ = 99
_BY = ("pid", "tid", "comm")
_LOOKS = 0.1
"""Seconds between two looks for samples, where rings have room for as long."""
_REFUSALS = frozenset({errno.EPERM, errno.EACCES})
MOST_PARANOID = 2
"""Up to this ``kernel.perf_event_paranoid`` users may sample their own programs."""


class Profiler:
    """Samples processes from its beginning to ``close``."""

    def __init__(
        self, pids: Sequence[int], *, hz: int = HERTZ, by: str | None = None, stack_bytes: int | None = None
    ) -> None:
        """Sample some processes, and what they start, from now on; raise a typed error where that is not permitted."""
        if by is not None and by not in _BY:
            raise UsageError(f"{by!r} is none of {', '.join(_BY)}")
        if not 1 <= hz <= 10_000:
            raise UsageError(f"{hz} samples per second of a processor: 1 to 10,000 are possible")
        if stack_bytes is not None and not 8 <= stack_bytes <= MOST_STACK_BYTES:
            raise UsageError(f"{stack_bytes} bytes of a stack: 8 to {MOST_STACK_BYTES:,} are possible")
        self.pids = list(pids)
        self._by = by
        self._began = time.monotonic()
        for pid in pids:
            _check(pid)
        self._spaces = Spaces(pids)
        self._stacks: Counter[tuple[int, Key, tuple[Place, ...], bool]] = Counter()
        self._pending: deque[Record] = deque()
        self._lost = 0
        self._ended: float | None = None
        self._processor_ns = 0
        self._is_throttled = False
        self._seen = dict.fromkeys(pids)
        """All processes that were sampled, in the order in which they came."""
        self._sampler = Sampler(hz, stack_bytes and stack_bytes & ~7)
        try:
            for pid in pids:
                self._sampler.watch(pid)
        except BaseException as error:
            self._sampler.close()
            if isinstance(error, KernelRefused) and error.errno in _REFUSALS:
                raise _not_permitted(pid) from error
            raise
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End sampling."""
        self.close()

    def close(self) -> None:
        """End sampling."""
        self._sampler.close()

    @property
    def interval(self) -> float:
        """How many seconds may pass between two looks."""
        how = self._sampler.how
        rate = how.hertz * (how.stack_bytes + 512)
        return min(_LOOKS, self._sampler.ring_bytes / rate / 3)

    def look(self, *, final: bool = False) -> None:
        """Take the samples that have come, and go up their stacks for about as long as rings have room for more."""
        until = time.monotonic() + self.interval
        self._pending += self._sampler.records(final=final)
        while self._pending and (final or time.monotonic() < until):
            self._handle(self._pending.popleft())

    def _handle(self, record: Record) -> None:
        if isinstance(record, Sample):
            self._add(record)
        elif isinstance(record, Mapped):
            self._spaces.of(record.pid).add(record.mapping)
        elif isinstance(record, Forked):
            self._spaces.fork(record.parent, record.pid, record.tid, record.made_by)
        elif isinstance(record, Named):
            self._spaces.rename(record.pid, record.tid, record.name, executed=record.executed)
        elif isinstance(record, Lost):
            self._lost += record.records
        elif isinstance(record, Throttled):
            self._is_throttled = True

    def _add(self, sample: Sample) -> None:
        self._seen.setdefault(sample.pid)
        space = self._spaces.of(sample.pid)
        frames: list[Place] = [(IN_KERNEL, address) for address in sample.in_kernel]
        complete = True
        if sample.registers is not None:
            own, complete = self._walked(sample, space)
            frames += own
        elif not frames:
            complete = False
        self._stacks[sample.pid, self._key(sample), tuple(frames), complete] += 1

    def _walked(self, sample: Sample, space: Space) -> tuple[list[Place], bool]:
        assert sample.registers is not None
        bp, sp, ip = sample.registers
        if sample.in_kernel and space.rule(ip) is None:  # it executes a program, and has nothing yet
            return [], False
        stack = sample.stack

        def word(address: int) -> int:
            at = address - sp
            if not 0 <= at <= len(stack) - 8:
                raise MemoryFault(address, 8)
            return int.from_bytes(stack[at : at + 8], "little")

        found = walk(space, Frame(ip, sp, bp, exact=True), word)
        return [space.place(frame.at) for frame in found.frames], found.complete

    def _key(self, sample: Sample) -> Key:
        if self._by == "pid":
            return sample.pid
        if self._by == "tid":
            return sample.tid
        return self._spaces.name(sample.pid, sample.tid) if self._by == "comm" else None

    def end(self) -> None:
        """Sample no more, and take what has been sampled."""
        if self._ended is None:
            self._processor_ns = self._sampler.processor_ns()
            self._ended = time.monotonic()
            self.look(final=True)
            self._sampler.close()

    def result(self, command: Sequence[str] = ()) -> Profile:
        """End sampling and return what was sampled, named; ``command``: what was started to be sampled."""
        self.end()
        assert self._ended is not None
        names = Names({place for _, _, places, _ in self._stacks for place in places})
        stacks: Counter[tuple[int, Key, tuple[ProfileFrame, ...], bool]] = Counter()
        for (pid, key, places, complete), count in self._stacks.items():
            stacks[pid, key, tuple(map(names.frame, places)), complete] += count
        found = Profile(
            targets=tuple(map(self._target, self.pids)),
            processes=tuple(map(self._process, self._seen)),
            duration_s=self._ended - self._began,
            hz=self._sampler.how.hertz,
            stacks=tuple(
                ProfiledStack(frames, count, truncated=not complete, key=key, pid=pid)
                for (pid, key, frames, complete), count in stacks.items()
            ),
            lost=self._lost,
            kernel=self._sampler.how.kernel,
            processor_s=self._processor_ns / 1e9,
            by=self._by,
            warnings=tuple(self._warnings(names)),
        )
        return replace(found, next=self._next(found, command))

    def _next(self, found: Profile, command: Sequence[str]) -> str:
        """Return the command to run next: on what was started, else on the busiest process that still runs."""
        if command:
            return next_command(found.stacks, ["--", *command])
        for pid in filter(_is_alive, found.busiest):
            line = next_command([each for each in found.stacks if each.pid == pid], ["-p", str(pid)])
            if line:
                return line
        return ""

    def _target(self, pid: int) -> TargetInfo:
        space = self._spaces.of(pid)
        return TargetInfo(pid, space.exe, alive=_is_alive(pid), called=space.called)

    def _process(self, pid: int) -> ProcessInfo:
        space = self._spaces.of(pid)
        return ProcessInfo(pid, space.exe, space.generation, started=None, alive=_is_alive(pid))

    def _warnings(self, names: Names) -> Iterator[str]:
        if self._is_throttled:
            yield "the kernel has taken fewer samples for a while (kernel.perf_cpu_time_max_percent): use a lower --hz"
        if names.hidden:
            yield "the kernel does not tell the names of its functions: be root, or set kernel.kptr_restrict to 0"


def profile(
    pid: int, duration: float = 5.0, *, hz: int = HERTZ, by: str | None = None, stack_bytes: int | None = None
) -> Profile:
    """Show where a process spends its time on processors, by samples; nothing is stopped, and no probe placed.

    Threads and processes that it makes meanwhile are sampled, too.

    Args:
        pid: the process.
        duration: seconds; it ends earlier with the process.
        hz: samples in each second that a thread is on a processor.
        by: ``pid``, ``tid`` or ``comm``: processes, threads or the names of threads are told apart.
        stack_bytes: how much of a stack a sample has; None: as much as there is room for, 65528 at most.

    Returns:
        The profile, with ``functions``, ``stacks`` and ``next``, the command that probes what is hot.

    Raises:
        PermissionDenied, NoSuchProcess, UnsupportedTarget: it cannot be sampled.
        UsageError: an argument has a value that means nothing.
    """
    with Profiler([pid], hz=hz, by=by, stack_bytes=stack_bytes) as profiler:
        until = time.monotonic() + duration
        while (left := until - time.monotonic()) > 0 and _is_alive(pid):
            time.sleep(min(left, profiler.interval))
            profiler.look()
        return profiler.result()


def _is_alive(pid: int) -> bool:
    try:
        return not procfs.read_stat(pid).ended
    except OSError:
        return False


def _check(pid: int) -> None:
    """Refuse what cannot be sampled."""
    check_exists(pid)
    try:
        check_kind(pid)
    except OSError as error:
        if error.errno in _REFUSALS:
            raise permission.explain(pid) from error
        raise NoSuchProcess(f"process {pid} has just ended") from error


def _not_permitted(pid: int) -> TargetError:
    """Return why the kernel does not let this user sample a process."""
    level = paranoia()
    if level is not None and level > MOST_PARANOID and not switches.has_capability(switches.CAP_PERFMON):
        return PermissionDenied(
            f"kernel.perf_event_paranoid is {level}",
            f"process {pid} may not be sampled",
            "be root, or: sysctl kernel.perf_event_paranoid=2",
        )
    try:
        procfs.read_mappings(pid)
    except OSError as error:
        if error.errno in _REFUSALS:
            return permission.explain(pid)
    return PermissionDenied(
        "perf_event_open",
        f"process {pid} may not be sampled",
        "a filter of system calls (seccomp), as containers have, forbids it, or the kernel is locked down",
    )


def paranoia() -> int | None:
    """Return the value of ``kernel.perf_event_paranoid``; None where it cannot be read."""
    try:
        return int(procfs.read_file("/proc/sys/kernel/perf_event_paranoid"))
    except (OSError, ValueError):
        return None
