"""Places in files of programs, for uprobes that the kernel sets in all processes: functions and USDT markers."""

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.providers.kernel.places.specs import KernelSpec, Provider
from anyprobe.probes.specs.nearest import nearest_names

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image
    from anyprobe.binary.objects.marker_arguments import MarkerArgument
    from anyprobe.binary.objects.markers import Marker
    from anyprobe.handlers.types.marker import MarkerAt

_LIBRARIES = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib", "/lib")


class InFile(NamedTuple):
    """A place in a file."""

    path: str
    name: str
    """The name of the function or marker, or the address as it was given."""
    offset: int
    """In the file."""
    address: int
    """As the file's own tables have it."""
    semaphore: int = 0
    """Where in the file the number is that says how many listen to a marker, 0 where there is none."""
    marker: "MarkerAt | None" = None
    """The arguments there, if it is a marker."""


def places(spec: KernelSpec) -> list[InFile]:
    """Return the places that a spec means; raise ``SpecError`` with a caret."""
    path = _path(spec)
    try:
        image = _opened(path, os.stat(path).st_mtime_ns)
        found = _markers(spec, image) if spec.provider is Provider.USDT else _functions(spec, image)
    except UnsupportedTarget as refusal:
        raise spec.error(spec.module, str(refusal)) from None
    except MemoryFault:
        raise spec.error(spec.function, "the file has no bytes there") from None
    return found


def _path(spec: KernelSpec) -> str:
    """Return the file that a spec names by its path, as a command or as a library."""
    import glob
    import shutil

    name = spec.module.text
    if "/" in name:
        candidates = [name]
    else:
        command = shutil.which(name)
        candidates = [command] if command else []
        for folder in _LIBRARIES:
            # without a number after it there may be a linker's script
            candidates += sorted(glob.glob(f"{folder}/{glob.escape(name)}.so.*"))
            candidates += glob.glob(f"{folder}/{glob.escape(name)}.so")
    for each in candidates:
        if os.path.isfile(each):
            return os.path.realpath(each)
    raise spec.error(spec.module, "there is no such file, command or library")


@lru_cache(maxsize=8)
def _opened(path: str, modified: int) -> "Image":
    del modified
    from anyprobe.binary.images.image import Image

    return Image.open(path)


def _functions(spec: KernelSpec, image: "Image") -> list[InFile]:
    name = spec.function.text
    if name.startswith("0x"):
        address = int(name, 16)
        return [InFile(image.path, name, image.elf.offset_of(address), address)]
    found = image.functions.match(name)
    if not found:
        nearest = nearest_names(name, image.functions.names())
        raise spec.error(spec.function, f"no function of {image.path} has this name", nearest)
    if spec.offset and not all(spec.offset < each.size for each in found):
        raise spec.error(spec.function, f"{found[0].name} has no more than {found[0].size:#x} bytes")
    made = []
    for each in found:
        address = each.start + spec.offset
        made.append(InFile(image.path, each.name, image.elf.offset_of(address), address))
    return made


def _markers(spec: KernelSpec, image: "Image") -> list[InFile]:
    from anyprobe.binary.objects.markers import dashed
    from anyprobe.probes.providers.usdt.described import markers_of

    markers = markers_of(image).found
    provider, _, name = spec.function.text.rpartition(":")
    found = [
        each
        for each in markers
        if fnmatch.fnmatchcase(each.provider, provider or "*")
        and (fnmatch.fnmatchcase(each.name, name) or each.shown == dashed(name))
    ]
    if not found:
        known = sorted({f"{each.provider}:{each.name}" for each in markers})
        message = f"{image.path} has no marker of this name" if known else f"{image.path} has no USDT markers"
        nearest = nearest_names(spec.function.text, known)
        if not nearest:  # it may have been given without the provider
            close = nearest_names(name, [each.name for each in markers])
            nearest = tuple(full for each in close for full in known if full.partition(":")[2] == each)
        raise spec.error(spec.function, message, nearest)
    offset_of = image.elf.offset_of
    return [
        InFile(
            image.path, f"{each.provider}:{each.name}", offset_of(each.location), each.location,
            offset_of(each.semaphore) if each.semaphore else 0, at,
        )
        for each, at in zip(found, _known(found, image), strict=True)
    ]  # fmt: skip


def _known(found: "list[Marker]", image: "Image") -> "Iterator[MarkerAt]":
    """Yield what handlers know at each place of a marker: arguments of types that hold their values at all places."""
    from anyprobe.handlers.types.marker import MarkerAt, common_types

    located = [[_located(argument, each, image) for argument in each.arguments] for each in found]
    kinds = common_types(located)
    for each, arguments in zip(found, located, strict=True):
        yield MarkerAt.of(f"{each.provider}:{each.name}", arguments, kinds)


def _located(argument: "MarkerArgument", marker: "Marker", image: "Image") -> "MarkerArgument":
    """Return an argument as it can be found in any process: what is in the file by its distance from the marker."""
    from anyprobe.binary.objects.marker_arguments import Constant, InMemory, InRegister
    from anyprobe.binary.objects.symbols import address_of

    operand = argument.operand
    if isinstance(operand, InRegister) and operand.is_vector:
        return replace(argument, operand=None, problem="programs in the kernel do not see vector registers")
    if not isinstance(operand, Constant | InMemory) or not operand.symbol:
        return argument
    try:
        distance = address_of(operand.symbol, image.symbol_tables, image.path) - marker.location
    except UnsupportedTarget as error:
        return replace(argument, operand=None, problem=str(error))
    if isinstance(operand, Constant):
        return replace(argument, operand=None, problem="the address is another one in each process")
    if operand.base not in {"", "rip"}:
        return replace(argument, operand=None, problem="the place is another one in each process")
    moved = replace(operand, base="rip", displacement=operand.displacement + distance, symbol="")
    return replace(argument, operand=moved)
