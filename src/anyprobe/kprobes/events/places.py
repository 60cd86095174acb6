"""What events have to know of where their session is: symbols, places in files, and the names of addresses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.errors import SpecError, TargetError
from anyprobe.kprobes.events.definition import Definition, Point
from anyprobe.kprobes.events.errors import DefinitionError, Problem
from anyprobe.kprobes.events.fetch import Dereference, Fetch, Symbol
from anyprobe.kprobes.registration import registration_of
from anyprobe.kprobes.structures import Registered

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session


class Places(Protocol):
    """The places of a session."""

    @property
    def knows_caller(self) -> bool:
        """Whether it is known where a function returns to."""
        ...

    def address(self, name: str) -> int | None:
        """Return where a variable or function is, None if there is none."""
        ...

    def in_file(self, point: Point) -> int | None:
        """Return where a place in a file is now, None if it is nowhere."""
        ...

    def name(self, address: int) -> str:
        """Return what an address is called."""
        ...

    def hit(self, ip: int, probes: Sequence[Registered]) -> int:
        """Return where a hit was, of those of some probes; ``ip``: where the processor was then."""
        ...

    def function_of(self, probe: Registered) -> str:
        """Return the function in which a probe is."""
        ...


def places_of(session: "Session | KernelSession") -> Places:
    """Return the places of a session on a process or on the kernel."""
    from anyprobe.probes.providers.kernel.session import KernelSession

    if not isinstance(session, KernelSession):
        return ProcessPlaces(session)
    from anyprobe.kprobes.kernel.event_places import KernelPlaces

    return KernelPlaces(session)


def addresses_of(places: Places, definition: Definition) -> dict[Symbol, int]:
    """Return where the symbols of a definition's arguments are; raise ``DefinitionError`` where there is none."""
    found = {}
    for symbol in (each for argument in definition.arguments for each in _symbols(argument.fetch)):
        address = places.address(symbol.name)
        if address is None:
            raise DefinitionError(definition.line, symbol.position, Problem.BAD_MEM_ADDR)
        found[symbol] = address + symbol.offset
    return found


class ProcessPlaces:
    """The places of a process."""

    knows_caller = True

    def __init__(self, session: "Session") -> None:
        """Look up nothing yet."""
        self._session = session

    def address(self, name: str) -> int | None:
        """Return where a variable or function is, None if there is none."""
        module, _, symbol = name.rpartition(":")
        for loaded in self._session.objects.objects:
            if module and not loaded.matches(module):
                continue
            try:
                address = _variable(loaded.image, symbol)
            except TargetError:  # no object, as a compiler's memory file
                continue
            if address is not None:
                return loaded.runtime(address)
        try:
            sites, _ = self._session.resolve(name)
        except SpecError:
            return None
        return sites[0].address if sites else None

    def in_file(self, point: Point) -> int | None:
        """Return where a place in a file is mapped, None if it is nowhere."""
        for loaded in self._session.objects.objects:
            if loaded.path == point.path:
                for mapping in loaded.mappings:
                    if 0 <= point.offset - mapping.offset < mapping.end - mapping.start:
                        return mapping.start + point.offset - mapping.offset
        return None

    def name(self, address: int) -> str:
        """Return the function that an address is in, and how far."""
        return self._session.symbols.name(address)

    def hit(self, ip: int, probes: Sequence[Registered]) -> int:
        """Return where a hit was: where the program was."""
        del probes
        return ip

    def function_of(self, probe: Registered) -> str:
        """Return the function in which a probe is."""
        made = registration_of(probe)
        return made.location.function if made is not None else "?"


def _variable(image: "Image", name: str) -> int | None:
    """Return the link-time address of a symbol that an object defines."""
    values = (table.value_of(name) for table in image.symbol_tables)
    return next((value for value in values if value is not None), None)


def _symbols(fetch: Fetch) -> list[Symbol]:
    match fetch:
        case Symbol():
            return [fetch]
        case Dereference(_, inner):
            return _symbols(inner)
        case _:
            return []
