"""Addresses of ``@SYMBOL``: of variables as of functions."""

from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.errors import SpecError, TargetError
from anyprobe.kprobes.events.definition import Definition
from anyprobe.kprobes.events.errors import DefinitionError, Problem
from anyprobe.kprobes.events.fetch import Dereference, Fetch, Symbol

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image
    from anyprobe.probes.session import Session


def addresses_of(session: "Session", definition: Definition) -> dict[Symbol, int]:
    """Return where the symbols of a definition's arguments are; raise ``DefinitionError`` where there is none."""
    found = {}
    for symbol in (each for argument in definition.arguments for each in _symbols(argument.fetch)):
        address = _address(session, symbol.name)
        if address is None:
            raise DefinitionError(definition.line, symbol.position, Problem.BAD_MEM_ADDR)
        found[symbol] = address + symbol.offset
    return found


def _address(session: "Session", name: str) -> int | None:
    module, _, symbol = name.rpartition(":")
    for loaded in session.objects.objects:
        if module and not loaded.matches(module):
            continue
        try:
            address = _variable(loaded.image, symbol)
        except TargetError:  # no object, as a compiler's memory file
            continue
        if address is not None:
            return loaded.runtime(address)
    try:
        sites, _ = session.resolve(name)
    except SpecError:
        return None
    return sites[0].address if sites else None


def _variable(image: "Image", name: str) -> int | None:
    """Return the link-time address of a symbol that an object defines."""
    for table in image.symbol_tables:
        names, sections = table.symbols["name"], table.symbols["shndx"]
        for start in table.offsets_of(name):
            for row in np.nonzero((names == start) & (sections != 0))[0].tolist():
                if table.name(row) == name:
                    return int(table.symbols["value"][row])
    return None


def _symbols(fetch: Fetch) -> list[Symbol]:
    match fetch:
        case Symbol():
            return [fetch]
        case Dereference(_, inner):
            return _symbols(inner)
        case _:
            return []
