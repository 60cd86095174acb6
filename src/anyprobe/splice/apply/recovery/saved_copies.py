"""Whether a program holds copies of jumps that it has written over: hooking code saves them as the original bytes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyprobe.core.arrays import among
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.assemble import u64
from anyprobe.splice.apply.recovery.return_addresses import TooMuch, may_hold_stacks, present

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts
    from anyprobe.target.system.procfs import Mapping

_MOST_BYTES = 1 << 30
"""Memory that is searched at most, at one to two gigabytes a second."""


class Saved(NamedTuple):
    """A splice that was overwritten: where it was, its bytes, and what they led to."""

    address: int
    content: bytes
    targets: tuple[int, ...]
    """Where its jump led: the patch, or the springboard on the way there."""


def held_copies(process: "ProcessFacts", saved: Sequence[Saved], mappings: Iterable["Mapping"]) -> list[int]:
    """Return the addresses of the splices of which copies may be held, as they were or moved elsewhere.

    Looked for are the bytes themselves, and in a trampoline that hooking code has made of them the address of the
    patch, as a word or as the displacement of a jump. Precondition: everything that shares the memory is stopped.
    All are returned where not all memory can be searched.
    """
    if not saved:
        return []
    places = [(low, size) for m in mappings if may_hold_stacks(m) for low, size in _present(process, m)]
    if sum(size for _, size in places) > _MOST_BYTES:
        return [each.address for each in saved]
    found: set[int] = set()
    for low, size in places:
        try:
            content = process.mem.read(low, size)
        except MemoryFault:
            return [each.address for each in saved]
        found |= _held_in(content, low, saved)
    return sorted(found)


def _present(process: "ProcessFacts", mapping: "Mapping") -> list[tuple[int, int]]:
    try:
        return list(present(process, mapping))
    except (OSError, TooMuch):
        return [(mapping.start, _MOST_BYTES + 1)]


def _held_in(content: bytes, low: int, saved: Sequence[Saved]) -> set[int]:
    """Return the addresses of the splices of which one piece of memory may hold copies."""
    found = {
        each.address
        for each in saved
        if each.content in content or any(u64(target) in content for target in each.targets)
    }
    targets = np.array(sorted({target for each in saved for target in each.targets}), np.int64)
    if not len(targets):
        return found
    reached: set[int] = set()
    for shift in range(4):
        displacements = np.frombuffer(content, np.int32, (len(content) - shift) // 4, shift).astype(np.int64)
        ends = low + shift + 4 + 4 * np.arange(len(displacements), dtype=np.int64)
        led_to = displacements + ends
        near = led_to[(led_to >= targets[0]) & (led_to <= targets[-1])]
        reached.update(near[among(near, targets)].tolist())
    return found | {each.address for each in saved if not reached.isdisjoint(each.targets)}
