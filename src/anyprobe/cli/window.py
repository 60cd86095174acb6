"""The time in which several programs are measured together: from one moment to another, the same for all."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.data.snapshot import Snapshot

if TYPE_CHECKING:
    from anyprobe.cli.targets import Measured


class Window:
    """What programs have counted before it opened and when it closed: they are armed, and disarmed, one by one.

    A program that comes later is measured from then on, one that ends to its end.
    """

    def __init__(self) -> None:
        """Be open as long as each session is."""
        self._before: dict[int, Snapshot] = {}
        self._last: dict[int, Snapshot] = {}
        self._opened = self._closed = 0.0

    def open(self, sessions: "Iterable[Measured]") -> None:
        """Begin for several sessions, all of them armed."""
        known = list(sessions)
        if len(known) > 1:
            self._opened = time.monotonic()
            self._before = _snapshots(known)

    def begun(self) -> float:
        """Return when it has begun: now, where there is one session alone."""
        return self._opened or time.monotonic()

    def close(self, sessions: "Iterable[Measured]") -> None:
        """End, before the first of them is disarmed."""
        self._closed = time.monotonic()
        if self._before:
            self._last = _snapshots(list(sessions))

    def within(self, of: "Callable[[Measured], Snapshot]") -> "Callable[[Measured], Snapshot]":
        """Have what ``of`` returns of a session be of this time alone."""
        return (lambda session: self._of(session, of(session))) if self._before else of

    def _of(self, session: "Measured", found: Snapshot) -> Snapshot:
        last, before = self._last.get(id(session)), self._before.get(id(session))
        if last is not None and last.target.alive:
            found = replace(
                last,
                target=found.target,
                pause_us=found.pause_us,
                warnings=found.warnings,
                refused=found.refused,
                pending=found.pending,
                maps=found.maps,
            )
        if before is None:
            return found
        from anyprobe.data.interval import since

        seconds = (self._closed or time.monotonic()) - self._opened
        return replace(since(found, before, ""), interval=None, duration_s=seconds)


def _snapshots(sessions: "Sequence[Measured]") -> dict[int, Snapshot]:
    """Return what all have counted by now; what a program has that has just ended is there later, too."""
    from anyprobe.cli import targets
    from anyprobe.probes.still import still

    found = {}
    with still([targets.on_process(each) for each in sessions if each.pid != targets.KERNEL]):
        for each in sessions:
            with suppress(TargetError):
                found[id(each)] = each.snapshot()
    return found
