"""The tables in which a kernel says of its code what the code itself does not: read as they are in its memory.

Each entry begins with 32-bit distances from where they stand. ``struct jump_entry``: a place that a static key rewrites
from ``nop`` to ``jmp`` and back, where that leads, and the key. ``struct exception_table_entry``: an instruction that
may fault, and where control goes on then. ``struct bug_entry``: an ``ud2``, and whether it only warns.
``struct static_call_site``: a call of what a static call leads to now.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.kernel.names import KernelNames
from anyprobe.core.address import AddressRange
from anyprobe.core.memory import Memory, MemoryFault

JUMP_ENTRY = np.dtype([("code", "<i4"), ("target", "<i4"), ("key", "<i8")])
EXCEPTION_ENTRY = np.dtype([("place", "<i4"), ("fixup", "<i4"), ("data", "<i4")])
BUG_ENTRY = np.dtype([("place", "<i4"), ("file", "<i4"), ("line", "<u2"), ("flags", "<u2")])
CALL_SITE = np.dtype([("place", "<i4"), ("key", "<i4")])
ALTERNATIVES = (
    np.dtype([("place", "<i4"), ("by", "<i4"), ("feature", "<u2"), ("size", "u1"), ("by_size", "u1")]),
    np.dtype([("place", "<i4"), ("by", "<i4"), ("feature", "<u4"), ("size", "u1"), ("by_size", "u1")]),
)
"""The forms of ``struct alt_instr`` until and since Linux 6.4."""
_WARNING, _TAIL = 1, 1
_BRANCH_BYTES, _JUMP, _SHORT_JUMP = 5, 0xE9, 0xEB
_UD2_BYTES = 2


class Areas(NamedTuple):
    """Where the tables are, None for those that there are not."""

    keys: AddressRange | None = None
    exceptions: AddressRange | None = None
    bugs: AddressRange | None = None
    calls: AddressRange | None = None
    alternatives: AddressRange | None = None
    """Where replacements of instructions lie in a file: a running kernel has thrown them away."""

    @classmethod
    def of_kernel(cls, names: KernelNames) -> "Areas":
        """Return where the kernel's own are."""
        return cls(
            names.between("__start___jump_table", "__stop___jump_table"),
            names.between("__start___ex_table", "__stop___ex_table"),
            names.between("__start___bug_table", "__stop___bug_table"),
            names.between("__start_static_call_sites", "__stop_static_call_sites"),
            names.between("__alt_instructions", "__alt_instructions_end"),
        )


@dataclass(frozen=True, eq=False)
class KernelTables:
    """The tables of the kernel, or of one of its modules."""

    memory: Memory
    areas: Areas

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """Rows of a place that a static key rewrites, and where it jumps to."""
        table, own = self._table(self.areas.keys, JUMP_ENTRY)
        return np.stack([own + table["code"], own + 4 + table["target"]], axis=1)

    @cached_property
    def fixups(self) -> NDArray[np.int64]:
        """Rows of an instruction that may fault, and where control goes on then."""
        table, own = self._table(self.areas.exceptions, EXCEPTION_ENTRY)
        return np.stack([own + table["place"], own + 4 + table["fixup"]], axis=1)

    @cached_property
    def bugs(self) -> NDArray[np.int64]:
        """Rows of an ``ud2``, and 1 for one that only warns."""
        table, own = self._table(self.areas.bugs, BUG_ENTRY)
        return np.stack([own + table["place"], (table["flags"] & _WARNING).astype(np.int64)], axis=1)

    @property
    def warnings(self) -> NDArray[np.int64]:
        """Where control goes on after each ``ud2`` that only warns."""
        found: NDArray[np.int64] = self.bugs[self.bugs[:, 1] != 0, 0] + _UD2_BYTES
        return found

    @cached_property
    def calls(self) -> NDArray[np.int64]:
        """Rows of a static call, and 1 for one that ends its function."""
        table, own = self._table(self.areas.calls, CALL_SITE)
        tail = (own + 4 + table["key"]) & _TAIL
        return np.stack([own + table["place"], tail], axis=1)

    @cached_property
    def alternatives(self) -> "NDArray[np.int64]":
        """Rows of where code begins that will be replaced by other code, where it ends, and where that jumps, or 0."""
        area = self.areas.alternatives
        kind = next((each for each in ALTERNATIVES if area is not None and len(area) % each.itemsize == 0), None)
        if kind is None:
            return np.empty((0, 3), np.int64)
        table, own = self._table(area, kind)
        places, by = own + table["place"], own + 4 + table["by"]
        ends = places + table["size"]
        aims = [self._aim(*each) for each in zip(by.tolist(), table["by_size"].tolist(), strict=True)]
        return np.stack([places, ends, np.array(aims, np.int64)], axis=1)

    def _aim(self, place: int, size: int) -> int:
        """Return where a jump leads that is put in the place of something, 0 if it is none; it is moved as it is."""
        code = self.memory.read(place, size) if size else b""
        if size >= _BRANCH_BYTES and code[0] == _JUMP:
            return place + _BRANCH_BYTES + int.from_bytes(code[1:5], "little", signed=True)
        return place + 2 + int.from_bytes(code[1:2], "little", signed=True) if code[:1] == bytes([_SHORT_JUMP]) else 0

    def _table(self, area: AddressRange | None, kind: "np.dtype[Any]") -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the entries, and where each of them stands."""
        content = b""
        if area is not None:
            count = len(area) // kind.itemsize
            try:
                content = self.memory.read(area.start, count * kind.itemsize)
            except MemoryFault:
                content = b""
        table = np.frombuffer(content, kind)
        first = 0 if area is None else area.start
        return table, first + kind.itemsize * np.arange(len(table), dtype=np.int64)
