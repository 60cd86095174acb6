"""Memory of sessions in a target, listed in journals or not, and the threads that are in it or will come back to it."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from anyprobe.core.address import PAGE
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import Memory, MemoryFault, read_word
from anyprobe.data.layouts.layout import BLOCK_PAGE, HEADER_BYTES, NEXT_BLOCK
from anyprobe.journal.installed import journal_places
from anyprobe.journal.memfds import is_ours
from anyprobe.journal.records import FoundJournal, MappingUse, RecordKind
from anyprobe.splice.apply.saved_pcs import Stacks
from anyprobe.splice.memory.memfd import held_ranges
from anyprobe.target.base import ImmovableThread, ProcessTarget, StoppedThread
from anyprobe.target.system.procfs import Mapping

_PERF_EVENT = "anon_inode:[perf_event]"


def ranges_of(journals: Sequence[FoundJournal], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """Return what is mapped of the journals' memfds; a journal's word alone is not enough to unmap anything."""
    ranges = []
    for journal in journals:
        inode = next(m.inode for m in mappings if m.start == journal.address)
        gates = [r.address for r in journal.of(RecordKind.MAPPING) if r.extra == MappingUse.GATE]
        ranges += held_ranges(mappings, inode, gates)
    return ranges


def pages_of_threads(
    memory: Memory, journals: Sequence[FoundJournal], mappings: Sequence[Mapping]
) -> list[tuple[int, int]]:
    """Return the pages by which threads see that they have lost their processor (``codegen.processor_clock``).

    Each is a mapping of a perf event that a bank's block names; the program's own are in no block.
    """
    events = {m.start: m.end for m in mappings if m.path == _PERF_EVENT and m.end - m.start == PAGE}
    found = set[int]()
    for record in (r for journal in journals for r in journal.of(RecordKind.BANK) if events):
        with suppress(MemoryFault):  # unmapped by a removal that did not come to its end: the pages went before it
            blocks = min(read_word(memory, record.address + NEXT_BLOCK), record.extra >> 32)
            first = record.address + HEADER_BYTES + record.size
            for block in range(first, first + blocks * record.size, record.size):
                found.add(read_word(memory, block + BLOCK_PAGE))
    return [(start, end) for start, end in sorted(events.items()) if start in found]


def unlisted(found: Sequence[FoundJournal], mappings: Sequence[Mapping], *, thorough: bool) -> list[tuple[int, int]]:
    """Return anyprobe's mappings that belong to no journal.

    A controller that dies between the first mapping and its header leaves that one alone: nothing leads there yet.
    Others cannot come about, but the program could damage what it finds; a ``thorough`` removal takes those too.
    """
    own = [m for m in mappings if is_ours(m)]
    journals = {journal.address for journal in found}
    known = {m.inode for m in own if m.start in journals}
    alone = [m.inode for m in own]
    return [
        (m.start, m.end)
        for m in own
        if m.inode not in known and (thorough or (m in journal_places([m]) and alone.count(m.inode) == 1))
    ]


def code_of(ranges: Sequence[tuple[int, int]], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """Return the ranges that can be run."""
    executable = {m.end for m in mappings if m.executable and is_ours(m)}
    return sorted((low, high) for low, high in ranges if high in executable)


def about_to_call(process: ProcessTarget, threads: Iterable[StoppedThread]) -> tuple[str, ...]:
    """Return the threads in which a controller died before its call was made: they will make it when they run.

    A stop interrupts a ``clone`` that has just begun (ERESTARTNOINTR): such a thread stands after the instruction, and
    will make the call again. It is not told from one whose call has been made, which is gone a moment later.
    """
    with suppress(UnsupportedTarget):
        gadgets = process.gadgets()
        places = (gadgets.syscall_ret, gadgets.after_syscall)
        back = (gadgets.restorer or gadgets.pop_rax).to_bytes(8, "little")
        return tuple(
            f"a call in thread {thread.tid}"
            for thread in threads
            if thread.registers.rip in places and process.mem.read(thread.registers.rsp, 8) == back
        )
    return ()


def on_our_stacks(ranges: Sequence[tuple[int, int]], threads: Iterable[StoppedThread]) -> tuple[str, ...]:
    """Return the helper threads that a dead controller left: they end when they run, and not without their stack."""
    return tuple(
        f"thread {thread.tid}, which is about to end"
        for thread in threads
        if any(low <= thread.registers.rsp < high for low, high in ranges)
    )


def busy_code(
    memory: Memory,
    threads: Iterable[StoppedThread],
    waiting: Iterable[ImmovableThread],
    code: Sequence[tuple[int, int]],
    mappings: Sequence[Mapping],
    parked: Sequence[int] = (),
) -> tuple[str, ...]:
    """Return the ranges of code, of those given, that some thread is in or will come back to from a signal handler.

    ``parked``: the pcs of contexts that no thread is in at present.
    """
    import numpy as np

    if not code:
        return ()
    lows = np.array([low for low, _ in code], dtype=np.uint64)
    highs = np.array([high for _, high in code], dtype=np.uint64)
    busy: set[int] = set()
    stacks = Stacks(memory, mappings)
    for found in [parked, *map(stacks.code_words, threads), *map(stacks.words_after, waiting)]:
        words = np.array(found, dtype=np.uint64)
        words = words[(words >= lows[0]) & (words < highs.max())]
        index = np.searchsorted(lows, words, side="right") - 1
        busy.update(int(i) for i in index[words < highs[index]])
    return tuple(f"{code[i][0]:x}-{code[i][1]:x}" for i in sorted(busy))
