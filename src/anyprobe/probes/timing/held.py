"""Calls that have begun when a started program is held: what it waits is none of their time."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.probes.probe import Probe
    from anyprobe.probes.timing.clock import Clock


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
        from anyprobe.probes.reading import BankValues

        groups = (group for probe in probes for timed in probe.timed for group in (timed.group, *timed.earlier))
        banks = {id(group.bank): group.bank for group in groups if group.bank is not None}
        waited = self._clock.now() - self._began
        for bank in banks.values():
            BankValues().reader(bank).begin_later(waited)
