"""Where calls end that leave their function by a jump: the part of a session that sees to it."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from anyprobe.core.lazily import Lazy
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.times import Times

if TYPE_CHECKING:
    from anyprobe.probes.host import ProbeHost
    from anyprobe.probes.probe import Place, Probe
    from anyprobe.probes.timing.return_points import ReturnPoints


class CallEnds:
    """The callers in which timed calls end, which are known or learned."""

    def __init__(self, host: "ProbeHost", times: Times) -> None:
        """Know no callers yet."""
        self._host, self.lock = host, host.lock
        self._times = times

    @Lazy
    def return_points(self) -> "ReturnPoints":
        """Where calls end that leave their function by a jump."""
        from anyprobe.probes.timing.return_points import ReturnPoints

        return ReturnPoints(self._host)

    @property
    def used(self) -> "ReturnPoints | None":
        """The return points, None where none has been wanted."""
        return CallEnds.return_points.made(self)

    @contextmanager
    def joining(self, probes: "Sequence[Probe]") -> Iterator[None]:
        """Have callers that are known spliced together with functions that leave for these by a jump, in a ``with``."""
        if any(probe.timed for probe in probes):
            self.return_points.join(probes)
        yield

    def place(self, probes: "Sequence[Probe]") -> None:
        """Have calls that leave their function by a jump end in the callers that are known."""
        host = self._host
        if any(probe.timed for probe in probes):
            self._times.waiting.look()
        if any(timed.points for probe in probes for timed in probe.timed):
            from anyprobe.probes.timing.go_tails import given_up

            host.engine.change(given_up(probes))
        if any(probe.timed or probe.handled for probe in probes):
            self.return_points.place(probes)

    def given_up(self, probes: "Sequence[Probe]", places: "Sequence[Place]") -> AbstractContextManager[None]:
        """Have no call end any more in callers that are among the places, which are about to be taken out."""
        followed = [calls for probe in probes for calls in probe.followed]
        return self.return_points.given_up(followed, places) if followed else nullcontext()

    def settle(self, probes: "Sequence[Probe]") -> None:
        """Say in which callers calls end, after probes were removed or armed again."""
        host = self._host
        timed = any(probe.timed for probe in probes)
        if timed or any(probe.handled for probe in probes):
            self.return_points.settle(probes)
        timing = any(timed.armed for probe in host.probes for timed in probe.timed)
        handling = any(place.armed and place.hook.handler for probe in host.probes for place in probe.places)
        if timed and not timing and not handling:
            host.adopting.end()

    def learn(self) -> None:
        """Have calls that leave their function by a jump end in callers that were not known when it was armed."""
        if self.used is not None:  # else nothing is timed; this is asked often, without waiting for the lock
            self._learn()

    @locked
    def _learn(self) -> None:
        host = self._host
        if not host.is_over and not host.splicing.upkeep.evicted:
            self.return_points.learn()
