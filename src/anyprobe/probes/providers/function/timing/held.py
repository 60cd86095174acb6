"""Calls that have begun when a started program is held: what it waits is none of their time."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.probes.clock import Clock
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.splice.regions.code_region import SlotBank
    from anyprobe.target.base import RunningProcess


class Hold:
    """A program's wait for its probes, in the middle of calls that are timed.

    The first probes are in place when a program maps its libraries, those in what the loader chooses (IFUNC) a little
    later, in a call of the C library. To plan them takes seconds where there are many. The program is held meanwhile,
    so no call of another thread goes on, and none sleeps that would have slept as long by itself.
    """

    def __init__(self, clock: "Clock | None") -> None:
        """Begin, with the program held already. ``clock``: that of the timing probes, if there are any."""
        self._clock = clock
        self._began = 0 if clock is None else clock.now()

    def leave_out(self, probes: "Iterable[Probe]") -> None:
        """Have calls in flight begin so much later, before the program goes on."""
        if self._clock is None:
            return
        from anyprobe.probes.providers.function.reading import BankValues

        groups = (group for probe in probes for timed in probe.timed for group in (timed.group, *timed.earlier))
        banks = {id(group.bank): group.bank for group in groups if group.bank is not None}
        waited = self._clock.now() - self._began
        for bank in banks.values():
            BankValues().reader(bank).begin_later(waited)


def held_at_choices(
    process: "RunningProcess",
    clock: "Clock | None",
    place: "Callable[[], Sequence[Probe]]",
    warn: "Callable[..., None]",
) -> Hold:
    """Run a program, whose libraries are mapped, to where the loader has chosen functions, and place what means these.

    Args:
        process: the program, which is held.
        clock: that of the timing probes, if there are any.
        place: places what has been chosen, and returns the probes that have more places than before.
        warn: is told which of these may have missed calls.

    Returns:
        The wait that has begun there, in the middle of calls.
    """
    before_all = process.run_to_relocated()
    hold = Hold(clock)
    probes = place()
    if probes and not before_all:
        names = ", ".join(probe.spec for probe in probes)
        warn(f"{names}: placed where the loader chose functions (IFUNC), after the program's first system call")
    return hold


def open_calls(banks: "Sequence[SlotBank]", owner: int, ns_per_tick: float) -> tuple[int, ...]:
    """Return what a thread is told that waits for anyprobe, to have its open calls begin later: which, at what rate."""
    from anyprobe.probes.providers.function.reading import BankValues
    from anyprobe.splice.codegen.handlers import rendezvous

    places = [
        (bank.piece.address + offset, count)
        for bank in banks
        for offset, count in BankValues().reader(bank).open_calls_of(owner)
    ][: rendezvous.OPEN_LIMIT]
    rate = round((1 << rendezvous.RATE_BITS) / ns_per_tick)
    return rate, len(places), *(word for place in places for word in place)
