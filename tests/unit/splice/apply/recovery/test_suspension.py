"""Where nobody may be when splices are put in again."""

from anyprobe.journal.records import Record, RecordKind
from anyprobe.splice.apply.recovery.suspension import between

JUMP, SHORT = b"\xe9\0\0\0\0", b"\xeb\x10"


def splice(address, new, patch=0x7000):
    return Record(RecordKind.SPLICE, address, len(new), patch, bytes(len(new)), new)


def test_the_bytes_behind_the_first():
    assert between([splice(0x100, JUMP), splice(0x200, SHORT)]) == {0x101, 0x102, 0x103, 0x104, 0x201}


def test_a_springboard_in_what_another_splice_displaces():
    found = between([splice(0x108, JUMP, patch=0), splice(0x100, JUMP), splice(0x120, SHORT)])
    assert found == {*range(0x101, 0x10D), 0x121}


def test_a_springboard_in_dead_bytes():
    assert between([splice(0x100, JUMP), splice(0x180, JUMP, patch=0)]) == {*range(0x101, 0x105), *range(0x181, 0x185)}
