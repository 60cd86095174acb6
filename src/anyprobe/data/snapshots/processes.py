"""What each process and thread of a session has counted: of the target, fork children, programs that are executed."""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anyprobe.core.quoting import shown_module

if TYPE_CHECKING:
    from anyprobe.data.findings.calltree import CallNode
    from anyprobe.data.snapshots.snapshot import FunctionTiming

Key = tuple[str, str, str, int, str]
"""A site as all processes have it: its spec, module, function, offset and kind."""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What was probed, a process or the kernel. ``exited`` is the wait status of a process that is gone, if known.

    In JSON it is what a shell would see: the exit status, or 128 and the number of the signal.
    """

    pid: int
    exe: str
    exited: int | None = None
    alive: bool = True
    called: str = ""
    """The name by which it was started; not in JSON."""
    kernel: str = ""
    """The release of the running kernel, where that is what was probed; it has no pid then."""
    pids: tuple[int, ...] = ()
    """The only processes whose hits in the kernel were counted; empty: all were."""
    children: bool = False
    """Whether hits in what these have started were counted, too."""
    without: tuple[int, ...] = ()
    """Processes whose hits in the kernel were left out, anyprobe's own."""
    died_at: int | None = None
    """The instruction at which a fault has ended it, where that is known."""
    died_in: str = ""
    """Whose code that was: ``program`` or ``anyprobe``; empty where no code is known there."""
    died_place: str = ""
    """That instruction by name; of what a patch has displaced, the original."""

    @property
    def killed_by(self) -> str:
        """The name of the signal that has ended it, empty if none has or that is not known."""
        return "" if self.exited is None or not os.WIFSIGNALED(self.exited) else signal_of(self.exited)

    @property
    def is_over(self) -> bool:
        """Whether it has ended by itself: what it has done is whole."""
        return self.exited is not None and not self.killed_by

    @property
    def shell_status(self) -> int | None:
        """What a shell would see as the exit status."""
        if self.exited is None:
            return None
        code = os.waitstatus_to_exitcode(self.exited)
        return 128 - code if code < 0 else code

    @property
    def shown_name(self) -> str:
        """The program's name as a spec may have it."""
        if self.kernel:
            return f"Linux {self.kernel}"
        name = self.called or os.path.basename(self.exe)
        return shown_module(name) if name else "process"

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object; of the kernel its release, and whose hits were counted if not those of all."""
        from anyprobe.data.snapshots.documents import KERNEL, PROCESS

        return (KERNEL if self.kernel else PROCESS).of(self)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One program that a process runs or has run; a number that is given to another process later is another one."""

    pid: int
    exe: str
    generation: int = 1
    """1, and one more with each program that the process has executed."""
    started: float | None = None
    """When the process began, as Unix time; None where it had ended before it was looked at."""
    exited: int | None = None
    """The exit status as a shell would see it, where that can be known."""
    alive: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        from anyprobe.data.snapshots.documents import COUNTED

        return COUNTED.of(self)


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """The hits of one process."""

    process: ProcessInfo
    hits: Mapping[Key, int] = field(default_factory=dict, hash=False)
    """By what tells a site from others: see ``SiteResult.key``."""
    functions: "tuple[FunctionTiming, ...]" = ()
    """The calls of timed functions, of those that were called."""
    tree: "tuple[CallNode, ...]" = ()
    """The tree of timed calls, where that was asked for."""

    def distinct(self) -> "ProcessCounts":
        """Return the same with each function once: see ``Snapshot.distinct``."""
        return replace(self, functions=_distinct(self.functions))


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """The timed calls of one thread."""

    process: ProcessInfo
    tid: int
    """As the program knows it; 0: threads that are not told apart, since there was no room left."""
    name: str = ""
    """As it was last seen; empty where the thread had ended before it was looked at."""
    functions: "tuple[FunctionTiming, ...]" = ()
    """Times of the functions that it has called."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object, without the calls."""
        from anyprobe.data.snapshots.documents import THREAD

        return THREAD.of(self)

    def distinct(self) -> "ThreadTimes":
        """Return the same with each function once: see ``Snapshot.distinct``."""
        return replace(self, functions=_distinct(self.functions))


def _distinct(functions: "Iterable[FunctionTiming]") -> "tuple[FunctionTiming, ...]":
    from anyprobe.data.snapshots.sums import once

    return once(functions, lambda each: (each.spec, each.address))


def by_spec(counts: Iterable[ProcessCounts], sites: Sequence[tuple[str, Key]]) -> dict[ProcessInfo, dict[str, int]]:
    """Return the hits of each process by spec; ``sites``: the spec and the key of each."""
    found: dict[ProcessInfo, dict[str, int]] = {}
    for each in counts:
        hits = found.setdefault(each.process, {})
        for spec, key in sites:
            hits[spec] = hits.get(spec, 0) + each.hits.get(key, 0)
    return found


def signal_of(status: int) -> str:
    """Return the name of the signal that has ended a process with a wait status."""
    number = os.WTERMSIG(status)
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def place_of_death(pc: int, place: str, whose: str) -> str:
    """Return in words where a fault was: the instruction, its name if it has one, and whose code it is."""
    named = f" ({place})" if place else ""
    code = {"program": "in the program's own code", "anyprobe": "in anyprobe's code"}.get(whose)
    return f" at {pc:#x}{named}, {code or 'where no code is known'}"


BUSY = 0.05
"""The share of the time from which on ``busy`` speaks of it."""


def busy(waited: float, stolen: float, *, on_processors: bool) -> list[str]:
    """Return what is to be said of shares of the time in which threads waited, or a hypervisor ran something else.

    Where times are those of threads on processors, waiting is in none of them, which is said instead.
    """
    if on_processors:
        return ["times are those for which threads were on processors"]
    shares = (("a thread of it waited for a processor", waited), ("a hypervisor took", stolen))
    return [
        f"busy machine: {what} {100 * share:.0f} % of the time, which is in wall times"
        for what, share in shares
        if share > BUSY
    ]
