"""The kernel's modules as the kernel holds them: where their text and their tables are, read from ``struct module``."""

from dataclasses import dataclass

from anyprobe.core.address import AddressRange
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import Memory
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.types import Member, Struct

_TABLES = {
    "keys": ("jump_entries", "num_jump_entries", 16),
    "exceptions": ("extable", "num_exentries", 12),
    "bugs": ("bug_table", "num_bugs", 12),
    "calls": ("static_call_sites", "num_static_call_sites", 8),
}
"""For each table the member with its address, the one with its length, and the bytes of an entry."""
_TEXT_SIZE = ("text_size", "size")


@dataclass(frozen=True, slots=True)
class ModuleAreas:
    """Where the text and the tables of a module are, at the kernel's own addresses."""

    text: AddressRange
    tables: dict[str, AddressRange]
    """By ``keys``, ``exceptions``, ``bugs`` and ``calls``; without those that it has not."""


def areas_of(types: Btf, memory: Memory, address: int) -> ModuleAreas:
    """Return the areas of the module whose ``struct module`` lies at an address (``__this_module``)."""
    structure = types.structure("module")
    if structure is None:
        raise UnsupportedTarget("the kernel's types do not tell what a module is")
    reader = _Reader(types, memory)
    tables: dict[str, AddressRange] = {}
    for name, (place, count, size) in _TABLES.items():
        first, number = reader.number(structure, place, address), reader.number(structure, count, address)
        if first and number:
            tables[name] = AddressRange(first, first + number * size)
    return ModuleAreas(reader.text(structure, address), tables)


class _Reader:
    def __init__(self, types: Btf, memory: Memory) -> None:
        self._types, self._memory = types, memory

    def number(self, structure: Struct, name: str, address: int) -> int | None:
        """Return a number or an address in a structure, None where this kernel's has no such member."""
        member = self._types.member(structure, name)
        return None if member is None else self._read(member, address)

    def _read(self, member: Member, address: int) -> int:
        size = self._types.size_of(member.type) or 0
        return int.from_bytes(self._memory.read(address + member.offset, size), "little")

    def text(self, structure: Struct, address: int) -> AddressRange:
        """Return where the text is: the first of ``mem`` since Linux 6.4, ``core_layout`` before."""
        for name in ("mem", "core_layout"):
            outer = self._types.member(structure, name)
            inner = None if outer is None else self._types.structure(
                "module_memory" if name == "mem" else "module_layout"
            )  # fmt: skip
            if outer is None or inner is None:
                continue
            base = self.number(inner, "base", address + outer.offset)
            sizes = (self.number(inner, each, address + outer.offset) for each in _TEXT_SIZE)
            size = next((each for each in sizes if each), None)
            if base and size:
                return AddressRange(base, base + size)
        raise UnsupportedTarget("the kernel's types do not tell where the text of its modules is")
