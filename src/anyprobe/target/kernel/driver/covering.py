"""The kernel's memory as it is without splices, those of other sessions too."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import Memory
from anyprobe.target.kernel.driver.device import Driver
from anyprobe.target.kernel.driver.layout import Write


class UnsplicedMemory:
    """A kernel's memory with the original bytes where splices are."""

    def __init__(self, memory: Memory, writes: Callable[[], Iterable[Write]] | None = None) -> None:
        """Show ``memory`` without what ``writes`` says, by itself what the driver says if it is loaded."""
        self._memory, self._writes = memory, writes or _in_force

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at ``address``; raise ``MemoryFault`` if any of them cannot be read."""
        writes = [*self._writes()]
        content = bytearray(self._memory.read(address, size))
        for write in (*writes, *self._writes()):  # others may have written meanwhile
            low, high = max(write.address, address), min(write.address + len(write.new), address + size)
            there, known = slice(low - address, high - address), slice(low - write.address, high - write.address)
            if low < high and content[there] == write.new[known]:
                content[there] = write.old[known]
        return bytes(content)


def writes_in_force() -> int:
    """Return how many writes of all sessions are in force, 0 where that cannot be known."""
    return len(_in_force())


def _in_force() -> list[Write]:
    with suppress(TargetError), Driver() as driver:  # where it is not loaded nothing is spliced
        return driver.changes()
    return []
