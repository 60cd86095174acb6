"""Who woke threads that slept, as the kernel saw it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from anyprobe.data.aggregates.results import AggregationResult
from anyprobe.data.layouts.cells import CellValue

WOKEN, INTERRUPTED, READY = "woken_ns", "interrupted_ns", "ready_ns"
"""The aggregations of how long threads slept until another one woke them, or an interrupt, and waited for a processor
from then on."""
BY = ("waker", "comm", "waker stack", "waking stack", "sleeping stack", "sleeper stack")
_JOINED = " < "
_TIMERS = ("hrtimer_wakeup", "process_timeout", "it_real_fn", "alarm_handle_timer", "posix_timer_fn")
"""Functions of the kernel in which a time that has passed wakes a thread."""
_ON_THE_WAY = ("__schedule", "schedule", "try_to_wake_up", "default_wake_function", "wake_up_process", "io_schedule")
"""Functions of the kernel through which all come."""


class Waker(StrEnum):
    """What woke a thread."""

    THREAD = "thread"
    TIMER = "timer"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class Woken:
    """Threads that slept in one place, and were woken from one place."""

    waker: Waker
    comm: str
    """The name of the thread that woke them; empty of timers and interrupts, which come in whatever runs there."""
    tid: int
    """Its id, 0 of these."""
    stack: tuple[str, ...]
    """Where it was in its program, innermost first; empty of these. By frame pointers, so it may end soon."""
    waking: tuple[str, ...]
    """Where the kernel woke them."""
    sleeping: tuple[str, ...]
    """Where in the kernel they slept."""
    sleeper: tuple[str, ...]
    """Where in their program they slept; by frame pointers."""
    slept: CellValue
    """Nanoseconds until they were woken, each time."""

    @property
    def is_page_fault(self) -> bool:
        """Whether the threads slept until a page of memory was there."""
        return any("page_fault" in each for each in self.sleeping)


_Frames = tuple[str, ...]
_Pair = tuple[Waker, str, int, _Frames, _Frames, _Frames, _Frames]


def tells_wakers(result: AggregationResult) -> bool:
    """Return whether an aggregation is that of who, or what, woke whom."""
    return (result.name, result.by) in {(WOKEN, BY), (INTERRUPTED, BY[-3:])}


def wakers_in(aggregations: Iterable[AggregationResult]) -> tuple[Woken, ...]:
    """Return who woke whom, those first for whom threads slept longest."""
    found: dict[_Pair, CellValue] = {}
    for each in aggregations:
        if tells_wakers(each):
            for (*by, waking, sleeping, sleeper), cell in each.entries.items():
                kernel = _frames(waking)
                waker = _waker(kernel) if each.name == INTERRUPTED else Waker.THREAD
                tid, comm, stack = by if waker is Waker.THREAD else (0, "", "?")
                # where an interrupt came is chance, what it did is not
                kernel = kernel if waker is Waker.THREAD else kernel[:2]
                key = waker, str(comm), int(tid), _frames(stack), kernel, _frames(sleeping), _frames(sleeper)
                found[key] = found[key].merged(cell) if key in found else cell
    made = [Woken(*key, cell) for key, cell in found.items()]
    return tuple(sorted(made, key=lambda each: (-(each.slept.sum or 0), each.comm, each.stack, each.sleeping)))


def _waker(kernel: tuple[str, ...]) -> Waker:
    return Waker.TIMER if any(each.startswith(_TIMERS) for each in kernel) else Waker.INTERRUPT


def _frames(stack: object) -> tuple[str, ...]:
    frames = tuple(each for each in str(stack).split(_JOINED) if each != "?")
    inner = next((at for at, each in enumerate(frames) if each.partition("+")[0] not in _ON_THE_WAY), 0)
    return frames[inner:]
