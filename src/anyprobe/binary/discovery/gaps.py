"""The bytes outside of all functions that are listed, and what they decode to."""

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Decoder

from anyprobe.binary.decoding.code_scan import CodeBytes
from anyprobe.binary.objects.padding import padding_length
from anyprobe.core.arrays import unique

if TYPE_CHECKING:
    from iced_x86 import Instruction
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

_PADDING_BYTES = b"\x00\x0f\x1f\x2e\x40\x44\x66\x80\x84\x90\xcc"
"""What padding consists of; most of what lies between functions is told to be that by this alone."""
_SHORT = 15


class Gaps:
    """The bytes outside of all known functions, as far as they are not only padding."""

    lows: list[int]
    """Where they begin, ascending."""
    contents: list[bytes]

    def __init__(self, code: tuple[CodeBytes, ...], starts: "Positions", ends: "Positions") -> None:
        """Find what lies between some functions (their starts, ascending, and ends)."""
        self.lows, self.contents = [], []
        for part in code:
            inside = (starts >= part.start) & (starts < part.end)
            lows = np.maximum.accumulate(np.append(part.start, ends[inside]))
            highs = np.append(starts[inside], part.end)
            for low, high in zip(lows[highs > lows].tolist(), highs[highs > lows].tolist(), strict=True):
                content = part.content[low - part.start : high - part.start]
                if not _is_padding(content):
                    self.lows.append(low)
                    self.contents.append(content)
        self._decoders = [Decoder(64, content) for content in self.contents]
        self._decoded: dict[int, Instruction | None] = {}

    def instruction_at(self, address: int) -> "Instruction | None":
        """Return what is decoded at an address of a gap."""
        if address in self._decoded:
            return self._decoded[address]
        number = self.number(address)
        found = None
        if number is not None:
            decoder = self._decoders[number]
            decoder.position, decoder.ip = address - self.lows[number], address
            found = decoder.decode()
        self._decoded[address] = found
        return found

    def code(self) -> list[CodeBytes]:
        """Return the bytes, padding included."""
        return [CodeBytes(low, content) for low, content in zip(self.lows, self.contents, strict=True)]

    def holding(self, addresses: "Positions") -> set[int]:
        """Return those of some addresses that lie in gaps."""
        lows, highs = self.bounds()
        if not len(lows):
            return set()
        rows = np.searchsorted(lows, addresses, side="right") - 1
        return set(unique(addresses[(rows >= 0) & (addresses < highs[rows])]).tolist())

    def front(self, address: int, most: int) -> bytes:
        """Return the bytes before an address of a gap, within the gap, ``most`` of them at most."""
        number = bisect_right(self.lows, address) - 1
        offset = address - self.lows[number]
        return self.contents[number][max(offset - most, 0) : offset]

    def padding_at(self, address: int) -> int:
        """Return the number of padding bytes from an address of a gap on."""
        number = bisect_right(self.lows, address) - 1
        return padding_length(self.contents[number], address - self.lows[number], zeros=False)

    def bounds(self) -> "tuple[Positions, Positions]":
        """Return the starts of the gaps, ascending, and their ends."""
        lows = np.array(self.lows, np.int64)
        return lows, lows + np.array([len(content) for content in self.contents], np.int64)

    def number(self, address: int) -> int | None:
        """Return the number of the gap that holds an address."""
        number = bisect_right(self.lows, address) - 1
        return number if number >= 0 and address < self.lows[number] + len(self.contents[number]) else None

    def high(self, address: int) -> int:
        """Return the end of the gap that holds an address."""
        number = bisect_right(self.lows, address) - 1
        return self.lows[number] + len(self.contents[number])


def _is_padding(content: bytes) -> bool:
    if content.strip(_PADDING_BYTES):
        return False
    return len(content) <= _SHORT or padding_length(content, 0) == len(content)
