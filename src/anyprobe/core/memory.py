"""The protocol of bytes at target addresses: a file, a live process, or bytes in a test."""

from typing import Protocol


class Memory(Protocol):
    """Something that can be read at target addresses: a file image, a live process, bytes in a test."""

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them cannot be read."""
        ...


def read_word(memory: Memory, address: int) -> int:
    """Return the eight bytes at an address as a number; raise ``MemoryFault``."""
    return int.from_bytes(memory.read(address, 8), "little")


_PAGE, _PIECE = 4096, 64


def read_text(memory: Memory, address: int, limit: int) -> bytes:
    """Return a text up to its zero byte, or about ``limit`` bytes of it; raise ``MemoryFault``.

    No piece that is read crosses a page: what follows the text may not be mapped.
    """
    found = b""
    while b"\0" not in found and len(found) < limit:
        here = address + len(found)
        found += memory.read(here, min(_PIECE, _PAGE - here % _PAGE))
    return found.partition(b"\0")[0]


class MemoryFault(LookupError):  # noqa: N818 - the field's word
    """Bytes that cannot be read or written."""

    def __init__(self, address: int, size: int) -> None:
        """Remember the range that was asked for."""
        super().__init__(f"cannot access {size} bytes at {address:#x}")
        self.address = address
        self.size = size
