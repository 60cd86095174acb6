"""The functions of sampled addresses, looked up for these alone."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.data.profile import ProfileFrame
from anyprobe.probes.profiling.spaces import Place
from anyprobe.probes.symbols import spelled
from anyprobe.target.kernel import symbols

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.target.kernel.symbols import Symbols

IN_KERNEL = "[kernel]"
NO_FILE = "[anon]"
_PART = re.compile(r"(.+)\.(?:cold|part)(?:\.\d+)?")
"""A part of a function that a compiler has set apart."""


class Names:
    """Names what was sampled; each address once."""

    def __init__(self) -> None:
        """Know none yet."""
        self._functions: dict[tuple[LoadedObject, int], ProfileFrame] = {}
        self._kernel: Symbols | None = None
        self._has_looked = False
        self.hidden = False
        """Whether the kernel does not tell where its functions are."""

    def frame(self, place: Place) -> ProfileFrame:
        """Return the function that an address lies in."""
        where, address = place
        if where == IN_KERNEL:
            return self.in_kernel(address)
        if isinstance(where, (int, str)):
            return ProfileFrame(NO_FILE, NO_FILE)
        return self.function(where, address)

    def function(self, loaded: "LoadedObject", address: int) -> ProfileFrame:
        """Return the function of an object that a link-time address lies in."""
        found = self._functions.get((loaded, address))
        if found is None:
            found = self._functions[loaded, address] = self._named(loaded, address)
        return found

    @staticmethod
    def _named(loaded: "LoadedObject", address: int) -> ProfileFrame:
        name = f"{loaded.name}+{address:#x}"
        with suppress(TargetError):
            table = loaded.image.known_functions
            function = table.containing(address)
            if function is None:
                return ProfileFrame(loaded.name, loaded.image.stub_at(address) or name)
            part = _PART.fullmatch(function.name)
            whole = table.lookup(part[1]) if part else []
            return ProfileFrame(loaded.name, spelled(table, whole[0] if len(whole) == 1 else function), probed=True)
        return ProfileFrame(loaded.name, name)

    def in_kernel(self, address: int) -> ProfileFrame:
        """Return the function of the kernel that an address lies in."""
        if not self._has_looked:
            self._has_looked = True
            try:
                self._kernel = symbols.running()
            except TargetError:
                self.hidden = True
        found = None if self._kernel is None else self._kernel.containing(address)
        return ProfileFrame(IN_KERNEL, IN_KERNEL) if found is None else ProfileFrame(found.module, found.name)
