"""IFUNC symbols: which implementation a process uses, as the slots that its loader filled say."""

from collections.abc import Mapping, Sequence

import numpy as np

from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.binary.objects.functions import Function
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import Memory, MemoryFault


class IfuncSlots:
    """Reads the slots of all loaded modules; call it with an object and one of its IFUNC functions."""

    def __init__(
        self, memory: Memory, objects: Sequence[LoadedObject], seen: "Mapping[int, Sequence[int]] | None" = None
    ) -> None:
        """Read through the target's ``memory``; ``seen``: what resolvers were seen to return, by address."""
        self._memory, self._objects, self._seen = memory, objects, seen or {}
        self._imports: dict[str, list[tuple[LoadedObject, int, str]]] | None = None

    def __call__(self, loaded: LoadedObject, function: Function) -> list[int]:
        """Return the runtime addresses that the process calls for an IFUNC symbol, none if it was not resolved."""
        slots = self._own_slots(loaded, function) + self._import_slots(function)
        found: dict[int, None] = {}
        for slot in slots:
            target = self._target(loaded, function, slot)
            if target:
                found[target] = None
        for address in self._seen.get(loaded.runtime(function.start), ()):
            if self._function_of(loaded, function, address):
                found[address] = None
        return list(found)

    def _own_slots(self, loaded: LoadedObject, function: Function) -> list[int]:
        """Return the slots that the module's own calls go through: IRELATIVE ones name the resolver by address."""
        from anyprobe.binary.objects.relocations import R_IRELATIVE

        fixes = loaded.image.relocations
        rows = np.flatnonzero((fixes.kinds == R_IRELATIVE) & (fixes.addends == function.start))
        return [loaded.runtime(offset) for offset in fixes.offsets[rows].tolist()]

    def _import_slots(self, function: Function) -> list[int]:
        """Return the slots of all modules for the function's names; another version of a name is another function."""
        if self._imports is None:
            self._imports = self._read_imports()
        versions = {name.replace("@@", "@") for name in function.versions}
        return [
            each.runtime(offset)
            for name in function.names
            for each, offset, version in self._imports.get(name, ())
            if not version or not versions or f"{name}@{version}" in versions
        ]

    def _read_imports(self) -> dict[str, list[tuple[LoadedObject, int, str]]]:
        """Return all slots that hold addresses of named functions: by name, the module, the slot, the version."""
        from anyprobe.binary.objects.relocations import R_64, R_GLOB_DAT, R_JUMP_SLOT

        imports: dict[str, list[tuple[LoadedObject, int, str]]] = {}
        for each in self._objects:
            try:
                table, fixes = each.image.dynamic_table, each.image.relocations
            except TargetError:
                continue
            if table is None:
                continue
            rows = fixes.of_kind(R_JUMP_SLOT, R_GLOB_DAT, R_64)
            rows = rows[(fixes.symbols[rows] > 0) & (fixes.symbols[rows] < len(table.symbols))]
            for index, offset in zip(fixes.symbols[rows].tolist(), fixes.offsets[rows].tolist(), strict=True):
                version = table.version(index).lstrip("@")
                imports.setdefault(table.name(index), []).append((each, offset, version))
        return imports

    def _target(self, loaded: LoadedObject, function: Function, slot: int) -> int:
        """Return where a slot leads, 0 unless it is the start of a function of the same module or the vdso.

        A slot that was not resolved yet leads into its own module's PLT; one that another library took over leads
        there. Neither is what this IFUNC chose.
        """
        try:
            address = int.from_bytes(self._memory.read(slot, 8), "little")
        except MemoryFault:
            return 0
        return self._function_of(loaded, function, address)

    def _function_of(self, loaded: LoadedObject, function: Function, address: int) -> int:
        for each in self._objects:
            if address in each and (each is loaded or each.path == VDSO):
                start = each.link_time(address)
                target = each.image.functions.at(start)
                resolver = each is loaded and start == function.start
                return 0 if target is None or target.is_ifunc or resolver else address
        return 0
