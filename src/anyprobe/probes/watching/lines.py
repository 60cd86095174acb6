"""Source lines of instructions, each looked up once."""

from bisect import bisect_right
from contextlib import suppress

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.errors import TargetError


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
                self._rows[loaded] = sorted(loaded.image.debug_info.statements())
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
