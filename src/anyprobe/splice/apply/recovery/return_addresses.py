"""Undoing replaced return addresses: every word of a program's memory that holds a stub gets the true address back.

The words are looked for, not remembered: stacks are switched, copied by fork, left by ``longjmp``, moved to the heap. A
stub stands for one address for ever, so whatever word holds one (a frame, a stale one, a saved copy of either), the
true address is what the program would have there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyprobe.core.address import PAGE
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.data.layouts.layout import RETURN_BYTES
from anyprobe.journal.memfds import MEMFD_PATH, is_ours
from anyprobe.journal.records import FoundJournal, RecordKind
from anyprobe.splice.codegen.timing.trampoline import STUB_BYTES
from anyprobe.target.system.pagemap import IN_MEMORY

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts, StoppedThread
    from anyprobe.target.system.procfs import Mapping

_MOST_STUBS = 1 << 16
_MOST_BYTES = 1 << 30
"""Memory that is searched at most; the program stands still meanwhile, a second for two or three times this."""
_CHUNK_PAGES = 1 << 8
_MOST_PAGES = 1 << 23
"""Pages of one mapping, present or not, that are looked at (32 GiB of addresses)."""
_KERNEL_MADE = ("[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")
_NO_DEVICES = ("/dev/shm/", "/dev/zero")  # noqa: S108 - names in a memory map
_NAMES = "rax rbx rcx rdx rsi rdi rbp r8 r9 r10 r11 r12 r13 r14 r15"
_REGISTERS = tuple(_NAMES.split())


@dataclass(frozen=True, slots=True)
class StubTable:
    """Stubs in one process and what each stands for (0: nothing)."""

    start: int
    meanings: NDArray[np.uint64]

    @property
    def end(self) -> int:
        """End of the stubs."""
        return self.start + len(self.meanings) * STUB_BYTES

    def meaning(self, word: int) -> int | None:
        """Return what a word stands for if it is a stub in use."""
        number, rest = divmod(word - self.start, STUB_BYTES)
        if rest or not 0 <= number < len(self.meanings):
            return None
        return int(self.meanings[number]) or None


def true_address(word: int, tables: Sequence[StubTable]) -> int | None:
    """Return the true return address that a stub leads to in the end, ``None`` where the word is no stub."""
    found = None
    for _ in range(_MOST_STUBS):
        meaning = next((each for each in (table.meaning(word) for table in tables) if each is not None), None)
        if meaning is None:
            return found
        found = word = meaning
    return None


def restore_returns(
    process: "ProcessFacts",
    threads: Iterable["StoppedThread"],
    journals: Sequence[FoundJournal],
    mappings: Sequence["Mapping"],
) -> tuple[str, ...]:
    """Put the true return addresses back; return what stands in the way, as text.

    Preconditions: everything that shares the memory is stopped, no text leads to our code, no thread is in it.
    """
    tables = _tables(process.mem, journals, mappings)
    if not tables:
        return ()
    for thread in threads:
        words = [getattr(thread.registers, name) for name in _REGISTERS]
        if any(true_address(word, tables) is not None for word in words):
            return (f"a return address in a register of thread {thread.tid}",)
    try:
        places = [(m, *place) for m in mappings if may_hold_stacks(m) for place in present(process, m)]
        if sum(size for _, _, size in places) > _MOST_BYTES:
            return ("return addresses: too much memory to look for them",)
        for mapping, low, size in places:
            if not _restore_in(process, low, size, tables, writable=mapping.private):
                return (f"a return address in shared memory at {low:x}",)
    except (MemoryFault, OSError, TooMuch) as error:
        return (f"return addresses: not all memory can be searched ({error})",)
    return ()


class TooMuch(Exception):  # noqa: N818 - a verdict
    """More addresses than are looked at."""


def _tables(memory: Memory, journals: Iterable[FoundJournal], mappings: Sequence["Mapping"]) -> list[StubTable]:
    """Return the stubs that the journals list, where they still are mapped; a journal's word alone is not enough."""
    own = [m for m in mappings if is_ours(m)]
    found = []
    for record in (r for journal in journals for r in journal.of(RecordKind.RETURNS)):
        end, size = record.address + record.size * STUB_BYTES, record.size * RETURN_BYTES
        code = any(m.executable and m.start <= record.address and end <= m.end for m in own)
        table = any(m.start <= record.extra and record.extra + size <= m.end for m in own)
        if not code or not table or not 0 < record.size <= _MOST_STUBS:
            continue
        rows = np.frombuffer(memory.read(record.extra, size), dtype=np.uint64).reshape(record.size, 2)
        meanings = np.where(rows[:, 1] != 0, rows[:, 0], np.uint64(0)).astype(np.uint64)
        if meanings.any():
            found.append(StubTable(record.address, meanings))
    return found


def may_hold_stacks(mapping: "Mapping") -> bool:
    """Return whether a mapping may hold what the program has stored; not devices, whose memory must not be read."""
    if mapping.path == MEMFD_PATH or mapping.path in _KERNEL_MADE:
        return False
    if mapping.path.startswith("/dev/") and not mapping.path.startswith(_NO_DEVICES):
        return False
    return mapping.writable or (mapping.private and not mapping.inode)


def present(process: "ProcessFacts", mapping: "Mapping") -> Iterator[tuple[int, int]]:
    """Yield (address, size) of memory that exists: to read what does not would make it."""
    pages = (mapping.end - mapping.start) // PAGE
    if pages > _MOST_PAGES:
        raise TooMuch(f"{mapping.start:x}-{mapping.end:x} is too large")
    with process.page_map() as page_map:
        for address, content in page_map.entries(mapping.start, mapping.end):
            there = np.flatnonzero(np.frombuffer(content, dtype=np.uint64) & np.uint64(IN_MEMORY))
            for run in np.split(there, np.flatnonzero(np.diff(there) != 1) + 1) if len(there) else ():
                for at in range(0, len(run), _CHUNK_PAGES):
                    count = min(_CHUNK_PAGES, len(run) - at)
                    yield address + int(run[at]) * PAGE, count * PAGE


def _restore_in(process: "ProcessFacts", low: int, size: int, tables: Sequence[StubTable], *, writable: bool) -> bool:
    """Restore the words in one piece of memory; return whether that was possible."""
    words = np.frombuffer(process.mem.read(low, size), dtype=np.uint64)
    for table in tables:
        for number in np.flatnonzero(words - np.uint64(table.start) < np.uint64(table.end - table.start)).tolist():
            address = true_address(int(words[number]), tables)
            if address is None:
                continue
            if not writable:
                return False
            process.mem.write(low + 8 * number, address.to_bytes(8, "little"))
    return True
