"""The kprobes that are set in the running kernel, as the kernel holds them: what they have put over its own text."""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.types import Struct

_CHAINS, _MOST = 64, 100_000
_WORD = 8
_BY_TRACER, _OPTIMIZED = 8, 4
"""Flags of a kprobe: it is a callback of ftrace; its trap was replaced by a jump."""
_JUMP_REST = 4
_TRAP, _JUMP = 0xCC, 0xE9


class Covered(NamedTuple):
    """Bytes of the kernel's own text that a kprobe has put others over."""

    address: int
    original: bytes


def covered(types: Btf, memory: Memory, table: int) -> list[Covered]:
    """Return what the kprobes in the kernel's table (``kprobe_table``) cover; ftrace's own cover nothing."""
    probe, optimized = types.structure("kprobe"), types.structure("optimized_kprobe")
    if probe is None:
        return []
    return list(_Table(types, memory, probe, optimized).covered(table))


class _Table:
    def __init__(self, types: Btf, memory: Memory, probe: Struct, optimized: Struct | None) -> None:
        self._types, self._memory, self._probe = types, memory, probe
        self._copied = None if optimized is None else self._place(optimized, "optinsn")

    def _place(self, structure: Struct, name: str) -> int | None:
        member = self._types.member(structure, name)
        return None if member is None else member.offset

    def _number(self, address: int, name: str, size: int) -> int:
        place = self._place(self._probe, name)
        return 0 if place is None else int.from_bytes(self._memory.read(address + place, size), "little")

    def covered(self, table: int) -> Iterator[Covered]:
        content = self._memory.read(table, _WORD * _CHAINS)
        for (first,) in struct.iter_unpack("<Q", content):
            probe, left = first, _MOST
            while probe and left:  # what changes meanwhile may lead anywhere, but not for ever
                try:
                    yield from self._one(probe)
                    probe, left = self._word(probe), left - 1
                except MemoryFault:
                    break

    def _word(self, address: int) -> int:
        return int.from_bytes(self._memory.read(address, _WORD), "little")

    def _one(self, probe: int) -> Iterator[Covered]:
        """Yield what a kprobe covers; the list of its chain is its first member."""
        flags, address = self._number(probe, "flags", 4), self._number(probe, "addr", _WORD)
        if flags & _BY_TRACER or not address:
            return
        original = self._number(probe, "opcode", 1).to_bytes(1, "little")
        if flags & _OPTIMIZED and self._copied is not None:
            original += self._memory.read(probe + self._copied, _JUMP_REST)
        yield Covered(address, original)


class PristineMemory:
    """A kernel's memory as it is without the kprobes that are set."""

    def __init__(self, memory: Memory, covers: list[Covered]) -> None:
        """Show what ``covers`` says in the place of traps and jumps."""
        self._memory = memory
        self.covers = sorted(covers)

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them cannot be read."""
        content, after = self._memory.read(address, size), address + size
        first = bisect_left(self.covers, (address - _JUMP_REST,))
        if first == len(self.covers) or self.covers[first].address >= after:
            return content
        changed = bytearray(content)
        for each in self.covers[first:]:
            if each.address >= after:
                break
            self._uncover(changed, each, address)
        return bytes(changed)

    def _uncover(self, content: bytearray, cover: Covered, address: int) -> None:
        """Put back what is covered at the moment: a kprobe may be disabled, or not be optimized yet."""
        head = self._memory.read(cover.address, 1)[0]
        size = {_TRAP: 1, _JUMP: len(cover.original)}.get(head, 0)
        for number in range(size):
            if 0 <= cover.address + number - address < len(content):
                content[cover.address + number - address] = cover.original[number]
