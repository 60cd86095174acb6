"""Semaphores of USDT markers in journals: what undoes a session counts each of them down, and exactly once.

A semaphore is a 16-bit number in the program's data that says how many listen. Its record is there before it is
counted up. While it changes, the record has the value before and after: memory then tells whether that was done.
"""

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.journal.records import Record, RecordKind

if TYPE_CHECKING:
    from anyprobe.target.system.procfs import Mapping

NUMBER = struct.Struct("<H")
HIGHEST = 0xFFFF


class Place(NamedTuple):
    """What is mapped at an address: which file, and which byte of it. Another file there has other semaphores."""

    inode: int
    offset: int


def place_of(address: int, mappings: "Iterable[Mapping]") -> Place | None:
    """Return what a semaphore's address leads to, ``None`` where nothing is mapped."""
    for m in mappings:
        if m.start <= address and address + NUMBER.size <= m.end:
            return Place(m.inode, m.offset + address - m.start if m.inode else 0)
    return None


def held(address: int, place: Place) -> Record:
    """Return the record of a semaphore that the session has counted up."""
    return Record(RecordKind.SEMAPHORE, address, place.inode, place.offset)


def changing(record: Record, before: int, after: int) -> Record:
    """Return the record of a semaphore while it goes from one value to another."""
    return record._replace(old=NUMBER.pack(before), new=NUMBER.pack(after))


def is_in_place(record: Record, mappings: "Iterable[Mapping]") -> bool:
    """Return whether what a record speaks of is still mapped where it was."""
    return place_of(record.address, mappings) == (record.size, record.extra)


def released(record: Record, value: int) -> int:
    """Return what a semaphore with some value has to become when the session is undone.

    It goes down by one, unless the record shows that it never went up, or is down again, or another process has
    counted it down.
    """
    least = 0
    if len(record.old) == len(record.new) == NUMBER.size:
        least = min(NUMBER.unpack(record.old)[0], NUMBER.unpack(record.new)[0])
    return value - 1 if value > least else value
