"""Which pages of a process are in memory, and whose they are (Documentation/admin-guide/mm/pagemap.rst)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from anyprobe.core.address import PAGE
from anyprobe.target.system import gateway, procfs

ENTRY_BYTES = 8
PRESENT, SWAPPED = 1 << 63, 1 << 62
IN_MEMORY = PRESENT | SWAPPED
"""Bits of an entry: the page holds data."""
OF_FILE = 1 << 61
"""The page is a file's, or shared."""
_PAGES_AT_ONCE = 1 << 16


class PageMap:
    """The page map of one process."""

    def __init__(self, fd: int) -> None:
        """Read from a descriptor."""
        self._fd = fd

    def entries(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the address of a page and the entries from it on, little-endian words, until all pages are read.

        Raises ``OSError``, also where the map ends early.
        """
        for address in range(start, end, _PAGES_AT_ONCE * PAGE):
            wanted = ENTRY_BYTES * min(_PAGES_AT_ONCE, (end - address) // PAGE)
            content = gateway.pread(self._fd, wanted, address // PAGE * ENTRY_BYTES)
            if len(content) != wanted:
                raise OSError(f"the page map ends at {address:x}")
            yield address, content

    def entry(self, page: int) -> int:
        """Return the entry of one page; raises ``OSError``."""
        _, content = next(self.entries(page, page + PAGE))
        return int.from_bytes(content, "little")


@contextmanager
def opened(pid: int) -> Iterator[PageMap]:
    """Open the page map of a process for a scope; raises ``OSError``."""
    fd = gateway.open_file(f"/proc/{procfs.voice(pid)}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield PageMap(fd)
    finally:
        with suppress(OSError):
            gateway.close(fd)
