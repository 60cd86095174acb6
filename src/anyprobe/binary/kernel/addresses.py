"""Where a kernel's code lies: in the highest 2 GiB, where 32 bits with a sign say every address.

The analysis sees it 4 GiB lower, as it sees position-independent objects at their link-time addresses. Signed 64-bit
arrays order such addresses as they are, and the 32-bit words in which the code names its own addresses are equal to
them: ``mov rdi, 0xffffffff81234567`` has the word ``0x81234567``.
"""

import re

from anyprobe.core.memory import Memory, MemoryFault

BIAS = 0xFFFF_FFFF_0000_0000
"""What to add to an address of the analysis to have the kernel's."""
LOWEST = 0xFFFF_FFFF_8000_0000
"""The lowest address that code of a kernel may have."""


class LowMemory:
    """A kernel's memory at the addresses that the analysis uses."""

    def __init__(self, memory: Memory) -> None:
        """Wrap what is read at the kernel's own addresses."""
        self._memory = memory

    def read(self, address: int, size: int) -> bytes:
        """Return bytes; raise ``MemoryFault`` with the address of the analysis."""
        try:
            return self._memory.read(address + BIAS, size)
        except MemoryFault as error:
            raise MemoryFault(error.address - BIAS, error.size) from None


_LOW = re.compile(r"\b0x([89a-f][0-9a-f]{7})\b")


def upper_text(text: str) -> str:
    """Return a text about code with the kernel's own addresses."""
    return _LOW.sub(r"0xffffffff\1", text)
