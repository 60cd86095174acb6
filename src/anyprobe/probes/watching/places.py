"""What is to be watched: an address, or a variable by its name, and how many bytes; split into watchpoints."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.target.kernel.perf import Watchpoint

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject

MOST = 4
"""Debug registers that a processor has."""
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+")
_SIZES = (8, 4, 2, 1)
_USUAL = 8


class Watched(NamedTuple):
    """Some memory, and what it is called."""

    text: str
    address: int
    size: int

    def watchpoints(self, *, reads: bool) -> list[Watchpoint]:
        """Return the watchpoints that cover it: each of a size at a multiple of that."""
        found, at, end = [], self.address, self.address + self.size
        while at < end:
            size = next(each for each in _SIZES if at % each == 0 and at + each <= end)
            found.append(Watchpoint(at, size, reads))
            at += size
        return found


def find(text: str, objects: "Sequence[LoadedObject]") -> Watched:
    """Return what a text means in a process: ``0x5581e4``, ``a.out:counter``, ``counter``, each with ``:LENGTH``.

    Raises:
        SpecError: it means nothing, or several variables.
    """
    place, length = text, None
    before, _, last = text.rpartition(":")
    if before and _NUMBER.fullmatch(last):
        place, length = before, int(last, 0)
        if not length:
            raise SpecError(text, len(before) + 1, "a length of 0 is nothing to watch")
    if _NUMBER.fullmatch(place):
        return Watched(text, int(place, 0), length or _USUAL)
    module, _, name = place.rpartition(":")
    found = []
    for loaded in objects:
        if (
            not module
            or loaded.name == module
            or loaded.name.startswith(f"{module}.so")
            or (module == "a.out" and loaded.is_executable)
        ):
            from anyprobe.binary.objects.variables import variables_named

            found += [
                (loaded, each.start + loaded.bias, each.size)
                for each in variables_named(loaded.image.symbol_tables, name)
            ]
    if not found:
        where = f" in {module}" if module else ""
        raise SpecError(text, len(module) + bool(module), f"no variable {name!r}{where} with a symbol")
    if len(found) > 1:
        places = ", ".join(f"{loaded.name}:{address:#x}" for loaded, address, _ in found[:8])
        raise SpecError(text, 0, f"several variables have this name: {places}; give an address")
    ((_, address, size),) = found
    return Watched(text, address, length or size or _USUAL)


def split(watched: Sequence[Watched], *, reads: bool) -> list[Watchpoint]:
    """Return all watchpoints; raise ``UnsupportedTarget`` where there are more than debug registers."""
    found = list(dict.fromkeys(point for each in watched for point in each.watchpoints(reads=reads)))
    if len(found) > MOST:
        parts = ", ".join(f"{each.text} ({len(each.watchpoints(reads=reads))})" for each in watched)
        raise UnsupportedTarget(
            f"{parts}: {len(found)} watchpoints are needed, each of 1, 2, 4 or 8 aligned bytes; a processor has {MOST}"
        )
    return found
