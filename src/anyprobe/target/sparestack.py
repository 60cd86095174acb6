"""Memory of the target that holds nothing: for frames where no thread is on a stack of its own."""

import os
from contextlib import suppress

from anyprobe.target import frame, gateway, procfs
from anyprobe.target.procfs import Mapping

_PAGE = 4096
_ENTRY = 8
_TOUCHED = 0b11 << 62  # present or swapped, Documentation/admin-guide/mm/pagemap.rst


def spare_stack(pid: int, mappings: list[Mapping]) -> int:
    """Return the top of ``frame.ROOM`` bytes, and some, of the main stack that were never touched; 0 where none are.

    The kernel maps 128 KiB of main stack at once, most of which programs never reach. Pages that are neither present
    nor swapped hold no data, whatever stack the threads are on. Each use takes other pages, since a page once touched
    may be the program's later: the highest, so that the next use finds all but the one or two that were written to.
    """
    stack = next((m for m in mappings if m.path == "[stack]"), None)
    if stack is None:
        return 0
    wanted = frame.ROOM // _PAGE + 1
    content = b""
    with suppress(OSError):
        fd = gateway.open_file(f"/proc/{procfs.voice(pid)}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pages = (stack.end - stack.start) // _PAGE
            content = gateway.pread(fd, pages * _ENTRY, stack.start // _PAGE * _ENTRY)
        finally:
            gateway.close(fd)
    free = 0
    for number in reversed(range(len(content) // _ENTRY)):
        entry = int.from_bytes(content[number * _ENTRY : (number + 1) * _ENTRY], "little")
        free = 0 if entry & _TOUCHED else free + 1
        if free == wanted:
            return stack.start + (number + wanted) * _PAGE
    return 0
