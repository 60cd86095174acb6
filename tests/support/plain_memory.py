"""Memory without a process, which can be written."""

from dataclasses import dataclass, field

from anyprobe.core.memory import MemoryFault


@dataclass
class PlainMemory:
    """Writable bytes at an address that remember each write."""

    base: int
    content: bytearray
    writes: list = field(default_factory=list)

    def read(self, address, size):
        offset = address - self.base
        if offset < 0 or offset + size > len(self.content):
            raise MemoryFault(address, size)
        return bytes(self.content[offset : offset + size])

    def write(self, address, content):
        self.read(address, len(content))
        self.writes.append((address, bytes(content)))
        self.content[address - self.base : address - self.base + len(content)] = content

    def write_text(self, address, content):
        self.write(address, content)


def plain_memory_at(base, size):
    """Return zeros at an address."""
    return PlainMemory(base, bytearray(size))
