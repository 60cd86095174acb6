"""Free address space of the target: where patches may lie and which pages a punned jump may reach.

Never in the way of the heap (``brk``) or of the main stack, never below the minimum mapping address.
"""

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from anyprobe.core.address import PAGE, page_ceil, page_floor
from anyprobe.core.mapping import MappingLike

MINIMUM_ADDRESS = 0x10000
"""``vm.mmap_min_addr`` as distributions set it."""
TOP = 0x7FFF_FFFF_F000
"""The end of user space with four-level page tables."""
HEAP_ROOM = 1 << 30
"""Bytes above the heap that stay free for it to grow."""
GO_HEAP_ROOM = 1 << 26
"""The heap's room in a program of Go, of which C code alone uses that heap: its allocators map memory where it is full.

Most functions of Go 1.21 and later that do not look at their stack begin with ``push rbp; mov rbp, rsp`` and an
instruction with a REX prefix, between which goroutines may be parked; a jump over that leads 1.14 GiB up.
"""
STACK_ROOM = 1 << 30
"""Bytes below the main stack that stay free for it to grow."""
QUIET = range(0x5500_0000_0000, 0x5550_0000_0000)
"""Where programs do not ask for memory by address, and no sanitizer keeps its shadow or forbids mappings.

Below are the shadows of LLVM's and GCC's sanitizers (``asan_mapping.h``, ``tsan_platform.h``, ``msan.h``; a program
that is just starting has not reserved them yet), Go's arenas (0xc000000000) and the views of Java's ZGC; above, with
room for patches near them, the programs that the kernel places itself (``ELF_ET_DYN_BASE``, two thirds of user space).
"""
_LOW_SHADOW = 0x7FFF_7000, 1 << 32
"""AddressSanitizer's shadow within reach of programs that lie at a fixed address; it goes on far above."""
_ATTEMPTS = 8
REACH = (1 << 31) - (1 << 20)
"""How far a rel32 operand reaches, with a margin for instruction lengths and module sizes."""


class AddressSpace:
    """Which address ranges are taken or must stay free. Ranges that we reserve are added as we go."""

    def __init__(self, mappings: Iterable[MappingLike], heap_start: int = 0, *, heap_room: int = HEAP_ROOM) -> None:
        """Read the taken ranges off the mappings; a heap that is not there yet will begin at ``heap_start``.

        ``heap_room``: bytes above the heap that stay free for it to grow.
        """
        self._kept: tuple[tuple[int, int], ...] = ()
        taken = [(0, MINIMUM_ADDRESS), _LOW_SHADOW, (TOP, 1 << 64)]
        if heap_start:
            taken.append((heap_start, heap_start + heap_room))
        for mapping in mappings:
            start, end = mapping.start, mapping.end
            if mapping.path == "[heap]":
                end += heap_room
            elif mapping.path.startswith("[stack"):
                start -= STACK_ROOM
            taken.append((max(start, 0), end))
        self._set(taken)

    def copy(self) -> "AddressSpace":
        """Return an independent copy."""
        other = AddressSpace(())
        other._taken, other._starts, other._kept = self._taken, self._starts, self._kept
        return other

    def keep(self, start: int, end: int) -> None:
        """Let ``gap_near`` alone use a range: nothing small may cut it up."""
        self._kept = (*self._kept, (start, end))

    def _set(self, taken: list[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(taken):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        self._taken = merged
        self._starts = [start for start, _ in merged]

    def reserve(self, start: int, end: int) -> None:
        """Mark a range as taken."""
        self.reserve_all([(start, end)])

    def reserve_all(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Mark ranges as taken."""
        self._set([*self._taken, *((page_floor(start), page_ceil(end)) for start, end in ranges)])

    def is_free(self, start: int, end: int) -> bool:
        """Return whether all of ``[start, end)`` could be mapped and is not kept for something else."""
        if start < 0 or end > TOP or any(start < high and low < end for low, high in self._kept):
            return False
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and self._taken[index][1] > start:
            return False
        return index + 1 >= len(self._taken) or self._starts[index + 1] >= end

    def free_pages(self, low: int, high: int, step: int) -> Iterator[int]:
        """Yield pages in ``[low, high)`` that could be mapped, one in so many bytes or where a gap begins.

        What is taken is passed over in one go, so that it costs little to find out that there are none.
        """
        page = max(low, 0)
        while page + PAGE <= high:
            row = bisect_right(self._starts, page + PAGE - 1) - 1
            if row >= 0 and self._taken[row][1] > page:
                page = page_ceil(self._taken[row][1])
                continue
            kept = max((end for start, end in self._kept if start < page + PAGE and page < end), default=0)
            if kept:
                page = kept
                continue
            yield page
            page += step

    def gap_near(self, low: int, high: int, size: int) -> int | None:
        """Return where ``size`` bytes can be mapped so that every byte is within reach of ``[low, high)``.

        Below the module is preferred (nothing of a process grows upwards into it), then above; nearest first.
        """
        size = page_ceil(size)
        best: tuple[int, int] | None = None
        for (_, gap_start), (gap_end, _) in zip(self._taken, self._taken[1:], strict=False):
            if gap_end - gap_start < size + 2 * PAGE:
                continue
            if gap_end <= low:
                place = page_floor(gap_end - size - PAGE)
                distance = high - place
            else:
                place = page_ceil(max(gap_start + PAGE, high - REACH + 1))
                distance = (place + size - low) * 2
            if place + size + PAGE > gap_end:
                continue
            if max(high - place, place + size - low) < REACH and (best is None or distance < best[0]):
                best = (distance, place)
        return None if best is None else best[1]

    def far_gap(self, size: int, start: int) -> int | None:
        """Return the first place at or above ``start`` where ``size`` bytes are free."""
        size = page_ceil(size)
        for (_, gap_start), (gap_end, _) in zip(self._taken, self._taken[1:], strict=False):
            place = max(page_ceil(gap_start + PAGE), page_ceil(start))
            if place + size + PAGE <= gap_end:
                return place
        return None

    def quiet_gap(self, size: int) -> int | None:
        """Return a free place at random where no program asks for memory, or the first one if there are few."""
        size = page_ceil(size)
        if size >= len(QUIET):
            return None
        for _ in range(_ATTEMPTS):
            place = random.randrange(QUIET.start, QUIET.stop - size, PAGE)  # noqa: S311 - any will do
            if self.is_free(place - PAGE, place + size + PAGE):
                return place
        first = self.far_gap(size, QUIET.start)
        return first if first is not None and first + size <= QUIET.stop else None
