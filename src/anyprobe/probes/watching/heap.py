"""Allocations of glibc's malloc: which of them holds an address, and what lies right before and after it.

A chunk has its size in the word before what the program uses; that of the next chunk follows what may be used. So who
writes past an allocation changes that word first, and who writes before it the own one. How many bytes were asked for
is nowhere: up to 15 after them may be used without harm, and are not told from others unless the length is given.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import SpecError
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.watching.places import Watched

if TYPE_CHECKING:
    from anyprobe.target.system.procfs import Mapping

_WORD, _HEADER, _LEAST = 8, 16, 32
_MAPPED, _FLAGS = 2, 7
_MOST_CHUNKS = 4_000_000


class Allocation(NamedTuple):
    """What of the heap may be used by who has allocated it."""

    start: int
    end: int

    def outside(self, length: int) -> list[Watched]:
        """Return the memory right before and after it; after ``length`` bytes, if so many were asked for."""
        after = self.start + length if length else self.end
        return [
            Watched(f"before {self.start:#x}", self.start - _WORD, _WORD),
            Watched(f"after {self.start:#x}+{after - self.start}", after, self.end + _WORD - after),
        ]


def allocation_at(
    text: str, address: int, mappings: "Sequence[Mapping]", read: Callable[[int, int], bytes]
) -> Allocation:
    """Return the allocation that holds an address; raise ``SpecError`` where none is found.

    Args:
        text: what the user has written.
        address: in the main heap any that belongs to the allocation, elsewhere what malloc has returned.
        mappings: of the process.
        read: reads its memory.
    """
    heap = next((each for each in mappings if each.path == "[heap]"), None)
    try:
        if heap is not None and heap.start <= address < heap.end:
            return _in_main_heap(text, address, heap.start, heap.end, read)
        word = int.from_bytes(read(address - _WORD, _WORD), "little")
    except MemoryFault:
        raise SpecError(text, 0, "there is no memory at this address") from None
    size = word & ~_FLAGS
    here = next((each for each in mappings if each.start <= address < each.end), None)
    if address % 16 or size < _LEAST or size % 16 or here is None or address + size > here.end + _HEADER:
        raise SpecError(text, 0, "malloc has not returned this address; outside the main heap give one that it has")
    return Allocation(address, address + size - (_HEADER if word & _MAPPED else _WORD))


def _in_main_heap(text: str, address: int, start: int, end: int, read: Callable[[int, int], bytes]) -> Allocation:
    """Return it by going through the chunks, each of which says where the next one begins."""
    at = start + 15 & ~15
    content = read(start, end - start)
    for _ in range(_MOST_CHUNKS):
        if at + _HEADER > end:
            break
        place = at + _WORD - start
        size = int.from_bytes(content[place : place + _WORD], "little") & ~_FLAGS
        if size < _LEAST or size % 16:
            break
        if at + _HEADER <= address < at + size + _WORD:
            return Allocation(at + _HEADER, at + size + _WORD)
        at += size
    raise SpecError(text, 0, "no allocation of glibc's malloc holds this address")
