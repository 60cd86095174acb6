"""A profile while it is taken: samples are gone up as they come, and named at the end."""

import errno
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.core.closing import Closing
from anyprobe.core.errors import KernelRefused, NoSuchProcess, PermissionDenied, TargetError, UsageError
from anyprobe.target.kernel.samples import MOST_STACK_BYTES, Lost, Record, Sampler, SwitchSampler, Throttled
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.data.snapshots.profile import Profile

HERTZ = 99
_BY = ("pid", "tid", "comm")
_LOOKS = 0.1
"""Seconds between two looks for samples, where rings have room for as long."""
_REFUSALS = frozenset({errno.EPERM, errno.EACCES})
MOST_PARANOID = 2
"""Up to this ``kernel.perf_event_paranoid`` users may sample their own programs."""


class Profiler(Closing):
    """Samples processes from its beginning to ``close``."""

    def __init__(
        self, pids: Sequence[int], *, hz: int = HERTZ, by: str | None = None, stack_bytes: int | None = None,
        off: bool = False,
    ) -> None:  # fmt: skip
        """Sample some processes, and what they start, from now on; raise a typed error where that is not permitted.

        ``off``: not the time on processors, but that off them, each time from where a thread gives its processor up.
        """
        if by is not None and by not in _BY:
            raise UsageError(f"{by!r} is none of {', '.join(_BY)}")
        if not 1 <= hz <= 10_000:
            raise UsageError(f"{hz} samples per second of a processor: 1 to 10,000 are possible")
        if stack_bytes is not None and not 8 <= stack_bytes <= MOST_STACK_BYTES:
            raise UsageError(f"{stack_bytes} bytes of a stack: 8 to {MOST_STACK_BYTES:,} are possible")
        self.pids = list(pids)
        self._by = by
        for pid in pids:
            _check(pid)
        self._pending: deque[Record] = deque()
        self._lost = 0
        self._ended: float | None = None
        self._processor_ns = 0
        self._is_throttled = False
        self._still = 0
        """Threads that have done nothing, where it is looked for what gives processors up."""
        from anyprobe.probes.profiling.stacks import SampledStacks

        own = stack_bytes and stack_bytes & ~7
        self._off = off
        self._sampler = SwitchSampler(own) if off else Sampler(hz, own)
        self._stacks = SampledStacks(pids, by, self._sampler)
        try:
            for pid in pids:
                self._sampler.watch(pid)
            self._stacks.python.begin()
        except BaseException as error:
            self.close()
            if isinstance(error, KernelRefused) and error.errno in _REFUSALS:
                raise _not_permitted(pid, 1 if off else MOST_PARANOID) from error
            raise
        self.began = time.monotonic()
        """From this moment of the monotonic clock on there are samples."""

    def close(self) -> None:
        """End sampling."""
        self._sampler.close()
        self._stacks.close()

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
        self._stacks.python.look()
        while self._pending and (final or time.monotonic() < until):
            self._handle(self._pending.popleft())
        if not final and not self._pending and self.interval == _LOOKS:
            self._stacks.prepare()

    def _handle(self, record: Record) -> None:
        if isinstance(record, Lost):
            self._lost += record.records
            self._stacks.lost()
        elif isinstance(record, Throttled):
            self._is_throttled = True
        else:
            self._stacks.handle(record)

    def end(self) -> None:
        """Sample no more, and take what has been sampled."""
        if self._ended is None:
            self._processor_ns = self._sampler.processor_ns()
            self._ended = time.monotonic()
            tasks = _tasks(self.pids) if self._off else set[int]()
            self.look(final=True)
            self._still = len(tasks - self._stacks.switched)
            self._stacks.end(round(self._ended * 1e9))
            self._sampler.close()

    def result(self, command: Sequence[str] = (), *, lines: bool = False) -> "Profile":
        """End sampling and return what was sampled, named.

        ``command``: what was started to be sampled; ``lines``: whether functions have the source lines of places.
        """
        from anyprobe.data.snapshots.profile import OFF_HZ, Profile

        self.end()
        assert self._ended is not None
        found = Profile(
            targets=tuple(map(self._stacks.target, self.pids)),
            processes=tuple(self._stacks.processes()),
            duration_s=self._ended - self.began,
            hz=OFF_HZ if self._off else self._sampler.how.hertz,
            waits=self._stacks.waits if self._off else None,
            stacks=self._stacks.named(lines=lines),
            lost=self._lost,
            kernel=self._sampler.how.kernel,
            processor_s=self._processor_ns / 1e9,
            by=self._by,
            warnings=tuple(self._warnings()),
        )
        return replace(found, next=self._next(found, command))

    def _next(self, found: "Profile", command: Sequence[str]) -> str:
        """Return the command to run next: on what was started, else on the busiest process that still runs."""
        from anyprobe.probes.profiling.next_command import next_command

        if self._off:
            return ""
        if command:
            return next_command(found.stacks, ["--", *command])
        for pid in filter(procfs.is_alive, found.busiest):
            line = next_command([each for each in found.stacks if each.pid == pid], ["-p", str(pid)])
            if line:
                return line
        return ""

    def _warnings(self) -> Iterator[str]:
        if self._is_throttled:
            yield "the kernel has taken fewer samples for a while (kernel.perf_cpu_time_max_percent): use a lower --hz"
        if self._still:
            threads = f"{self._still} thread{'s' if self._still > 1 else ''}"
            yield f"{threads} slept, or ran, all the time: without a switch to another, so in no number"
        if self._off and self._lost:
            yield (
                "switches came faster than they could be read, and waits that were under way then are in no number: "
                "with --stack 4096 there is room for more of them"
            )
        if self._stacks.hidden:
            yield "the kernel does not tell the names of its functions: be root, or set kernel.kptr_restrict to 0"
        yield from self._stacks.python.warnings()


def _tasks(pids: Sequence[int]) -> set[int]:
    found = set[int]()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found |= set(procfs.read_tasks(pid))
    return found


def profile(
    pid: int, duration: float = 5.0, *, hz: int = HERTZ, by: str | None = None, stack_bytes: int | None = None,
    off: bool = False, lines: bool = False,
) -> "Profile":  # fmt: skip
    """Show where a process spends its time on processors, by samples; nothing is stopped, and no probe placed.

    Threads and processes that it makes meanwhile are sampled, too.

    Args:
        pid: the process.
        duration: seconds; it ends earlier with the process.
        hz: samples in each second that a thread is on a processor.
        by: ``pid``, ``tid`` or ``comm``: processes, threads or the names of threads are told apart.
        stack_bytes: how much of a stack a sample has; None: as much as there is room for, 65528 at most.
        off: the time off processors instead: all of it, in nanoseconds, by where threads have given theirs up.
        lines: functions have the source lines that were executed, and those that were inlined are told, too.

    Returns:
        The profile, with ``functions``, ``stacks`` and ``next``, the command that probes what is hot.

    Raises:
        PermissionDenied, NoSuchProcess, UnsupportedTarget: it cannot be sampled.
        UsageError: an argument has a value that means nothing.
    """
    with Profiler([pid], hz=hz, by=by, stack_bytes=stack_bytes, off=off) as profiler:
        until = profiler.began + duration
        while (left := until - time.monotonic()) > 0 and procfs.is_alive(pid):
            time.sleep(min(left, profiler.interval))
            profiler.look()
        return profiler.result(lines=lines)


def _check(pid: int) -> None:
    """Refuse what cannot be sampled."""
    from anyprobe.target.process import permission
    from anyprobe.target.process.process import check_exists, check_kind

    check_exists(pid)
    try:
        check_kind(pid)
    except OSError as error:
        if error.errno in _REFUSALS:
            raise permission.explain(pid) from error
        raise NoSuchProcess(f"process {pid} has just ended") from error


def _not_permitted(pid: int, most: int) -> TargetError:
    """Return why the kernel does not let this user sample a process; ``most``: the level up to which it may."""
    from anyprobe.target.kernel import switches
    from anyprobe.target.process import permission

    level = paranoia()
    if level is not None and level > most and not switches.has_capability(switches.CAP_PERFMON):
        return PermissionDenied(
            f"kernel.perf_event_paranoid is {level}",
            f"process {pid} may not be sampled",
            f"be root, or: sysctl kernel.perf_event_paranoid={most}",
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
