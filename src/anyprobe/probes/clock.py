"""TSC ticks to nanoseconds, measured against the monotonic clock over the session itself."""

import ctypes
import mmap
import time
from collections.abc import Callable
from functools import cache

from anyprobe.core.refusal import Reason, Refusal

_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx, 32; or rax, rdx; ret
_SHORTEST = 0.02


@cache
def _rdtsc() -> Callable[[], int]:
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(_RDTSC)
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


class TickClock:
    """Measures how long a TSC tick is, from its making until it is asked."""

    def __init__(self) -> None:
        """Start measuring."""
        self._ticks, self._ns = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        best = None
        for _ in range(5):  # the reading least disturbed between the two clocks
            before = time.monotonic_ns()
            ticks = _rdtsc()()
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, ticks, (before + after) // 2)
        assert best is not None
        return best[1], best[2]

    def ns_per_tick(self) -> float:
        """Return the length of a tick; waits until the measurement spans 20 ms."""
        while True:
            ticks, ns = self._read()
            if ns - self._ns >= _SHORTEST * 1e9:
                return (ns - self._ns) / (ticks - self._ticks)
            time.sleep(_SHORTEST - (ns - self._ns) / 1e9)
