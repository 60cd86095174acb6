"""Handlers for how long calls are on processors, beside how long they take.

Both ends of a call read the kernel's clock of the thread, which is a system call. What one reading takes is in what a
call seems to take by either clock, so a few calls read it once more, and the least of these readings is taken out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anyprobe.data.aggregates.aggregations import Count, Hist, Min, Sum
from anyprobe.data.readers.maps import Map
from anyprobe.data.snapshots.cpu_time import CALLS, CPU, READING, TAILS
from anyprobe.handlers.types.annotations import u64

if TYPE_CHECKING:
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

_FUNCTIONS, _DISTRIBUTIONS = 1 << 14, 1 << 10
_SOME = 63
"""One of so many calls, by the clock, and one more, takes a reading for itself."""
Hit = Any
"""What a handler is called with is typed by their compiler, and so is what they store."""
Stored = Any


def place_cpu_times(session: "Session", specs: "Sequence[str | Spec]") -> None:
    """Time calls of functions, by the clock and by how long their threads are on processors meanwhile.

    Args:
        session: of a process; where it filters its system calls, nothing is known of processors.
        specs: the functions.
    """
    session.host.times.waiting.look()
    calls: Stored = Hist(CALLS, by=("function",), capacity=_DISTRIBUTIONS)
    cpu: Stored = Sum(CPU, by=("function",), capacity=_FUNCTIONS)
    tails: Stored = Count(TAILS, by=("function",), capacity=_FUNCTIONS)
    readings: Stored = Min(READING)
    least: Stored = Map("least", by=("nothing",), capacity=1, shown=False)

    @session.call(*specs, retval=u64)  # whatever they return, it is asked only whether they do
    def begins(ctx: Hit) -> None:
        ctx.data.cpu = ctx.cpu_now
        ctx.data.began = ctx.now

    @begins.ret
    def ends(ctx: Hit) -> None:
        ended = ctx.now
        if ctx.retval is None:
            tails[ctx.func].add()
        elif ctx.data.began is not None:
            wall = ended - ctx.data.began
            now = ctx.cpu_now
            if now is None or ctx.data.cpu is None:
                calls[ctx.func].add(wall)
            else:
                reading = least.get(0, 0)
                if reading == 0 or ended & _SOME == 0:
                    again = ctx.cpu_now
                    if again is not None:
                        readings.add(again - now)
                        if reading == 0 or again - now < reading:
                            reading = again - now
                            least[0] = reading
                spent = now - ctx.data.cpu
                calls[ctx.func].add(wall - min(reading, wall))
                cpu[ctx.func].add(spent - min(reading, spent))
