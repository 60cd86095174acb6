"""Addresses of code by name: ``libc.so.6:malloc+0x1c``, also of a program that has ended."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.quoting import shown_module
from anyprobe.probes.specs.naming import as_spec

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable


class Symbols:
    """Names addresses of one process. What it has named keeps its name, whatever is loaded there later."""

    def __init__(self, objects: "ObjectTable") -> None:
        """Look addresses up among the objects of a process."""
        self.objects = objects
        self._known: dict[int, str] = {}
        self._callers: dict[int, str] = {}

    def name(self, address: int) -> str:
        """Return the function that an address lies in, and how far; the number where there is none."""
        found = self._known.get(address)
        if found is None:
            found = self._known[address] = self._named(address)
        return found

    def stack(self, addresses: Sequence[int]) -> str:
        """Return a stack in one line: where the hit was, then each caller; ``?`` for one of which nothing is known."""
        places = [self.name(address) for address in addresses[:1]]
        places += [self.name_of_caller(address) for address in addresses[1:]]
        return " < ".join(places) or "?"

    def name_of_caller(self, return_address: int) -> str:
        """Return the function that made a call, and where it goes on: the address behind may be another function's."""
        found = self._callers.get(return_address)
        if found is None:
            found = self._callers[return_address] = self._named(return_address - 1, 1)
        return found

    def _named(self, address: int, behind: int = 0) -> str:
        """Return an address by name, as ``behind`` bytes further on in the same function."""
        loaded = self.objects.at(address)
        if loaded is None:
            try:
                self.objects.refresh()
            except TargetError:  # it is gone, and so is what was loaded since
                return f"{address + behind:#x}"
            loaded = self.objects.at(address)
        if loaded is None:
            return f"{address + behind:#x}"
        try:
            function = loaded.image.functions.containing(address - loaded.bias)
        except TargetError:
            function = None
        if function is None:
            return f"{shown_module(loaded.name)}+{address + behind - loaded.first.start:#x}"
        distance = address + behind - loaded.bias - function.start
        if function.name.endswith(f"+{function.start:#x}"):  # it has no name: once is enough
            return f"{shown_module(loaded.name)}+{function.start + distance:#x}"
        several = len(loaded.image.functions.lookup(function.name)) > 1
        name = f"{function.demangled}@{function.start:#x}" if several else function.demangled
        return f"{shown_module(loaded.name)}:{as_spec(name)}" + (f"+{distance:#x}" if distance else "")
