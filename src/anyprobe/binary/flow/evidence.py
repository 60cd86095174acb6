"""What instructions read by its address in the code, and which addresses in their own function they take."""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from iced_x86 import Code, MemorySizeExt

from anyprobe.binary.analysis.views import ModuleView
from anyprobe.binary.decoding.code_scan import DataReferences, Kind, Operands, pushed_returns
from anyprobe.binary.decoding.prologues import thunks_in
from anyprobe.core.cachedproperty import cached_property


class Evidence:
    """What the code of one module reads, takes the addresses of, and jumps to in disguise."""

    def __init__(self, code_map: ModuleView) -> None:
        """Look at nothing before it is asked for."""
        self._map = code_map

    def read_in(self, low: int, high: int) -> int | None:
        """Return the first byte of ``[low, high)`` that instructions read or write by its address, if any."""
        first = high
        for target, source in self._operands.into(low, high):
            at, size = self._operand_of(target, source)
            if at < high and at + size > low:
                first = min(first, max(at, low))
        return first if first < high else None

    def _operand_of(self, target: int, source: int) -> tuple[int, int]:
        """Return the address and size of what the instruction with a displacement reads; in doubt it does."""
        home = self._map.containing(source)
        insn = home.covering(source) if home is not None else None
        if insn is None:
            return target, 0 if home is None and self._map.entries.in_padding(source) else 1
        own = insn.iced.is_ip_rel_memory_operand and insn.address + insn.offsets.displacement_offset == source
        return insn.iced.memory_displacement, MemorySizeExt.size(insn.iced.memory_size) if own else 0

    def data_taken(self, low: int, high: int, *, backwards: bool = False) -> Iterator[tuple[int, int]]:
        """Yield the addresses of data in ``[low, high)`` that instructions certainly take, and where in these."""
        found = self._data_references.into(low, high)
        for target, source in reversed(found) if backwards else found:
            if self._takes(source, target):
                yield target, source

    def _takes(self, source: int, target: int) -> bool:
        function = self._map.containing(source)
        insn = function.covering(source) if function is not None and function.broken is None else None
        if insn is None or insn.iced.code != Code.LEA_R64_M or insn.end != source + 6:
            return False
        return insn.iced.memory_displacement == target

    @cached_property
    def _data_references(self) -> DataReferences:
        return DataReferences(self._map.layout.code)

    @cached_property
    def _operands(self) -> Operands:
        return Operands(self._map.layout.code)

    @cached_property
    def thunks(self) -> list[int]:
        """Where something overwrites its return address and returns, ascending: an indirect jump in disguise."""
        return sorted(at for part in self._map.layout.code for at in thunks_in(part))

    @cached_property
    def pushed_returns(self) -> list[int]:
        """Where something returns to what was pushed right before it, or looks like that, ascending: the same."""
        return pushed_returns(self._map.layout.code)

    def may_disguise(self, low: int, high: int) -> bool:
        """Return whether there may be a jump in disguise in ``[low, high)``."""
        pushed = self.pushed_returns
        return bool(self.thunks) or bisect_left(pushed, low) < bisect_left(pushed, high)

    @cached_property
    def self_takers(self) -> frozenset[int]:
        """The functions that may take the address of a piece of themselves."""
        targets, sources, kinds = self._map.entries.references.columns()
        starts = self._map.text.function_starts
        homes = np.searchsorted(starts, targets, "right") - 1
        same = (kinds >= Kind.LEA) & (homes >= 0) & (homes == np.searchsorted(starts, sources, "right") - 1)
        return frozenset(starts[homes[same & (targets != starts[homes])]].tolist())

    def takers_within(self, low: int, high: int) -> dict[int, list[int]]:
        """Return the addresses in ``[low, high)`` that instructions there take, and which ones do."""
        found: dict[int, list[int]] = {}
        for at, source, kind in self._map.entries.references_into(low, high):
            if (kind is Kind.LEA or kind is Kind.ABSOLUTE) and low <= source < high:
                found.setdefault(at, []).append(source)
        return found
