"""Which lines of the registrations a session's own probes are: see ``journal.registrations``."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from anyprobe.core.refusal import Reason
from anyprobe.journal.registrations import Entry

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Place, Probe


def enter(session: "ProbeHost", probes: Iterable["Probe"]) -> None:
    """List probes that have been made; those that are part of something else are listed with that."""
    registrations = session.splicing.registrations
    for probe in probes:
        if probe.part_of is None:
            registrations.enter(probe, partial(entries_of, probe))
    registrations.write()


def note(session: "ProbeHost", probes: Iterable["Probe"] | None = None) -> None:
    """Write down what has become of probes, by default of all."""
    registrations = session.splicing.registrations
    if probes is None:
        registrations.note_all()
    else:
        registrations.note([probe if probe.part_of is None else probe.part_of for probe in probes])
    registrations.write()


def entries_of(probe: "Probe") -> list[Entry]:
    """Return the lines of a probe: each place once, what is seen at returns at the function's entry."""
    found: dict[tuple[int, str], bool] = {}
    timed = {id(place) for each in probe.timed for place in each.places}
    for place in [*probe.places, *(place for each in probe.timed for place in each.places)]:
        gone = not place.hook.armed and _gone(place)
        if gone or place.hook.armed:
            found[_where(place, timed=id(place) in timed)] = gone
    return [Entry(address, letter, gone=gone) for (address, letter), gone in found.items()]


def _where(place: "Place", *, timed: bool) -> tuple[int, str]:
    if timed or place.site.kind == "return":
        return place.site.address, "r"
    return place.address, "k"


def _gone(place: "Place") -> bool:
    return place.hook.refusal is not None and place.hook.refusal.reason is Reason.GONE
