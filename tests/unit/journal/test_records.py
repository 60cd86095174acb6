from dataclasses import replace

import pytest

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.records import (
    HEADER_BYTES,
    RECORD_BYTES,
    VERSION,
    Journal,
    MappingUse,
    Owner,
    Record,
    RecordKind,
    journal_size,
    journal_unchanged,
    mark_ended,
    read_journal,
    read_owner,
)

BASE = 0x7000_0000
OWNER = Owner(b"0123456789abcdef", 4711, 99)
SPLICE = Record(RecordKind.SPLICE, 0x401000, 5, 0x7000_1000, b"\x55\x48\x89\xe5\x90", b"\xe9\1\2\3\4")


@pytest.fixture
def memory(plain_memory):
    return plain_memory(BASE, 4096)


@pytest.fixture
def journal(memory):
    journal = Journal(memory, BASE, 4096)
    journal.begin(OWNER)
    memory.writes.clear()
    return journal


def records_of(memory):
    return [record for _, record in read_journal(memory, BASE, 4096).records]


@pytest.mark.parametrize(
    "record",
    [
        SPLICE,
        Record(RecordKind.MAPPING, 0x7000_0000, 0x5000, MappingUse.SPRINGBOARD),
        Record(RecordKind.BANK, (1 << 64) - 8, (1 << 40), 0x238),
        Record(RecordKind.SPLICE, 1, 16, 2, bytes(range(16)), bytes(range(16, 32))),
    ],
)
def test_records_survive_packing(record):
    assert len(record.pack()) <= RECORD_BYTES
    assert Record.unpack(record.pack().ljust(RECORD_BYTES, b"\0")) == record


def test_each_flipped_bit_is_noticed():
    raw = SPLICE.pack()
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0x10
        assert Record.unpack(bytes(damaged)) is None


def test_a_free_record_is_no_record():
    assert Record.unpack(SPLICE._replace(kind=RecordKind.FREE).pack()) is None


def test_what_was_added_is_read_back(memory, journal):
    bank = Record(RecordKind.BANK, 0x1000, 0x2000, 0x200)
    assert journal.add([SPLICE, bank]) == [0, 1]
    found = read_journal(memory, BASE, 4096)
    assert found.owner == OWNER == read_owner(memory, BASE)
    assert found.records == ((0, SPLICE), (1, bank))


def test_corrupt_records_are_ignored_and_the_others_kept(memory, journal):
    journal.add([SPLICE._replace(address=address) for address in (1, 2, 3)])
    memory.content[HEADER_BYTES + RECORD_BYTES + 20] ^= 1
    assert [record.address for record in records_of(memory)] == [1, 3]


def test_contiguous_records_are_one_write(memory, journal):
    journal.add([SPLICE] * 10)
    assert [(address - BASE, len(content)) for address, content in memory.writes] == [(64, 640)]


def test_cleared_records_are_gone_and_used_again(memory, journal):
    indices = journal.add([SPLICE._replace(address=address) for address in range(6)])
    room = journal.room()
    memory.writes.clear()
    journal.clear([indices[4], indices[1], indices[2]])
    assert [(address - BASE - HEADER_BYTES, len(content)) for address, content in memory.writes] == [
        (1 * RECORD_BYTES, 2 * RECORD_BYTES),
        (4 * RECORD_BYTES, RECORD_BYTES),
    ]
    assert [record.address for record in records_of(memory)] == [0, 3, 5]
    assert journal.room() == room + 3
    assert sorted(journal.add([SPLICE] * 3)) == [1, 2, 4]


def test_capacity_fits_the_mapping(journal):
    assert journal.capacity == journal.room() == (4096 - HEADER_BYTES) // RECORD_BYTES
    assert journal_size(journal.capacity) == 4096
    assert journal_size(journal.capacity + 1) == 8192
    journal.add([SPLICE] * journal.capacity)
    assert journal.room() == 0


def test_a_change_behind_our_back_is_noticed(memory, journal):
    journal.add([SPLICE])
    found = read_journal(memory, BASE, 4096)
    assert journal_unchanged(memory, found)
    journal.clear([0])
    assert not journal_unchanged(memory, found)


def test_what_is_no_journal_of_ours(memory, journal):
    memory.content[0] ^= 0xFF
    assert read_owner(memory, BASE) is None
    assert read_journal(memory, BASE, 4096) is None


def test_an_unreadable_journal_is_not_an_absent_one(memory, journal):
    with pytest.raises(MemoryFault):
        read_owner(memory, BASE - 0x1000)
    with pytest.raises(MemoryFault):
        read_journal(memory, BASE, 8192)
    assert not journal_unchanged(memory, replace(read_journal(memory, BASE, 4096), size=8192))


def test_a_session_that_ended_says_so(memory, journal):
    mark_ended(memory, BASE)
    owner = read_owner(memory, BASE)
    assert owner.ended
    assert (owner.session, owner.pid) == (OWNER.session, OWNER.pid)


def test_records_that_are_not_known_are_passed_over(memory, journal):
    """Later versions may say more than has to be undone."""
    journal.add([SPLICE._replace(kind=kind) for kind in (RecordKind.SPLICE, 200)])
    assert records_of(memory) == [SPLICE]


def test_a_journal_of_another_version_is_no_nothing(memory, journal):
    """What a session of another version has written must not be taken for absent: its splices lead somewhere."""
    memory.content[8:12] = (VERSION + 1).to_bytes(4, "little")
    for read in (lambda: read_journal(memory, BASE, 4096), lambda: read_owner(memory, BASE)):
        with pytest.raises(UnsupportedTarget, match=f"process 4711.*format {VERSION + 1}"):
            read()


def test_a_journal_that_was_inherited_is_written_on(memory, journal):
    """A fork child has it at the same address, with the gaps that it had."""
    others = [SPLICE._replace(address=0x402000 + 16 * number) for number in range(3)]
    indices = journal.add(others)
    journal.clear([indices[1]])
    inherited = Journal.found(memory, read_journal(memory, BASE, 4096))
    assert inherited.room() == journal.room()
    added = [SPLICE._replace(address=0x403000), SPLICE._replace(address=0x404000)]
    assert inherited.add(added) == [indices[1], indices[2] + 1]
    found = read_journal(memory, BASE, 4096).of(RecordKind.SPLICE)
    assert {each.address for each in found} == {0x402000, 0x402020, 0x403000, 0x404000}
    inherited.clear([indices[0]])
    assert inherited.room() == journal.room() - 1
