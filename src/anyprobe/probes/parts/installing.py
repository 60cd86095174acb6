"""What is installed in a process, kept right: placed, taken out, and what a program does to it noticed."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.timing import CallEnds, Times
from anyprobe.probes.providers import provided
from anyprobe.probes.providers.function.outside import registering
from anyprobe.probes.providers.function.probe import Place, Probe, edits_for, places_of
from anyprobe.probes.target_errors import typed

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost


class Installer:
    """Installs probes that have been resolved, and takes them out."""

    def __init__(self, host: "ProbeHost", times: Times, calls: CallEnds) -> None:
        """Have installed nothing yet."""
        self._host, self.lock = host, host.lock
        self._times, self._calls = times, calls

    @locked
    def disarm(self, probes: Sequence[Probe], places: Sequence[Place]) -> None:
        """Put the program's own bytes back at some places of probes."""
        host = self._host
        if host.closed:
            host.check_attached()
        with typed(host.process, "disarming probes in"), self._calls.given_up(probes, places):
            host.warn(*host.functions.detach(places))
        registering.note(host, probes)

    def place(self, probes: Sequence[Probe]) -> None:
        """Install probes that have been resolved, or none of them."""
        host = self._host
        with typed(host.process, "arming probes in"):
            told = provided.attach(probes)
            try:
                with self.adopting_children(probes), self._calls.joining(probes), self._gated():
                    told += self._attach(places_of(probes, fresh=True))
            except BaseException:
                provided.detach(probes)
                raise
        host.warn(*told)

    def _gated(self) -> AbstractContextManager[None]:
        """Have threads wait where they enter functions whose blocks get their probes then."""
        gate = self._host.entry_gate
        return nullcontext() if gate is None else gate.placing()

    def _attach(self, places: Sequence[Place]) -> Sequence[str]:
        host = self._host
        if host.began is not None and host.process.held is None:  # else the time of results has not begun
            since = round(self._times.duration(), 3)
            for place in places:
                place.since = since
        if host.slices is None:
            return host.functions.attach(places)
        return host.slices.attach(places, host.functions.attach)

    def fall_back(self, probes: Sequence[Probe]) -> None:
        """See to functions whose exits could not all be spliced, and to markers that go after their nops."""
        host = self._host
        with typed(host.process, "arming probes in"):
            served = host.trampolines.fall_back(probes) if any(map(_ends, probes)) else []
            host.engine.change(edits_for([*served, *self._moved(probes)]))
        self._calls.place(probes)

    @contextmanager
    def adopting_children(self, probes: Sequence[Probe], *, first: bool = False) -> Iterator[None]:
        """Let fork children be timed, if probes placed within a ``with`` block time anything, or have handlers.

        ``first``: what that needs is placed before, not together with them.
        """
        host = self._host
        handled = any(place.has_handler for probe in probes for place in probe.all_places)
        if not handled and not any(probe.timed for probe in probes):
            yield
            return
        edits = self._times.clock_watch.edits(probes)
        if host.options.children == "count":
            edits = host.adopting.with_edits(edits)
        if first:
            host.engine.change(edits)
            yield
        else:
            with host.functions.joining(edits):
                yield
        host.adopting.settle()

    def note_losses(self) -> None:
        """See what is no longer there: libraries unmapped, everything removed by another anyprobe."""
        host = self._host
        if host.ended is None and host.splicing.upkeep.is_installed and not host.became():
            with suppress(TargetError):  # a program that has ended has lost nothing
                self._look_for_losses()

    def _look_for_losses(self) -> None:
        """Tell of libraries that are unmapped, and of text that was written to or given back by another anyprobe."""
        host = self._host
        mappings, upkeep = host.process.mappings(), host.splicing.upkeep
        upkeep.note_losses(mappings)
        host.splicing.registrations.write()
        told, splices = upkeep.look_at_text(mappings)
        if splices:
            from anyprobe.probes.providers.function.wanted.withdrawal import withdrawn

            told = withdrawn(told, splices, host.probes, self.disarm)
        host.warn(*told, *host.copies.uncounted(host.probes, mappings))
        if upkeep.evicted:
            host.warn("another anyprobe has removed these probes; they have counted until then")

    @locked
    def follow_handlers(self, *, often: bool = False) -> None:
        """Have signal handlers that the program has set since the last look see its own pcs while probes are hit.

        Costs a glance at ``/proc`` where there are none; ``often``: how it is called, so that not each has to be seen.
        """
        host = self._host
        there = host.ended is None and not host.held and host.splicing.upkeep.is_installed
        if there and not host.process.exited() and host.became() is None:
            # what fails is tried again at the next look
            with suppress(TargetError), typed(host.process, "splicing signal handlers of"):
                host.warn(*host.handler_watch.follow(often=often))
                from anyprobe.probes.providers.function.outside import requests

                requests.look(host)

    @staticmethod
    def _moved(probes: Sequence[Probe]) -> "Iterable[Place]":
        """Return the places of markers that move to after the marker's nop."""
        if all(place.site.marker is None for probe in probes for place in probe.all_places):
            return ()
        from anyprobe.probes.providers.usdt.after_nop import moved_after

        return moved_after(probes)


def _ends(probe: Probe) -> bool:
    """Return whether a probe is also, or only, about the ends of calls."""
    return bool(probe.exitless or probe.timed) or any(place.exit is not None for place in probe.places)
