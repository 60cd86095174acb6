"""Bytes placed at an address, as memory of a target."""

from dataclasses import dataclass

from anyprobe.core.memory import MemoryFault


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
