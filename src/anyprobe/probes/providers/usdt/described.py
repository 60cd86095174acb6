"""Virtual markers in a file: where the places of its description are in it, or why they are not there."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.objects.markers import Marker, Markers, read_markers
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.probes.providers.usdt.descriptions import (
    DescribedMarker,
    DescribedPlace,
    described_as,
    known_descriptions,
)

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image


def markers_of(image: "Image") -> Markers:
    """Return the markers of a file: those of its notes, and those that descriptions give it."""
    own, virtual = read_markers(image.elf), described_markers(image)
    return Markers(without_replaced(own.found, virtual.found) + virtual.found, own.damaged + virtual.damaged)


def described_markers(image: "Image") -> Markers:
    """Return the markers that descriptions give a file by its build-id, and what is wrong with them."""
    files, problems = known_descriptions()
    found: list[Marker] = []
    wrong = list(problems) if image.is_program else []
    for file in described_as(image.build_id or "", files):
        for marker, placed in placed_in(image, file.markers):
            if isinstance(placed, Marker):
                found.append(placed)
            else:
                wrong.append(f"{file.source}: {marker.provider}:{marker.name} at {marker.place.text}: {placed}")
    return Markers(tuple(found), tuple(wrong))


def without_replaced(own: tuple[Marker, ...], virtual: Sequence[Marker]) -> tuple[Marker, ...]:
    """Return a file's own markers but for those that a description has by the same names."""
    named = {(each.provider, each.name) for each in virtual}
    return tuple(each for each in own if (each.provider, each.name) not in named)


def placed_in(image: "Image", markers: Sequence[DescribedMarker]) -> "Iterator[tuple[DescribedMarker, Marker | str]]":
    """Yield each described marker with the marker that it is in a file, or why it is none."""
    for each in markers:
        try:
            address = _address_of(image, each.place)
        except UnsupportedTarget as error:
            yield each, str(error)
            continue
        yield each, Marker(each.provider, each.name, address, 0, each.arguments)


def _address_of(image: "Image", place: DescribedPlace) -> int:
    if not place.function:
        if not any(place.offset in area for area in image.code_ranges):
            raise UnsupportedTarget(f"there is no code at {place.offset:#x}")
        return place.offset
    functions = {each.start: each for each in image.functions.lookup(place.function)}
    if len(functions) != 1:
        raise UnsupportedTarget(f"{len(functions) or 'no'} functions are called {place.function}")
    (function,) = functions.values()
    if not place.pattern:
        if place.offset >= function.size:
            raise UnsupportedTarget(f"{place.function} has {function.size:#x} bytes")
        return function.start + place.offset
    parts = (b"." if each == "??" else re.escape(bytes.fromhex(each)) for each in place.pattern.split())
    content = image.read(function.start, function.size)
    matches = [found.start() for found in re.finditer(b"(?=" + b"".join(parts) + b")", content, re.DOTALL)]
    if len(matches) != 1:
        raise UnsupportedTarget(f"the pattern is {len(matches)} times in {place.function}, and not once")
    return function.start + matches[0] + place.offset
