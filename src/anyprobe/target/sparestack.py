"""Memory of the target that holds nothing: for frames where no thread is on a stack of its own."""

from contextlib import suppress

from anyprobe.core.address import PAGE
from anyprobe.target import frame, pagemap
from anyprobe.target.pagemap import ENTRY_BYTES, IN_MEMORY
from anyprobe.target.procfs import Mapping


def spare_stack(pid: int, mappings: list[Mapping]) -> int:
    """Return the top of ``frame.ROOM`` bytes, and some, of the main stack that were never touched; 0 where none are.

    The kernel maps 128 KiB of main stack at once, most of which programs never reach. Pages that are neither present
    nor swapped hold no data, whatever stack the threads are on. Each use takes other pages, since a page once touched
    may be the program's later: the highest, so that the next use finds all but the one or two that were written to.
    """
    stack = next((m for m in mappings if m.path == "[stack]"), None)
    if stack is None:
        return 0
    wanted = frame.ROOM // PAGE + 1
    content = b""
    with suppress(OSError), pagemap.opened(pid) as pages:
        content = b"".join(entries for _, entries in pages.entries(stack.start, stack.end))
    free = 0
    for number in reversed(range(len(content) // ENTRY_BYTES)):
        entry = int.from_bytes(content[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES], "little")
        free = 0 if entry & IN_MEMORY else free + 1
        if free == wanted:
            return stack.start + (number + wanted) * PAGE
    return 0
