"""Taking probes out in whose place the program writes: before it meets a jump that it has changed by half."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import Place, Probe
from anyprobe.splice.emitted import EmittedSplice

_WHY = "the program writes to its text here: the probe was taken out, and has counted until then"


def withdrawn(
    told: list[str],
    splices: Sequence[EmittedSplice],
    probes: Sequence[Probe],
    disarm: Callable[[Sequence[Probe], Sequence[Place]], None],
) -> list[str]:
    """Take out the probes that need some splices, whole functions that are timed; return what is to be said.

    ``told`` is what is to be said in any case. Where nothing can be changed at the moment, that is told with it, and
    the next look tries again.
    """
    leaving = set(splices)
    places = [place for probe in probes for place in probe.places if place.hook.splice in leaving]
    places += [
        place
        for probe in probes
        for timed in probe.timed
        if any(each.hook.splice in leaving for each in timed.places)
        for place in (*timed.places, *timed.points.values())
    ]
    timed_ones = (timed for probe in probes for timed in probe.timed)
    places += [place for timed in timed_ones for place in timed.points.values() if place.hook.splice in leaving]
    if not places:
        return told
    with suppress(TargetError):
        disarm([probe for probe in probes if not set(places).isdisjoint(probe.all_places)], places)
    for place in places:
        if not place.hook.armed:
            place.hook.refusal = Refusal(Reason.WRITABLE_TEXT, place.address, _WHY)
    left = sum(place.hook.armed for place in places)
    return [*told, f"{left} of {len(places)} such probes could not be taken out"] if left and told else told
