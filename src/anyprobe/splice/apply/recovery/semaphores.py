"""Counting down the semaphores of USDT markers that journals say are up, in a stop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.records import FoundJournal, RecordKind, clear_record, rewrite_record
from anyprobe.journal.semaphores import NUMBER, changing, is_in_place, released
from anyprobe.target.base import DataMemory

if TYPE_CHECKING:
    from anyprobe.target.system.procfs import Mapping


def release(memory: DataMemory, journals: Sequence[FoundJournal], mappings: "Sequence[Mapping]") -> None:
    """Count each semaphore down that its record says is up, and clear the record.

    The record says what is done before it is done: where a controller is killed in between, the next one knows.
    """
    for journal in journals:
        for index, record in journal.records:
            if record.kind is not RecordKind.SEMAPHORE:
                continue
            try:
                if is_in_place(record, mappings):
                    value = NUMBER.unpack(memory.read(record.address, NUMBER.size))[0]
                    after = released(record, value)
                    if after != value:
                        rewrite_record(memory, journal, index, changing(record, value, after))
                        memory.write(record.address, NUMBER.pack(after))
                clear_record(memory, journal, index)
            except MemoryFault as fault:
                raise TargetError(f"the semaphore at {record.address:#x} cannot be counted down: {fault}") from fault
