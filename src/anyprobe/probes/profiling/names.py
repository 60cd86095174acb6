"""The functions of sampled addresses, looked up for these alone."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.errors import TargetError
from anyprobe.data.snapshots.profile import ProfileFrame
from anyprobe.probes.profiling.compiled_names import compiled_names
from anyprobe.probes.profiling.spaces import ENTRY_BYTES, Place
from anyprobe.probes.stacks.interpreter import Function
from anyprobe.probes.stacks.lines import FrameLines
from anyprobe.probes.stacks.symbols import spelled
from anyprobe.target.kernel import symbols

if TYPE_CHECKING:
    from anyprobe.target.kernel.symbols import Symbols

IN_KERNEL = "[kernel]"
NO_FILE, COMPILED = "[anon]", "[jit]"
"""The modules of code in no file: of unknown functions, and of those that a compiler at run time has told."""
_PART = re.compile(r"(.+)\.(?:cold|part)(?:\.\d+)?")
"""A part of a function that a compiler has set apart."""


class Names:
    """Names what was sampled; the functions of each object together."""

    def __init__(self, places: Iterable[Place], *, lines: bool = False) -> None:
        """Name some places; ``lines``: with source lines, and what was inlined."""
        self._lines = FrameLines() if lines else None
        self._functions: dict[tuple[LoadedObject, int], ProfileFrame] = {}
        addresses: dict[LoadedObject, set[int]] = {}
        in_no_file: dict[int, set[int]] = {}
        for where, address in places:
            if isinstance(where, int):
                in_no_file.setdefault(where, set()).add(address)
            elif isinstance(where, LoadedObject):
                addresses.setdefault(where, set()).add(address)
        self._compiled = {
            (pid, address): name for pid, own in in_no_file.items() for address, name in compiled_names(pid, own)
        }
        for loaded, own in addresses.items():
            self._functions |= {(loaded, address): frame for address, frame in _named(loaded, own)}
        self._kernel: Symbols | None = None
        self._has_looked = False
        self.hidden = False
        """Whether the kernel does not tell where its functions are."""

    def frames(self, place: Place) -> list[ProfileFrame]:
        """Return the function that an address lies in, and before it what was inlined there, if lines are wanted."""
        frame, (where, address) = self._frame(place), place
        if self._lines is None or not isinstance(where, LoadedObject):
            return [frame]
        inlined, line = self._lines.inlined(where, address)
        inner = (ProfileFrame(frame.module, name, inlined=True, line=at) for name, at in inlined)
        return [*inner, frame._replace(line=line)]

    def _frame(self, place: Place) -> ProfileFrame:
        where, address = place
        if where == IN_KERNEL:
            return self.in_kernel(address)
        if isinstance(where, str):
            return ProfileFrame(NO_FILE, NO_FILE)
        if isinstance(where, Function):
            return ProfileFrame(where.module, where.name, python=True)
        if isinstance(where, int):
            name = self._compiled.get((where, address))
            return ProfileFrame(NO_FILE, NO_FILE) if name is None else ProfileFrame(COMPILED, name)
        return self._functions[where, address]

    def in_kernel(self, address: int) -> ProfileFrame:
        """Return the function of the kernel that an address lies in."""
        if not self._has_looked:
            self._has_looked = True
            try:
                self._kernel = symbols.running()
            except TargetError:
                self.hidden = True
        found = None if self._kernel is None else self._kernel.containing(address)
        module, name = (IN_KERNEL, IN_KERNEL) if found is None else (found.module, found.name)
        return ProfileFrame(module, name, kernel=True)


def _named(loaded: "LoadedObject", addresses: Iterable[int]) -> Iterator[tuple[int, ProfileFrame]]:
    """Yield the functions of an object that link-time addresses lie in."""
    try:
        table = loaded.image.known_functions
        found = {address: table.containing(address) for address in addresses}
        names = {function.name for function in found.values() if function is not None}
        parts = {name: part[1] for name in names if (part := _PART.fullmatch(name))}
        starts = table.starts_of(names | set(parts.values()))
    except TargetError:  # its file cannot be read
        yield from ((address, ProfileFrame(loaded.name, f"{loaded.name}+{address:#x}")) for address in addresses)
        return
    for address, function in found.items():
        if function is None or function.name == f"{loaded.image.name}+{loaded.image.entry:#x}":
            begins = function is not None or 0 <= address - loaded.image.entry < ENTRY_BYTES
            name = "_start" if begins else loaded.image.stub_at(address) or f"{loaded.name}+{address:#x}"
            yield address, ProfileFrame(loaded.name, name)
            continue
        whole = starts.get(parts.get(function.name, ""), [])
        owner = (table.at(whole[0]) if len(whole) == 1 else None) or function
        name = spelled(owner, several=len(starts.get(owner.name, ())) > 1)
        yield address, ProfileFrame(loaded.name, name, probed=True)
