"""Source lines of instructions, each looked up once, and the functions that were inlined there."""

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.binary.objects.demangle import spellings
from anyprobe.core.errors import TargetError
from anyprobe.probes.specs.naming import as_spec

if TYPE_CHECKING:
    from anyprobe.binary.dwarf.scopes import Scope


class SourceLines:
    """Finds the source line of an instruction."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._rows: dict[LoadedObject, list[tuple[int, str, int]]] = {}
        self._known: dict[tuple[LoadedObject, int], str] = {}

    def at(self, loaded: LoadedObject, address: int) -> str:
        """Return the source line of an instruction, by its address in the file; empty where none is known."""
        if loaded not in self._rows:
            self._rows[loaded] = []
            with suppress(TargetError):
                # of several at one address, as where code was inlined, the last one is the instruction's
                self._rows[loaded] = sorted(loaded.image.debug_info.statements(), key=lambda row: row[0])
        if (loaded, address) not in self._known:
            self._known[loaded, address] = self._find(loaded, address)
        return self._known[loaded, address]

    def _find(self, loaded: LoadedObject, address: int) -> str:
        rows = self._rows[loaded]
        at = bisect_right(rows, address, key=lambda row: row[0]) - 1
        with suppress(TargetError):
            function = loaded.image.function_around(address)
            if at >= 0 and function is not None and rows[at][0] >= function.start:
                return f"{rows[at][1]}:{rows[at][2]}"
        return ""


class FrameLines:
    """Tells of places on stacks, besides the function, the source line, and which functions were inlined there."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._lines = SourceLines()
        self._scopes: dict[LoadedObject, list[Scope]] = {}
        self._known: dict[tuple[LoadedObject, int, str], list[str]] = {}

    def places(self, loaded: LoadedObject, address: int, name: str) -> list[str]:
        """Return the functions whose code is at an address of the file, innermost first, each with its line.

        ``name`` is that of the function that is called there; alone where there is no debug information.
        """
        key = loaded, address, name
        if key not in self._known:
            self._known[key] = self._places(loaded, address, name)
        return self._known[key]

    def _places(self, loaded: LoadedObject, address: int, name: str) -> list[str]:
        inlined, at = self.inlined(loaded, address)
        module = name.partition(":")[0]
        return [*(f"{module}:{as_spec(each)} ({line})" for each, line in inlined), f"{name} ({at})" if at else name]

    def inlined(self, loaded: LoadedObject, address: int) -> tuple[list[tuple[str, str]], str]:
        """Return the functions that were inlined at an address, innermost first, each with its line; and the line.

        That of the function itself, in which they were; empty where there is no debug information.
        """
        at, found = self._lines.at(loaded, address), []
        for scope in self._inlined(loaded, address) if at else ():
            found.append((spellings(scope.name).plain, _short(at)))
            at = f"{scope.called_in}:{scope.called_at}"
        return found, _short(at)

    def _inlined(self, loaded: LoadedObject, address: int) -> "list[Scope]":
        """Return the inlined code that an address is in, the innermost first."""
        if loaded not in self._scopes:
            from anyprobe.binary.dwarf.scopes import scopes_of

            self._scopes[loaded] = []
            with suppress(TargetError):
                self._scopes[loaded] = [each for each in scopes_of(loaded.image.debug_info) if each.called_at]
        there = {each.instance: each for each in self._scopes[loaded] if each.begin <= address < each.end}
        return sorted(there.values(), key=lambda each: -each.depth)


def _short(place: str) -> str:
    """Return a source line without the folder of its file."""
    return place.rpartition("/")[2]
