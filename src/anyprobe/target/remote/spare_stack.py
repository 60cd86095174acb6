"""Memory of the target's stacks that holds nothing: for the frames of injected calls.

Right below a stack pointer there may be anything: a neighbour's stack, where coroutines have theirs in an array, be it
on the heap, in thread-local memory or on another stack. So no frame is ever put there. Pages that are neither present
nor swapped hold no data, whatever stack a thread is on, nor do those that anyprobe has used before and marked since.

What remains is that no thread may come to them meanwhile. Either everything is stopped. Or the thread that is stopped
is on the stack that it was given at its birth, by the kernel or by the C library, whose record says where that is: what
grows there is its own. The lowest pages are taken, which a program reaches last.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from anyprobe.core.address import PAGE
from anyprobe.core.errors import AnyprobeError
from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import DataMemory, ProcessFacts
from anyprobe.target.remote import frame
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import pagemap
from anyprobe.target.system.pagemap import ENTRY_BYTES, IN_MEMORY
from anyprobe.target.system.procfs import Mapping

_MARK = bytes.fromhex("9f1c4be86d2a53f0b7e4087cd5916a3e") * (PAGE // 16)
"""What a page holds that anyprobe has used and the program has not since: random once, so no data of a program."""
NO_STACK = "not on a stack known to be its own"
"""Why no call can be made in a thread while others run."""
_MAIN = "[stack]"
_MOST_LOOKED_AT = 256
"""How many pages are looked at, from the lowest on, which is where spare ones are."""
_RECORD_WORDS = 0xA00 // 8
"""Words of a thread's control block among which C libraries keep where its stack is."""
_MOST_ABOVE = 4 * PAGE
"""How far a stack's end may be from the control block near it."""


class SpareStacks:
    """Finds memory for calls that need some room; what it returns is the top of it, 0 where there is none."""

    def __init__(self, process: ProcessFacts, mappings: list[Mapping], room: int = frame.ROOM) -> None:
        """Look through the present ``mappings``."""
        self._process, self._mappings, self._room = process, mappings, room

    def any(self, thread: Thread) -> int:
        """Return memory for a call in some thread, while everything is stopped: of the main stack, if that is there."""
        stack = next((m for m in self._mappings if m.path == _MAIN), None)
        return (self._of_main(stack, stack.end) if stack is not None else 0) or self.own(thread)

    def own(self, thread: Thread) -> int:
        """Return memory of the stack that a thread was given at its birth, while others may run; it has to be on it."""
        stack = thread.registers.rsp
        mapping = next((m for m in self._mappings if m.start <= stack < m.end), None)
        if mapping is None or mapping.inode or not (mapping.writable and mapping.private):
            return 0
        end = stack - frame.RED_ZONE
        if mapping.path == _MAIN and thread.tid == thread.pid:
            return self._of_main(mapping, end)
        start = _recorded_start(self._process.mem, thread, self._lowest(mapping))
        return self._spare_in(max(start, mapping.start), end)[0] if start else 0

    def _lowest(self, mapping: Mapping) -> int:
        """Return where a stack in a mapping may begin: its guard pages are a mapping of their own, below."""
        below = next((m for m in self._mappings if m.end == mapping.start), mapping)
        return below.start if below.perms.startswith("---") else mapping.start

    def _of_main(self, stack: Mapping, end: int) -> int:
        """Return the lowest memory of the main stack that holds nothing; the stack is made to grow if there is none.

        The kernel maps 128 KiB of it at once, most of which programs never reach. Below what it has mapped nothing has
        ever been.
        """
        top, lowest = self._spare_in(stack.start, end)
        if top:
            return top
        missing = _pages(self._room) - lowest
        return stack.start + lowest * PAGE if _grown(self._process.mem, stack.start, missing) else 0

    def _spare_in(self, start: int, end: int) -> tuple[int, int]:
        """Return the top of the lowest pages that hold nothing, if there are enough, and how many the first of all are.

        These are fewer, and no top is there, where pages are used from some place on.
        """
        memory, needed = self._process.mem, _pages(self._room)
        start = -(-start // PAGE) * PAGE
        end = min(end // PAGE * PAGE, start + _MOST_LOOKED_AT * PAGE)
        free, lowest = 0, -1
        for page, present in _presence(self._process.pid, start, end):
            if not present or _holds(memory, page, _MARK):
                free += 1
                if free == needed:
                    return page + PAGE, needed
            else:
                lowest = free if lowest < 0 else lowest
                free = 0
        return 0, free if lowest < 0 else lowest


def give_back(process: ProcessFacts, top: int, room: int = frame.ROOM) -> None:
    """Mark what was used below a top that was returned for ``room``, so that it can be used again.

    Nothing but our calls may have run since, and no thread may still need what is there. What fails leaves memory
    unmarked, which is not used again.
    """
    with suppress(OSError, MemoryFault, AnyprobeError), pagemap.opened(process.pid) as pages:
        for page in range(top - _pages(room) * PAGE, top, PAGE):
            if pages.entry(page) & IN_MEMORY:
                process.mem.write(page, _MARK)


def _pages(room: int) -> int:
    return -(-room // PAGE) + 1


def _presence(pid: int, start: int, end: int) -> Iterator[tuple[int, bool]]:
    """Yield the pages between two addresses, and whether each holds data, as far as the kernel tells."""
    with suppress(OSError), pagemap.opened(pid) as pages:
        for first, entries in pages.entries(start, end):
            for number in range(len(entries) // ENTRY_BYTES):
                entry = int.from_bytes(entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES], "little")
                yield first + number * PAGE, bool(entry & IN_MEMORY)


def _grown(memory: DataMemory, start: int, pages: int) -> bool:
    """Make the main stack grow by some pages; return whether they are there now, and hold nothing.

    The kernel does that for a thread that reads or writes there, as far as limits and other mappings permit.
    """
    new = range(start - pages * PAGE, start, PAGE)
    with suppress(OSError, MemoryFault, AnyprobeError):
        if all(_holds(memory, page, bytes(PAGE), _MARK) for page in new):
            memory.write(new.start, _MARK * pages)
            return True
    return False


def _holds(memory: DataMemory, page: int, *contents: bytes) -> bool:
    with suppress(MemoryFault, AnyprobeError):
        return memory.read(page, PAGE) in contents
    return False


def _recorded_start(memory: DataMemory, thread: Thread, lowest: int) -> int:
    """Return where the C library says that a thread's stack begins, on which the thread is; 0 where it says nothing.

    glibc and musl have the start and the size of what they gave the thread in two words of its control block, which is
    near the end of it and whose first word is its own address. It begins at ``lowest`` or after that: a small number
    before a pointer into the block, as the thread's id before its list of mutexes, looks like start and size, too.
    """
    block, stack = thread.registers.fs_base, thread.registers.rsp
    words: tuple[int, ...] = ()
    for size in (8 * _RECORD_WORDS, PAGE - block % PAGE):  # the second: where nothing is mapped after it
        with suppress(MemoryFault, AnyprobeError):
            words = struct.unpack(f"<{size // 8}Q", memory.read(block, size // 8 * 8))
            break
    if not words or words[0] != block:
        return 0
    for start, size in pairwise(words):
        if lowest <= start <= stack < block < start + size <= block + _MOST_ABOVE:
            return start
    return 0
