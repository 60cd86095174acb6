"""Trials: each mechanism attached for a moment where only this process is hit, and looked at whether it counts.

What the kernel takes does not say that it counts: kprobes may be switched off, and a vendor's kernel may refuse
programs for no reason that it tells.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from anyprobe.core.errors import PermissionDenied, SpecError, TargetError
from anyprobe.probes.providers.kernel import mechanisms
from anyprobe.probes.providers.kernel.attacher import Attacher, Attachment
from anyprobe.probes.providers.kernel.counters import Counters
from anyprobe.probes.providers.kernel.places.sites import KernelNames, Unable
from anyprobe.probes.providers.kernel.places.specs import KernelSpec, parsed
from anyprobe.target.kernel import bpf, perf, programs

_CALLS = 20
_SPIN_S: Final = 0.2
_HERTZ = 999
_PAGE = 4096
_READING = bytes.fromhex(
    "7b1af8ff00000000 bf13000000000000 bfa1000000000000 07010000f8ffffff"
    "b702000008000000 8500000071000000 b700000000000000 9500000000000000"
)
"""``*(u64 *)(fp - 8) = ctx; bpf_probe_read_kernel(fp - 8, 8, ctx); r0 = 0; exit``."""
_OVERRIDING = bytes.fromhex("b702000000000000 850000003a000000 b700000000000000 9500000000000000")
"""``bpf_override_return(ctx, 0); r0 = 0; exit``."""
FUNCTIONS: Final = "functions"
RETURNS: Final = "returns of functions"
TRACEPOINTS: Final = "tracepoints"
TIME: Final = "time and events"
PROGRAMS: Final = "programs"
HANDLERS: Final = "handlers"


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one trial: hits that were counted, of so many that there were, or why there were none."""

    name: str
    at: str
    """Which places it is for; another mechanism for the same may do instead."""
    hits: int = 0
    made: int = 0
    """0: nothing could be hit; it was seen only whether the kernel takes it."""
    problem: str = ""
    denied: bool = False
    """Whether the problem is what this user may do."""

    @property
    def works(self) -> bool:
        """Whether the kernel took it, and all was counted."""
        return not self.problem and self.hits >= self.made


def all_trials() -> Iterator[Trial]:
    """Try everything, one after the other; each is taken away before the next one."""
    names = KernelNames()
    for name in _MECHANISMS:
        yield of_mechanism(names, name)
    yield _by("timers", TIME, _timers, _spin)
    yield _by("software events", TIME, _page_faults, _touch_pages)
    yield _uprobes()
    yield _taken("ring buffer", lambda: bpf.create_ring(_PAGE))
    yield _taken("memory of the kernel", _reading)
    yield _taken("error injection", _overriding)


_ENTRY, _RETURN = parsed(("syscall::getppid:entry", "syscall::getppid:return"))
_RAW, _TRACEPOINT = parsed(("rawtracepoint:sys_enter", "tracepoint:raw_syscalls:sys_enter"))
_MECHANISMS = {
    "fentry": (_ENTRY, FUNCTIONS), "kprobe.multi": (_ENTRY, FUNCTIONS), "kprobe": (_ENTRY, FUNCTIONS),
    "fexit": (_RETURN, RETURNS), "kretprobe.multi": (_RETURN, RETURNS), "kretprobe": (_RETURN, RETURNS),
    "raw_tp": (_RAW, TRACEPOINTS), "tp_btf": (_RAW, TRACEPOINTS),
    "tracepoint": (_TRACEPOINT, TRACEPOINTS),
}  # fmt: skip
"""Where each is tried, and for which places it is."""


def of_mechanism(names: KernelNames, name: str) -> Trial:
    """Try one mechanism."""
    spec, at = _MECHANISMS[name]
    return _mechanism(names, spec, name, at)


def _failed(name: str, at: str, failure: Exception) -> Trial:
    return Trial(name, at, problem=str(failure).splitlines()[0], denied=isinstance(failure, PermissionDenied))


def _getppid() -> int:
    for _ in range(_CALLS):
        os.getppid()
    return _CALLS


def _mechanism(names: KernelNames, spec: KernelSpec, demanded: str, at: str) -> Trial:
    """Place a probe at a system call that does nothing, by one mechanism, and make the call."""
    try:
        (site,) = names.resolve(spec)
        counters = Counters(1)
    except (SpecError, TargetError, OSError) as failure:
        return _failed(demanded, at, failure)
    made: Sequence[Attachment] = ()
    try:
        made, refused = mechanisms.place(Attacher(counters, names), [site], demanded)
        if refused:
            return Trial(demanded, at, problem=refused[0][1].detail.removeprefix(f"{demanded}: "))
        calls = _getppid()
        missed = sum(each.misses() for each in made)
        return Trial(demanded, at, counters.read()[0] + missed, calls)
    finally:
        _end(made, counters)


def _by(name: str, at: str, attach: Callable[[Attachment, bytes], None], run: Callable[[], int]) -> Trial:
    """Attach a program that counts, by what ``attach`` does, and do what it counts."""
    made = Attachment(name, (), ())
    try:
        counters = Counters(1)
    except TargetError as failure:
        return _failed(name, at, failure)
    try:
        attach(made, counters.program(0))
        wanted = run()
        return Trial(name, at, counters.read()[0], wanted)
    except (TargetError, OSError, Unable) as failure:
        return _failed(name, at, failure)
    finally:
        _end([made], counters)


def _end(made: Sequence[Attachment], counters: Counters) -> None:
    for each in made:
        each.close()
    counters.close()


def _timers(made: Attachment, code: bytes) -> None:
    program = made.hold(programs.load(code, programs.Kind(programs.PROGRAM_OF_A_SAMPLE)))
    for processor in sorted(os.sched_getaffinity(0)):
        event = made.hold(perf.open_timer(processor, hertz=_HERTZ))
        made.join(program, event)


def _spin() -> int:
    end = time.thread_time() + _SPIN_S
    while time.thread_time() < end:
        pass
    return 1


def _page_faults(made: Attachment, code: bytes) -> None:
    program = made.hold(programs.load(code, programs.Kind(programs.PROGRAM_OF_A_SAMPLE)))
    for processor in sorted(os.sched_getaffinity(0)):
        event = made.hold(perf.open_software("page-faults", processor))
        made.join(program, event)


def _touch_pages() -> int:
    with mmap.mmap(-1, _CALLS * _PAGE) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with suppress(OSError):  # no such pages in this kernel
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(memory), _PAGE):
            memory[at] = 1
    return _CALLS


def _uprobes() -> Trial:
    """Set a uprobe for all processes in a file that only this one has."""
    name = "uprobe"
    try:
        file = os.memfd_create("anyprobe-doctor", os.MFD_CLOEXEC)
    except OSError as failure:
        return _failed(name, PROGRAMS, failure)
    try:
        os.write(file, bytes.fromhex("90c3").ljust(_PAGE, b"\xcc"))  # nop; ret
        memory = mmap.mmap(file, _PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        address = np.frombuffer(memory, dtype=np.uint8).ctypes.data

        def attach(made: Attachment, code: bytes) -> None:
            program = made.hold(programs.load(code, programs.Kind(programs.PROGRAM_OF_A_KPROBE)))
            event = made.hold(perf.open_uprobe(f"/proc/{os.getpid()}/fd/{file}", 0))
            made.join(program, event)

        def run() -> int:
            function = ctypes.CFUNCTYPE(None)(address)
            for _ in range(_CALLS):
                function()
            return _CALLS

        return _by(name, PROGRAMS, attach, run)
    except OSError as failure:
        return _failed(name, PROGRAMS, failure)
    finally:
        os.close(file)


def _taken(name: str, make: Callable[[], int]) -> Trial:
    """See whether the kernel makes something; nothing of it stays."""
    try:
        os.close(make())
    except TargetError as failure:
        return _failed(name, HANDLERS, failure)
    return Trial(name, HANDLERS)


def _reading() -> int:
    """Load a program that reads memory of the kernel; it is not run."""
    return programs.load(_READING, programs.Kind(programs.PROGRAM_OF_A_KPROBE))


def _overriding() -> int:
    """Load a program that sets a function's result; it is not run."""
    try:
        return programs.load(_OVERRIDING, programs.Kind(programs.PROGRAM_OF_A_KPROBE))
    except programs.VerifierRefusal:
        raise TargetError("the kernel was built without CONFIG_BPF_KPROBE_OVERRIDE") from None
