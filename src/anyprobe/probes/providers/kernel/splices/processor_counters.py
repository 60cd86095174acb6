"""Counters that each processor has for itself, in as few pieces of the driver's memory as there can be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from anyprobe.target.kernel.driver.device import Driver
from anyprobe.target.kernel.driver.layout import MAX_PERCPU, NEAR_COUNTERS

_WORD: Final = 8
_FIRST: Final = NEAR_COUNTERS * _WORD
"""Bytes of the first piece of counters, which is in reach of an instruction's displacement if it is free."""


@dataclass
class ProcessorCounters:
    """Counters of each processor, in as few pieces of memory as there can be."""

    driver: Driver
    count: int
    give: Callable[[int], int]
    """Gives zeroed memory of each processor, of some size, by its offset from ``gs``."""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Where each begins, as an offset from ``gs``, and its size."""

    def __post_init__(self) -> None:
        """Have the memory given."""
        left, most = self.count * _WORD, _FIRST
        while left > 0:
            size = min(left, most)
            self.pieces.append((self.give(size), size))
            left, most = left - size, MAX_PERCPU

    def place(self, slot: int) -> int:
        """Return where a counter is, as an offset from ``gs``."""
        at = slot * _WORD
        if at < _FIRST:
            return self.pieces[0][0] + at
        piece, rest = divmod(at - _FIRST, MAX_PERCPU)
        return self.pieces[1 + piece][0] + rest

    def read(self, slots: range) -> list[int]:
        """Return what all processors have counted together in successive counters."""
        sums: list[int] = []
        first, end, at = slots.start * _WORD, slots.stop * _WORD, 0
        for start, size in self.pieces:
            low, high = max(first - at, 0), min(end - at, size)
            if low < high:
                rows = [memoryview(row).cast("Q") for row in self.driver.read_per_processor(start + low, high - low)]
                sums += [sum(each) for each in zip(*rows, strict=True)]
            at += size
        return sums
