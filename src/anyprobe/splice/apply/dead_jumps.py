"""Jumps in dead bytes of the program's text, to which short jumps lead: who stands at one must still come to its patch.

Such a jump goes when its splice goes, or leads elsewhere afterwards. A thread that has taken the short jump and not yet
this one is moved to the patch. One that a signal has interrupted just there will come back: it has to be waited for.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.memory import Memory
from anyprobe.journal.records import AT_HANDLER, FoundJournal, Record, RecordKind
from anyprobe.splice.apply.saved_pcs import Stacks

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessQuiescence

_JUMP = b"\xe9"


def destination_of(address: int, jump: bytes) -> int:
    """Return where ``jmp rel32`` at an address leads."""
    return address + len(jump) + int.from_bytes(jump[1:], "little", signed=True)


def listed(journals: Sequence[FoundJournal], *, at_handlers: bool = False) -> dict[int, int]:
    """Return the jumps in dead bytes that journals list, by address, and where they lead.

    ``at_handlers``: only those of splices at the program's signal handlers.
    """
    records = (record for journal in journals for record in journal.of(RecordKind.SPLICE))
    found = (each for each in records if is_dead_jump(each) and (each.extra & AT_HANDLER or not at_handlers))
    return {each.address: destination_of(each.address, each.new) for each in found}


def is_dead_jump(record: Record) -> bool:
    """Return whether a splice has no patch of its own."""
    return record.kind is RecordKind.SPLICE and record.extra in (0, AT_HANDLER) and record.new[:1] == _JUMP


def leave(memory: Memory, boards: dict[int, int], stop: "ProcessQuiescence") -> Iterator[str]:
    """Move threads from the jumps that ``boards`` names to where these lead; yield what cannot be moved."""
    if not boards:
        return
    for tid, saved in Stacks(memory, stop.mappings).all_saved_pcs(stop):
        for pc in boards.keys() & set(saved):
            yield f"the springboard at {pc:#x}, to which a signal handler of thread {tid} will return"
    for thread in stop.threads:
        target = boards.get(thread.registers.rip)
        if target is not None:
            thread.registers.rip = target
            thread.store_registers()
