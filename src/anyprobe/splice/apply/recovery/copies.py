"""Leading threads out of copies of functions, in whose loops they might stay for ever, by what the journals list."""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.journal.memfds import is_ours
from anyprobe.journal.records import FoundJournal, Record, RecordKind
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.target.base import StoppedThread
from anyprobe.target.system.procfs import Mapping

_PAIR = struct.Struct("<Ii")
"""Where in the copy, and how far from the copy's beginning the instruction is for which that stands."""
PAIR_BYTES = _PAIR.size
_MOST = 1 << 20


def table_of(patch: EmittedPatch) -> bytes:
    """Return what each place of a copy stands for."""
    base = patch.address
    return b"".join(_PAIR.pack(at - base, old - base) for at, old in {at: old for old, at in patch.copies}.items())


def record_of(patch: EmittedPatch, table: int, size: int) -> Record:
    """Return how a journal lists a copy, of which a table of some bytes is at an address."""
    return Record(RecordKind.COPY, patch.address, len(patch.code), table, (size // PAIR_BYTES).to_bytes(8, "little"))


def leave_copies(
    memory: Memory, threads: Iterable[StoppedThread], journals: Sequence[FoundJournal], mappings: Sequence[Mapping]
) -> None:
    """Have threads in copies of functions go on in the originals. Precondition: the text is the program's own."""
    copies = [record for journal in journals for record in journal.of(RecordKind.COPY)]
    own = [mapping for mapping in mappings if is_ours(mapping)]
    for thread in threads if copies else ():
        pc = thread.registers.rip
        record = next((each for each in copies if each.address <= pc < each.address + each.size), None)
        if record is None or not any(each.start <= record.extra < each.end for each in own):
            continue
        count = int.from_bytes(record.old, "little")
        with suppress(MemoryFault):
            pairs = _PAIR.iter_unpack(memory.read(record.extra, PAIR_BYTES * min(count, _MOST)))
            distance = next((distance for place, distance in pairs if record.address + place == pc), None)
            if distance is not None:
                thread.registers.rip = record.address + distance
                thread.store_registers()
