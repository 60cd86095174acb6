"""The per-thread pointer without locks: an unused word of the glibc thread control block.

glibc keeps 512 bytes of its thread control block for binary compatibility only (``__glibc_unused2`` in
``sysdeps/x86_64/nptl/tls.h``, offsets 0x80 to 0x280 since 2.17). A fresh block is zero. A block on a reused stack may
hold a dead thread's pointer, which is safe while its session lasts (the word itself has one owner at any time) and is
cleared when the session ends.
"""

import random
from collections.abc import Callable, Iterable

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.data.layouts.layout import BLOCK_OWNER, HEADER_BYTES, NEXT_BLOCK, SLOTS, TID_OFFSET
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.target.base import DataMemory

_SELF = 0x10
_MARK = 1 << 46
"""All quiet addresses have this bit."""


def choose_slot(memory: Memory, thread_pointers: Iterable[int], taken: frozenset[int]) -> int | None:
    """Return the offset of a word that is zero in every thread, or ``None`` where thread slots cannot be used.

    They cannot where two tasks share a thread pointer (raw clones), or where a thread pointer is not a glibc thread
    control block (its word at 0x10 points to itself). Tasks without a thread pointer have not started yet.
    """
    pointers = [pointer for pointer in thread_pointers if pointer]
    if len(set(pointers)) != len(pointers):
        return None
    free = set(SLOTS) - taken
    for pointer in pointers:
        try:
            block = memory.read(pointer, SLOTS.stop)
        except MemoryFault:
            return None
        if int.from_bytes(block[_SELF : _SELF + 8], "little") != pointer:
            return None
        if any(block[SLOTS.start :]):
            free = {slot for slot in free if not any(block[slot : slot + 8])}
    return random.choice(sorted(free)) if free else None  # noqa: S311 - any will do


def is_fresh_block(read: Callable[[int, int], bytes], pointer: int, slots: Iterable[tuple[int, range]]) -> bool:
    """Return whether a thread pointer is a glibc thread control block with free slots; raise ``MemoryFault``.

    ``slots``: where they are, and what the blocks' addresses are. On a reused stack a slot may have a dead thread's
    block: it is the new thread's. That a thread is dead is known as glibc knows it: by an id of 0, which the kernel
    has put there, or of -1, which it has itself.
    """
    block = read(pointer, TID_OFFSET + 4)
    if int.from_bytes(block[_SELF : _SELF + 8], "little") != pointer or not pointer:
        return False
    is_dead = int.from_bytes(block[TID_OFFSET:], "little", signed=True) <= 0
    words = [(int.from_bytes(block[at : at + 8], "little"), addresses) for at, addresses in slots]
    return all(not word or (is_dead and word in addresses) for word, addresses in words)


def region_place(space: AddressSpace, size: int) -> tuple[int, int] | None:
    """Return where a bank's region may lie and the one bit that marks all its addresses.

    Generated code tells this session's block pointers from an empty slot, and a parent's from a fork child's, with a
    single ``test`` of that bit.
    """
    place = space.quiet_gap(size)
    return None if place is None else (place, _MARK)


def clear_slots(
    memory: DataMemory,
    *,
    region: int,
    stride: int,
    blocks: int,
    slot: int,
    live: Iterable[int],
    mapped: Callable[[int], bool],
) -> None:
    """Zero the slots of all threads that ever owned a block, dead ones whose stack glibc keeps for reuse included.

    A stale pointer left behind would lead a later thread on that stack to memory that is gone. A dead thread's control
    block is written only where it is still one (it points to itself) and still holds exactly our pointer. ``mapped``
    says whether there is memory at an address: what is there and cannot be read is an error, not an empty slot.
    Precondition: everything that shares the address space is stopped, and the region is still mapped.
    """
    used = min(int.from_bytes(memory.read(region + NEXT_BLOCK, 8), "little"), blocks)
    own = {pointer for pointer in live if pointer}
    first = region + HEADER_BYTES + stride
    for block in range(first, first + used * stride, stride):
        owner = int.from_bytes(memory.read(block + BLOCK_OWNER, 8), "little")
        if owner:
            own.add(owner)
    low, high = region, region + HEADER_BYTES + (blocks + 1) * stride
    for pointer in own:
        try:
            itself = int.from_bytes(memory.read(pointer + _SELF, 8), "little")
            held = int.from_bytes(memory.read(pointer + slot, 8), "little")
        except MemoryFault:
            if mapped(pointer):
                raise
            continue
        if itself == pointer and low <= held < high:
            memory.write(pointer + slot, bytes(8))
