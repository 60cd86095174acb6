"""The places where the compiler has put a function's code into others, in a process, by its debug information."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.dwarf.inlined import inlined_instances
from anyprobe.core.errors import SpecError, TargetError
from anyprobe.probes.specs.parts import Part, Spec, in_full, module_part

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.data.findings.explanation import ListedSite
    from anyprobe.probes.session import Session


def instances(session: "Session", name: str, module: str = "") -> list[tuple["LoadedObject", int]]:
    """Return the inlined instances of a function of any module, or of one: their objects and run-time addresses."""
    found = []
    for loaded in session.objects.objects:
        if module and not loaded.matches(module):
            continue
        try:
            addresses = inlined_instances(loaded.image.debug_info, name)
        except TargetError:  # there is no debug information
            continue
        found += [(loaded, loaded.runtime(address)) for address in addresses]
    return found


def listed(session: "Session", specs: Sequence[Spec]) -> "list[ListedSite]":
    """Return the inlined instances of the functions that specs name, and the functions themselves if there are any."""
    sites: list[ListedSite] = []
    for spec in specs:
        found = instances(session, spec.function.text, spec.module.text)
        try:
            sites += session.list(spec)
        except SpecError:
            if not found:
                raise
        if found:
            places = [(module_part(loaded.name), loaded.link_time(at)) for loaded, at in found]
            sites += session.list(*(in_full(part, Part("-", 0), "offset", offset=at) for part, at in places))
    return sites
