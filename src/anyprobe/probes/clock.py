"""The clocks of timing probes: the time stamp counter, or the vdso's monotonic clock where the TSC cannot serve."""

import ctypes
import math
import mmap
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from anyprobe.binary.images.modules import VDSO
from anyprobe.core.errors import UsageError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.encode import machine_code
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.target.base import RunningProcess

CLOCKS = ("auto", "tsc", "monotonic", "cpu")
_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_READ_BY_VDSO = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page")
"""Clock sources that the vdso reads itself; for others its functions make a system call."""

_RDTSC = "rdtsc; shl rdx, 32; or rax, rdx; ret"
_SHORTEST = 0.02
_TRIES = 200
_UNDISTURBED = 2_000
"""How often two clocks are read together at most, until no more than so many nanoseconds lie between them."""
_READINGS = 500
"""How often a clock is read to see by what it goes on."""


@cache
def _rdtsc() -> Callable[[], int]:
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(machine_code(_RDTSC))
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    function = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def read() -> int:
        return int(function()) if page is not None else 0  # the closure keeps the page mapped

    return read


def tsc_refusal() -> Refusal | None:
    """Return why the TSC cannot serve as a clock here: it must tick at one rate on all cores in all power states."""
    with open("/proc/cpuinfo") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    if "constant_tsc" in flags and "nonstop_tsc" in flags:
        return None
    return Refusal(Reason.NO_INVARIANT_TSC, 0, "this machine's time stamp counter does not tick evenly; count instead")


class Clock(Protocol):
    """What tells how long a unit of the recorded times is."""

    def now(self) -> int:
        """Return this moment, in units."""
        ...

    def ns_per_tick(self) -> float:
        """Return the length of a unit in nanoseconds."""
        ...

    def step_ns(self) -> float:
        """Return by how many nanoseconds it goes on at once."""
        ...


class ClockChoice:
    """Which clock the timing probes of one session use. Chosen once, when the first is asked for."""

    def __init__(self, asked: str, pid: int) -> None:
        """Remember what the user asked for."""
        if asked not in CLOCKS:
            raise UsageError(f"unknown clock {asked!r}; one of {', '.join(CLOCKS)}")
        self._asked, self._pid = asked, pid
        self._chosen = self._checked = False
        self._refusal: Refusal | None = None
        self.address = 0
        """The vdso's ``clock_gettime``, or 0 for the TSC."""
        self.on_processors = asked == "cpu"
        """Whether the time of threads is told that they are on processors."""

    def choose(self, objects: "Iterable[LoadedObject]", *, probed: bool) -> Refusal | None:
        """Choose the clock; return why there is none. ``probed``: whether code of the vdso is probed."""
        if not self._chosen:
            self._chosen = True
            self._refusal = tsc_refusal() if self._asked != "monotonic" else None
            if self.on_processors:
                self._refusal = self._refusal or self._filtered("threads ask for their time on processors")
            if self._asked == "monotonic" or (self._asked == "auto" and self._refusal is not None):
                self._refusal = self._choose_vdso(objects)
        if self.address and probed:
            return own_clock(self.address)
        return self._refusal

    def check_permission(self, process: "RunningProcess", pause_us: dict[str, int]) -> Refusal | None:
        """Return a refusal where the program's threads may not read the time stamp counter (safety rule 25)."""
        if not self._checked:
            self._checked = True
            answer = process.timestamps()
            pause_us["prepare"] += answer.pause_us
            if answer.why_not:
                reason = Reason.TSC_FORBIDDEN if answer.forbidden else Reason.TSC_UNKNOWN
                self._refusal = Refusal(reason, 0, f"{answer.why_not}; count instead")
        return self._refusal

    def _filtered(self, what: str) -> Refusal | None:
        """Return a refusal where system calls are filtered, as what is done by them may be punished."""
        if procfs.read_status(self._pid).get("Seccomp", "0") == "0":
            return None
        detail = f"{what} by system calls, which the process filters; time without --clock cpu"
        return Refusal(Reason.NO_CPU_CLOCK, 0, detail)

    def _choose_vdso(self, objects: "Iterable[LoadedObject]") -> Refusal | None:
        """Take the vdso's function, unless it would make a system call that a filter may punish."""
        address = vdso_clock(objects)
        if address == 0:
            return Refusal(Reason.NO_INVARIANT_TSC, 0, "the process has no vdso with a clock; count instead")
        if procfs.read_status(self._pid).get("Seccomp", "0") != "0" and clock_source() not in _READ_BY_VDSO:
            detail = "reading the clock is a system call here, and the process filters its system calls; count instead"
            return Refusal(Reason.NO_INVARIANT_TSC, 0, detail)
        self.address = address
        return None

    @property
    def rate(self) -> int:
        """The ticks of a nanosecond, times two to the 32, where times are those on processors, else 0."""
        return (1 << 64) // tick_nanoseconds() if self.on_processors else 0

    def start(self) -> Clock:
        """Return the clock, running from now on."""
        return NanosecondClock() if self.address else TickClock()


def clock_source() -> str:
    """Return the name of the kernel's clock source."""
    try:
        with open(_SOURCE) as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def vdso_clock(objects: "Iterable[LoadedObject]") -> int:
    """Return the run-time address of the vdso's ``clock_gettime``, 0 if there is none."""
    for loaded in objects:
        if loaded.name == VDSO:
            for function in loaded.image.functions.lookup("__vdso_clock_gettime"):
                return loaded.runtime(function.start)
    return 0


def own_clock(address: int) -> Refusal:
    """Return the refusal for probes in the code that timing probes call: they would count and time themselves."""
    return Refusal(Reason.OWN_CLOCK, address, "timing probes of this session read their clock through the vdso")


@cache
def tick_nanoseconds() -> int:
    """Return the nanoseconds of a tick, times two to the 32: measured once, so that times of sessions can be compared.

    It may be off by a few millionths, so what is converted by it is near a true clock only together with ``own_time``.
    """
    return round(TickClock().ns_per_tick() * (1 << 32))


def own_time() -> tuple[int, int]:
    """Return this moment as ``ctx.now`` has it, and on the kernel's monotonic clock, in nanoseconds."""
    clock = TickClock()
    return clock.ticks * tick_nanoseconds() >> 32, clock.ns


def own_time_at(monotonic_s: float) -> int:
    """Return a moment of the kernel's monotonic clock, in seconds, as ``ctx.now`` has it, in nanoseconds."""
    own, monotonic = own_time()
    return own - monotonic + round(monotonic_s * 1e9)


@cache
def _step_of_ticks() -> int:
    """Return by how many ticks the time stamp counter goes on at once.

    Hardware and hypervisors may keep a slower counter, of which it is a multiple.
    """
    read = _rdtsc()
    readings = [read() for _ in range(_READINGS)]
    return math.gcd(*(after - before for before, after in pairwise(readings))) or 1


@cache
def step_of_handlers() -> float:
    """Return by how many nanoseconds ``ctx.now`` goes on at once."""
    return _step_of_ticks() * tick_nanoseconds() / (1 << 32)


@cache
def _step_of_monotonic() -> float:
    """Return by how many nanoseconds the monotonic clock goes on at once, where it is not derived from the TSC.

    It cannot be told from how long a reading takes, which hides smaller steps just as well.
    """
    readings = sorted({time.monotonic_ns() for _ in range(_READINGS)})
    return float(min((after - before for before, after in pairwise(readings)), default=1))


class NanosecondClock:
    """The monotonic clock, whose unit is the nanosecond."""

    def now(self) -> int:
        """Return this moment."""
        return time.monotonic_ns()

    def ns_per_tick(self) -> float:
        """Return 1."""
        return 1.0

    def step_ns(self) -> float:
        """Return the step of what it is derived from."""
        return max(1.0, step_of_handlers()) if clock_source() in _READ_BY_VDSO else _step_of_monotonic()


class TickClock:
    """Measures how long a TSC tick is, from its making until it is asked."""

    def __init__(self) -> None:
        """Start measuring."""
        self.ticks, self.ns = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        best = (1 << 62, 0, 0)
        for tries in range(_TRIES):  # the reading least disturbed between the two clocks
            before = time.monotonic_ns()
            ticks = _rdtsc()()
            after = time.monotonic_ns()
            best = min(best, (after - before, ticks, (before + after) // 2))
            if best[0] <= _UNDISTURBED and tries >= 4:
                break
        return best[1], best[2]

    def now(self) -> int:
        """Return what the counter says."""
        return _rdtsc()()

    def ns_per_tick(self) -> float:
        """Return the length of a tick; waits until the measurement spans 20 ms."""
        while True:
            ticks, ns = self._read()
            if ns - self.ns >= _SHORTEST * 1e9:
                return (ns - self.ns) / (ticks - self.ticks)
            time.sleep(_SHORTEST - (ns - self.ns) / 1e9)

    def step_ns(self) -> float:
        """Return the length of the ticks that it goes on by at once."""
        return _step_of_ticks() * self.ns_per_tick()
