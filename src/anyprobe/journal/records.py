"""The journal: what was changed in one address space, kept in that address space, where the program cannot write it.

It is a private, read-only mapping of our memfd (so that ``maps`` names it), written through ``/proc/PID/mem``; fork
copies it together with the text that it describes. Any later controller undoes from it what an earlier one left. What
is read back is untrusted input: every record has a checksum and is compared with memory before anything is written.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from anyprobe.core.address import page_ceil
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.target.base import DataMemory

MAGIC = b"anyprobe"
VERSION = 2
"""Version of what has to be understood to undo everything.

Records of a kind that a reader does not know are no part of it."""
_READ = (1, 2)
"""The versions that are understood; from the second on there are semaphores."""
_HEADER = struct.Struct("<8sII16sIIQ8x")
_START_TIME_AT = 40
_REQUESTS_AT = 48
_CHANGE_AT = 56
HEADER_BYTES = 64
_RECORD = struct.Struct("<IBBBBQQQ16s16s")
_BODY = struct.Struct("<BBBBQQQ16s16s")
RECORD_BYTES = 64


INTERNAL = 1
"""Bit in the address of a patch, in place of its own."""
AT_HANDLER = 2
"""Another one: this is how the program's signal handlers come to see its own pcs, so it goes last."""


def marked(patch: int, *, internal: bool, at_handler: bool) -> int:
    """Return what a record of a splice says of its patch (0: it has none): where it is, but for two bits, and those."""
    flags = AT_HANDLER if at_handler else 0
    if not patch:
        return flags
    return patch & ~(INTERNAL | AT_HANDLER) | flags | (INTERNAL if internal else 0)  # a moved line begins anywhere


class Request(IntEnum):
    """What others may ask of a session."""

    OPTIMIZE = 1
    """Have probes reached by jumps, where that is safe."""
    UNOPTIMIZE = 2
    """Have probes reached by traps."""


class RecordKind(IntEnum):
    """What a record describes."""

    FREE = 0
    MAPPING = 1
    """address, size; ``extra`` is a ``MappingUse``."""
    SPLICE = 2
    """address, old and new bytes; ``extra`` is the patch's address, if it has one, with ``INTERNAL`` where no user
    asked for it, and ``AT_HANDLER``."""
    BANK = 3
    """A data bank with thread slots: address, size; ``extra`` is the slot's offset."""
    ACTION = 4
    """A signal's action that our handler at ``address`` replaced: ``size`` is the signal, ``extra`` the old handler,
    ``old`` its flags and restorer, ``new`` its mask."""
    RETURNS = 5
    """Stubs that stand for return addresses, ``size`` of them from ``address`` on; ``extra`` is their table."""
    WINDOW = 6
    """A site that is being changed while the program runs, from ``old`` to ``new``: an ``int3`` may stand at its head,
    before some of either."""
    PROBES = 7
    """Seven words about what is registered, see ``registrations``: in ``address``, ``size``, ``extra``, ``old`` and
    ``new``. Nothing is undone from them; earlier versions neither wrote nor read them."""
    SEMAPHORE = 8
    """A number in the program's data that is counted up, see ``semaphores``: ``size`` is the inode of what is mapped at
    ``address``, ``extra`` the place in the file; while it changes, ``old`` and ``new`` are its values."""
    COPY = 9
    """A function that runs elsewhere: its copy's ``address`` and ``size``; at ``extra`` is what each place there stands
    for, ``old`` says of how many that is told."""


_KINDS = frozenset(int(kind) for kind in RecordKind) - {RecordKind.FREE}


class MappingUse(IntEnum):
    """What one of our mappings is for."""

    JOURNAL = 1
    CODE = 2
    DATA = 3
    GATE = 4
    COUNTERS = 5
    SPRINGBOARD = 6


@dataclass(frozen=True, slots=True)
class Owner:
    """The session and the controller that wrote a journal."""

    session: bytes
    pid: int
    start_time: int
    """Field 22 of the controller's ``/proc/PID/stat``, so that pid reuse cannot deceive; 0 once the session ended."""

    @property
    def ended(self) -> bool:
        """Whether the session has restored all text; memory of it waits to be quiet."""
        return self.start_time == 0


class Record(NamedTuple):
    """One entry."""

    kind: RecordKind
    address: int
    size: int = 0
    extra: int = 0
    old: bytes = b""
    new: bytes = b""

    def pack(self) -> bytes:
        """Return the record's 64 bytes."""
        kind, address, size, extra, old, new = self
        body = _BODY.pack(kind, len(old), len(new), 0, address, size, extra, old, new)
        return zlib.crc32(body).to_bytes(4, "little") + body

    @classmethod
    def unpack(cls, raw: bytes) -> "Record | None":
        """Return the record, or ``None`` where the bytes are not one of anyprobe's."""
        crc, kind, old, new, _, address, size, extra, old_bytes, new_bytes = _RECORD.unpack(raw[: _RECORD.size])
        if crc != zlib.crc32(raw[4 : _RECORD.size]) or kind not in _KINDS or old > 16 or new > 16:
            return None
        return cls(RecordKind(kind), address, size, extra, old_bytes[:old], new_bytes[:new])


def journal_size(records: int) -> int:
    """Return the size in bytes of a journal with room for so many records."""
    return page_ceil(HEADER_BYTES + records * RECORD_BYTES)


class Journal:
    """One journal mapping, as its writer sees it."""

    def __init__(self, memory: DataMemory, address: int, size: int) -> None:
        """Adopt a mapping of our own; ``begin`` makes it a journal."""
        self._memory, self.address, self.size = memory, address, size
        self.capacity = (size - HEADER_BYTES) // RECORD_BYTES
        self._free: list[int] = []
        self._unused = 0
        """The first record that was never used."""

    def begin(self, owner: Owner) -> None:
        """Write the header."""
        body = _HEADER.pack(MAGIC, VERSION, self.capacity, owner.session, owner.pid, 0, owner.start_time)
        self._memory.write(self.address, body)

    @classmethod
    def found(cls, memory: DataMemory, found: "FoundJournal") -> "Journal":
        """Return the writer of a journal that another address space has inherited."""
        journal = cls(memory, found.address, found.size)
        used = {index for index, _ in found.records}
        journal._unused = max(used, default=-1) + 1
        journal._free = [index for index in range(journal._unused) if index not in used]
        return journal

    @property
    def change_at(self) -> int:
        """Address of a word that says which return points the text has jumps at: fork copies both together."""
        return self.address + _CHANGE_AT

    def note_change(self, number: int) -> None:
        """Write that word, once the text is as it says."""
        self._memory.write(self.change_at, number.to_bytes(8, "little"))

    def room(self) -> int:
        """Return how many more records fit."""
        return self.capacity - self._unused + len(self._free)

    def add(self, records: Iterable[Record]) -> list[int]:
        """Write records and return their indices, with one write per contiguous piece."""
        records = list(records)
        indices = [self._free.pop() for _ in range(min(len(records), len(self._free)))]
        fresh = len(records) - len(indices)
        indices += range(self._unused, self._unused + fresh)
        self._unused += fresh
        self._write(sorted(zip(indices, [record.pack() for record in records], strict=True)))
        return indices

    def clear(self, indices: Iterable[int]) -> None:
        """Free records."""
        freed = sorted(indices)
        empty = bytes(RECORD_BYTES)
        self._write([(index, empty) for index in freed])
        self._free.extend(reversed(freed))

    def rewrite(self, entries: Iterable[tuple[int, Record]]) -> None:
        """Write other records in place of some."""
        self._write(sorted([(index, record.pack()) for index, record in entries]))

    def _write(self, entries: list[tuple[int, bytes]]) -> None:
        start, count = 0, len(entries)
        gapless = count > 0 and entries[-1][0] - entries[0][0] == count - 1  # as they nearly always are
        while start < count:
            stop = count if gapless else start + 1
            while stop < count and entries[stop][0] == entries[stop - 1][0] + 1:
                stop += 1
            content = b"".join([raw for _, raw in entries[start:stop]])
            self._memory.write(self.address + HEADER_BYTES + entries[start][0] * RECORD_BYTES, content)
            start = stop


@dataclass(frozen=True)
class FoundJournal:
    """A journal read back from some address space."""

    address: int
    size: int
    owner: Owner
    records: tuple[tuple[int, Record], ...]
    """(index, record)."""
    checksum: int
    """Checksum of the whole mapping, to see whether it changed since."""

    def of(self, kind: RecordKind) -> Sequence[Record]:
        """Return the records of a kind, in their order."""
        return self._by_kind.get(kind, ())

    @cached_property
    def _by_kind(self) -> dict[RecordKind, list[Record]]:
        found: dict[RecordKind, list[Record]] = {}
        for _, record in self.records:
            found.setdefault(record.kind, []).append(record)
        return found


def rewrite_record(memory: DataMemory, journal: FoundJournal, index: int, record: Record) -> None:
    """Write another record in place of one of a journal that was found."""
    _write_at(memory, journal, index, record.pack())


def clear_record(memory: DataMemory, journal: FoundJournal, index: int) -> None:
    """Free a record of a journal that was found: what it says has been undone."""
    _write_at(memory, journal, index, b"")


def _write_at(memory: DataMemory, journal: FoundJournal, index: int, packed: bytes) -> None:
    at = journal.address + HEADER_BYTES + index * RECORD_BYTES
    memory.write(at, packed.ljust(RECORD_BYTES, b"\0"))


def mark_ended(memory: DataMemory, address: int) -> None:
    """Note that a session has ended: its text is restored, and what is still mapped waits to be quiet."""
    memory.write(address + _START_TIME_AT, bytes(8))


def requests(memory: Memory, address: int) -> tuple[int, int]:
    """Return what was last asked of the session that wrote a journal, and what of that it has done."""
    asked, done = memory.read(address + _REQUESTS_AT, 2)
    return asked, done


def ask(memory: DataMemory, address: int, request: Request) -> None:
    """Ask something of the session that wrote a journal; it sees that at its next look."""
    memory.write(address + _REQUESTS_AT, bytes([request, 0]))


def answer(memory: DataMemory, address: int, request: int) -> None:
    """Note that a request was carried out."""
    memory.write(address + _REQUESTS_AT + 1, bytes([request]))


def read_owner(memory: Memory, address: int) -> Owner | None:
    """Return who wrote the journal in a mapping, ``None`` where there is none; raise ``MemoryFault`` if unreadable.

    That of a later version is an error: to take it for nothing would be to unmap what its splices lead into.
    """
    raw = memory.read(address, _HEADER.size)
    magic, version, _, session, pid, _, start_time = _HEADER.unpack(raw)
    if magic != MAGIC:
        return None
    if version not in _READ:
        raise UnsupportedTarget(
            f"an anyprobe session (process {pid}) of another version has written the journal at {address:#x} "
            f"(format {version}, this one reads {VERSION}): use that version"
        )
    return Owner(session, pid, start_time)


def read_journal(memory: Memory, address: int, size: int) -> FoundJournal | None:
    """Return the journal in a mapping, or ``None`` where there is none."""
    owner = read_owner(memory, address)
    if owner is None:
        return None
    raw = memory.read(address, size)
    return FoundJournal(
        address, size, owner, tuple(_records(raw, (size - HEADER_BYTES) // RECORD_BYTES)), zlib.crc32(raw)
    )


def journal_unchanged(memory: Memory, journal: FoundJournal) -> bool:
    """Return whether a journal still is what was read."""
    try:
        return zlib.crc32(memory.read(journal.address, journal.size)) == journal.checksum
    except MemoryFault:
        return False


def _records(raw: bytes, capacity: int) -> Iterator[tuple[int, Record]]:
    for index in range(capacity):
        start = HEADER_BYTES + index * RECORD_BYTES
        if raw[start + 4]:
            record = Record.unpack(raw[start : start + RECORD_BYTES])
            if record is not None:
                yield index, record
