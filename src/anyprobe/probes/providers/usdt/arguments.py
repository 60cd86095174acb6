"""Arguments of markers in a process: their types, and where they are in its memory."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.binary.objects.marker_arguments import Constant, InMemory, MarkerArgument
from anyprobe.binary.objects.markers import Marker
from anyprobe.binary.objects.symbols import address_of
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.data.findings.explanation import ListedArgument, ListedMarker
from anyprobe.handlers.types.annotations import Type
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.marker import MarkerAt, common_types, prototype_of

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.resolve import ResolvedSite


def marker_at(site: "ResolvedSite", kinds: tuple[Type | None, ...]) -> MarkerAt:
    """Return what a handler knows at a site; ``kinds``: the types of the marker's arguments, at whatever place."""
    assert site.marker is not None
    return MarkerAt.of(site.label, [_located(each, site.object) for each in site.marker.arguments], kinds)


def kinds_at(sites: "Iterable[ResolvedSite]") -> tuple[Type | None, ...]:
    """Return a type for each argument that holds its values at all of some places."""
    return common_types(
        [_located(each, site.object) for each in site.marker.arguments] for site in sites if site.marker
    )


def prototype_at(sites: "Sequence[ResolvedSite]") -> Prototype:
    """Return the arguments that markers have at all of some places, named ``arg0`` and so on."""
    return prototype_of([marker_at(site, kinds_at([site])) for site in sites])


def listed_marker(site: "ResolvedSite", marker: Marker) -> ListedMarker:
    """Return what there is to know of a marker at a place before it is hit."""
    at = marker_at(site, kinds_at([site]))
    semaphore = site.object.runtime(marker.semaphore) if marker.semaphore else 0
    arguments = tuple(
        ListedArgument(argument.name or f"arg{index}", _shown_type(argument, kind), argument.text, argument.problem)
        for index, (argument, kind) in enumerate(zip(at.arguments, at.kinds, strict=True))
    )
    return ListedMarker(marker.provider, marker.name, semaphore, arguments)


def _shown_type(argument: MarkerArgument, kind: Type | None) -> str | None:
    return "cstr" if argument.is_text and kind is not None else None if kind is None else str(kind)


def _located(argument: MarkerArgument, loaded: "LoadedObject") -> MarkerArgument:
    """Return an argument with the address in the process where its operand names something of the object."""
    operand = argument.operand
    if not isinstance(operand, Constant | InMemory) or not operand.symbol:
        return argument
    try:
        address = loaded.runtime(address_of(operand.symbol, loaded.image.symbol_tables, loaded.name))
    except UnsupportedTarget as error:
        return replace(argument, operand=None, problem=str(error))
    if isinstance(operand, Constant):
        return replace(argument, operand=Constant(operand.value + address))
    return replace(argument, operand=replace(operand, displacement=operand.displacement + address, symbol=""))
