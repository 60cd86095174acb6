"""Addresses of code by name: ``libc.so.6:malloc+0x1c``, also of a program that has ended."""

from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError

if TYPE_CHECKING:
    from anyprobe.probes.objects import ObjectTable


class Symbols:
    """Names addresses of one process. What it has named keeps its name, whatever is loaded there later."""

    def __init__(self, objects: "ObjectTable") -> None:
        """Look addresses up among the objects of a process."""
        self._objects = objects
        self._known: dict[int, str] = {}

    def name(self, address: int) -> str:
        """Return the function that an address lies in, and how far; the number where there is none."""
        found = self._known.get(address)
        if found is None:
            found = self._known[address] = self._named(address)
        return found

    def name_of_call(self, return_address: int) -> str:
        """Return the place of a call that returns to an address: the function that made it, not the one behind."""
        return self.name(return_address - 1) if return_address else "0x0"

    def _named(self, address: int) -> str:
        loaded = self._objects.at(address)
        if loaded is None:
            try:
                self._objects.refresh()
            except TargetError:  # it is gone, and so is what was loaded since
                return f"{address:#x}"
            loaded = self._objects.at(address)
        if loaded is None:
            return f"{address:#x}"
        try:
            function = loaded.image.functions.containing(address - loaded.bias)
        except TargetError:
            function = None
        if function is None:
            return f"{loaded.name}+{address - loaded.first.start:#x}"
        distance = address - loaded.bias - function.start
        return f"{loaded.name}:{function.demangled}" + (f"+{distance:#x}" if distance else "")
