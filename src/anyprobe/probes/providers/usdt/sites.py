"""Specs of USDT markers to sites: which markers of which loaded objects a spec means."""

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from anyprobe.binary.objects.functions import Function
from anyprobe.binary.objects.markers import Marker, Markers, dashed
from anyprobe.core.errors import SpecError
from anyprobe.core.quoting import quoted, shown_module
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.resolve import (
    Resolution,
    ResolvedSite,
    Unresolved,
    meant_modules,
    readable_modules,
)
from anyprobe.probes.providers.usdt.described import markers_of
from anyprobe.probes.specs.naming import as_spec
from anyprobe.probes.specs.nearest import nearest_names
from anyprobe.probes.specs.parts import Part, Spec

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.target.system.procfs import Mapping

SEMAPHORE_BYTES = 2


@dataclass
class MarkerTable:
    """The markers of one process's objects, read once; ``warn`` is told of damaged notes."""

    warn: Callable[[str], None]
    _markers: "WeakKeyDictionary[Image, Markers]" = field(default_factory=WeakKeyDictionary)

    def of(self, loaded: "LoadedObject") -> tuple[Marker, ...]:
        """Return the markers of an object."""
        image = loaded.image
        known = self._markers.get(image)
        if known is None:
            known = self._markers[image] = markers_of(image)
            for text in known.damaged:
                self.warn(f"{loaded.name}: {text}")
        return known.found

    def resolve(self, spec: Spec, objects: "Sequence[LoadedObject]", mappings: "Sequence[Mapping]") -> Resolution:
        """Return the sites that a spec means; raise ``SpecError`` if it means none.

        ``mappings``: the process's memory; a marker whose semaphore cannot be counted up there is refused.
        """
        chosen = readable_modules(spec, meant_modules(spec, objects))
        sites: dict[tuple[str, int], ResolvedSite] = {}
        refused: dict[tuple[str, int], Unresolved] = {}
        for loaded, marker in self._of_all(spec, chosen):
            site = _site(spec, loaded, marker)
            why = _semaphore_refusal(loaded, marker, mappings)
            if why is None:
                sites.setdefault((site.canonical, site.address), site)
            else:
                refused.setdefault((site.canonical, site.address), Unresolved(site.canonical, why))
        if not sites and not refused:
            raise self._no_marker(spec, chosen)
        return Resolution(tuple(sites.values()), tuple(refused.values()))

    def _of_all(self, spec: Spec, objects: "Sequence[LoadedObject]") -> "Iterator[tuple[LoadedObject, Marker]]":
        for loaded in objects:
            for marker in self.of(loaded):
                if _means(spec, loaded, marker) and _is_within(spec, loaded, marker):
                    yield loaded, marker

    def _no_marker(self, spec: Spec, objects: "Sequence[LoadedObject]") -> SpecError:
        """Return the error for a marker that no chosen object has."""
        there = [(loaded, marker) for loaded in objects for marker in self.of(loaded)]
        where = objects[0].name if len(objects) == 1 else "any of the loaded modules"
        group = spec.group or Part("", 0)
        if not there and (spec.module or not group):
            return spec.error(spec.function, f"there are no USDT markers in {where}")
        mine = [each for loaded, each in there if _is_of(group, loaded, each, alone=not spec.module)]
        if not mine:
            names = {name for loaded, marker in there for name in (marker.provider, loaded.name)}
            message = f"no provider {group.text!r} of USDT markers in {where}"
            return spec.error(group, message, nearest_names(group.text, sorted(names)))
        what = f"no marker {spec.function.text!r} of {group.text}" if group else f"no marker {spec.function.text!r}"
        return spec.error(
            spec.function, f"{what} in {where}", nearest_names(spec.function.text, [each.name for each in mine])
        )


def _means(spec: Spec, loaded: "LoadedObject", marker: Marker) -> bool:
    group = spec.group or Part("", 0)
    return _is_of(group, loaded, marker, alone=not spec.module) and is_named(spec.function, marker.name)


def _is_of(group: Part, loaded: "LoadedObject", marker: Marker, *, alone: bool) -> bool:
    """Return whether a marker's provider is the one meant; ``alone``: the module's name will do as well."""
    return is_named(group, marker.provider) or (alone and loaded.matches(group.text, literal=group.quoted))


def is_named(part: Part, name: str) -> bool:
    """Return whether a part of a spec means a name; a dash stands for two underscores."""
    if part.quoted:
        return part.text in (name, f'"{name}"')
    if not part:
        return True
    return any(
        wanted == each or fnmatch.fnmatchcase(each, wanted)
        for wanted, each in ((part.text, name), (dashed(part.text), dashed(name)))
    )


def _is_within(spec: Spec, loaded: "LoadedObject", marker: Marker) -> bool:
    if spec.within is None or not spec.within or spec.within.text == "*":
        return True
    function = loaded.image.functions.containing(marker.location)
    return function is not None and any(is_named(spec.within, name) for name in (*function.names, function.demangled))


def _site(spec: Spec, loaded: "LoadedObject", marker: Marker) -> ResolvedSite:
    function = loaded.image.functions.containing(marker.location)
    if function is None:
        function = Function(marker.location, marker.location, (f"{loaded.name}+{marker.location:#x}",))
    return ResolvedSite(
        spec.text,
        canonical(loaded.name, marker),
        loaded,
        function,
        marker.location - function.start,
        loaded.runtime(marker.location),
        "usdt",
        shown=as_spec(function.demangled),
        label=f"{_shown(marker.provider)}:{_shown(marker.shown)}",
        marker=marker,
    )


def canonical(module: str, marker: Marker) -> str:
    """Return the spec that means all places of a marker, and nothing else."""
    shown, provider, name = shown_module(module), _shown(marker.provider), _shown(marker.shown)
    if '"' in shown + provider or "/" in shown:
        return f"usdt:{shown}:{provider}:{name}"
    return f"usdt:{shown}/{provider}:{name}"


def _shown(name: str) -> str:
    plain = name.isprintable() and not set(name) & set(':"*?[]()<>{}\\/ +%') and name
    return name if plain else quoted(name)


def _semaphore_refusal(loaded: "LoadedObject", marker: Marker, mappings: "Sequence[Mapping]") -> Refusal | None:
    if not marker.semaphore:
        return None
    address = loaded.runtime(marker.semaphore)
    mapping = next((m for m in mappings if m.start <= address and address + SEMAPHORE_BYTES <= m.end), None)
    if mapping is not None and mapping.writable and mapping.private:
        return None
    what = "is not mapped" if mapping is None else "is in memory that the program cannot write, or shares"
    detail = f"the semaphore at {address:#x} {what}: the program would not know that a tool listens"
    return Refusal(Reason.SEMAPHORE, loaded.runtime(marker.location), detail)
