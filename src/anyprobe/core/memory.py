"""One protocol for bytes at target addresses, whoever provides them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Memory(Protocol):
    """Something that can be read at target addresses: a file image, a live process, bytes in a test."""

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them cannot be read."""
        ...


class MemoryFault(LookupError):  # noqa: N818 - the field's word
    """Bytes that cannot be read or written."""

    def __init__(self, address: int, size: int) -> None:
        """Remember the range that was asked for."""
        super().__init__(f"cannot access {size} bytes at {address:#x}")
        self.address = address
        self.size = size


@dataclass(frozen=True, slots=True)
class BytesMemory:
    """Bytes placed at an address."""

    base: int
    content: bytes

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``."""
        offset = address - self.base
        if offset < 0 or offset + size > len(self.content):
            raise MemoryFault(address, size)
        return self.content[offset : offset + size]


@dataclass(frozen=True, slots=True)
class PristineMemory:
    """A view of memory with our own splices undone, so that analysis never meets a patch.

    ``originals`` are (address, original bytes) of the splices in place.
    """

    below: Memory
    originals: tuple[tuple[int, bytes], ...]

    @classmethod
    def over(cls, below: Memory, originals: Iterable[tuple[int, bytes]]) -> "PristineMemory":
        """Return the pristine view of ``below``."""
        return cls(below, tuple(originals))

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address`` as they were before we spliced."""
        content = bytearray(self.below.read(address, size))
        for start, original in self.originals:
            low, high = max(start, address), min(start + len(original), address + size)
            if low < high:
                content[low - address : high - address] = original[low - start : high - start]
        return bytes(content)
