"""Memory of the target that holds nothing: for frames where no thread is on a stack of its own."""

from contextlib import suppress

from anyprobe.core.address import PAGE
from anyprobe.core.errors import AnyprobeError
from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import DataMemory
from anyprobe.target.remote import frame
from anyprobe.target.system import pagemap
from anyprobe.target.system.pagemap import ENTRY_BYTES, IN_MEMORY
from anyprobe.target.system.procfs import Mapping

_PAGES = frame.ROOM // PAGE + 1
_MARK = bytes.fromhex("9f1c4be86d2a53f0b7e4087cd5916a3e") * (PAGE // 16)
"""What a page holds that anyprobe has used and the program has not since: random once, so no data of a program."""
_MOST_READ = 256
"""How many pages are read in search of the mark, from the lowest on, which is where it is."""


def spare_stack(pid: int, mappings: list[Mapping], memory: DataMemory) -> int:
    """Return the top of ``frame.ROOM`` bytes, and some, of the main stack that hold nothing; 0 where none are.

    The kernel maps 128 KiB of main stack at once, most of which programs never reach. Pages that are neither present
    nor swapped hold no data, whatever stack the threads are on, nor do those that we have used before and marked since.
    The lowest are taken, which a program reaches last.
    """
    stack = next((m for m in mappings if m.path == "[stack]"), None)
    if stack is None:
        return 0
    content = b""
    with suppress(OSError), pagemap.opened(pid) as pages:
        content = b"".join(entries for _, entries in pages.entries(stack.start, stack.end))
    free = 0
    for number in range(len(content) // ENTRY_BYTES):
        page = stack.start + number * PAGE
        entry = int.from_bytes(content[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES], "little")
        absent = not entry & IN_MEMORY
        free = free + 1 if absent or (number < _MOST_READ and _is_marked(memory, page)) else 0
        if free == _PAGES:
            return page + PAGE
    return 0


def give_back(pid: int, memory: DataMemory, top: int) -> None:
    """Mark what was used below a top that ``spare_stack`` has returned, so that it can be used again.

    Nothing but our calls may have run since, and no thread may still need what is there. What fails leaves memory
    unmarked, which is not used again.
    """
    with suppress(OSError, MemoryFault, AnyprobeError), pagemap.opened(pid) as pages:
        for page in range(top - _PAGES * PAGE, top, PAGE):
            if pages.entry(page) & IN_MEMORY:
                memory.write(page, _MARK)


def _is_marked(memory: DataMemory, page: int) -> bool:
    with suppress(MemoryFault):
        return memory.read(page, PAGE) == _MARK
    return False
