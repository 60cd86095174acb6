"""What the journal says is registered."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import TargetExited
from anyprobe.journal.records import Journal, Owner, Record, RecordKind, read_journal
from anyprobe.journal.registrations import WORDS, Entry, Registrations, listed

BASE, SIZE = 0x7000_0000, 4096
OWNER = Owner(b"0123456789abcdef", 4711, 99)


@pytest.fixture
def memory(plain_memory):
    return plain_memory(BASE, SIZE)


@pytest.fixture
def journal(memory):
    journal = Journal(memory, BASE, SIZE)
    journal.begin(OWNER)
    return journal


@pytest.fixture
def access(journal):
    process = SimpleNamespace(exclusive=nullcontext, mappings=lambda: ())
    listed = [journal]
    return SimpleNamespace(
        process=process, listed=listed, journals=lambda: reversed(listed), check_sessions=lambda mappings: None
    )


def registrations_of(access, *, over=False):
    return Registrations(access, lambda: over)


def read(memory):
    return listed(read_journal(memory, BASE, SIZE))


@pytest.mark.parametrize("letter", ["k", "r", "j"])
@pytest.mark.parametrize(("disabled", "gone"), [(False, False), (True, False), (False, True)])
def test_a_word_says_what_an_entry_is(letter, disabled, gone):
    entry = Entry(0x7FFF_1234_5678, letter, disabled, gone)
    assert entry.word < 1 << 64
    assert Entry.of(entry.word) == entry


def test_words_that_mean_nothing():
    assert Entry.of(0) is Entry.of(0x401000) is Entry.of(0xF << 56 | 0x401000) is None


def test_what_is_entered_is_listed_and_what_leaves_is_not(memory, access):
    registrations = registrations_of(access)
    for number in range(20):
        registrations.enter(number, lambda number=number: [Entry(0x1000 * number + at, "k") for at in range(3)])
    assert registrations.backlog() == 60
    registrations.write()
    assert registrations.backlog() == 0
    assert len(read(memory)) == 60
    registrations.leave([3, 4])
    registrations.write()
    assert {entry.address >> 12 for entry in read(memory)} == set(range(20)) - {3, 4}
    registrations.enter("late", lambda: [Entry(0x99, "j")] * 6)
    records = [record for _, record in read_journal(memory, BASE, SIZE).records]
    registrations.write()
    assert [record.kind for record in records] == [RecordKind.PROBES] * -(-60 // WORDS)
    assert len(read_journal(memory, BASE, SIZE).records) == len(records)  # the words that were free were taken
    assert read(memory).count(Entry(0x99, "j")) == 6


def test_states_change_in_place(memory, access):
    registrations, states = registrations_of(access), [Entry(0x10, "r")]
    registrations.enter("one", lambda: states)
    registrations.write()
    states[0] = Entry(0x10, "r", disabled=True)
    registrations.note(["one", "unknown"])
    registrations.write()
    assert read(memory) == states
    states[0] = Entry(0x10, "r", gone=True)
    registrations.note_all()
    registrations.write()
    assert read(memory) == states


def test_what_finds_no_room_waits_for_another_journal(memory, access, journal, plain_memory):
    journal.add([Record(RecordKind.SPLICE, 1)] * journal.room())
    registrations = registrations_of(access)
    registrations.enter("one", lambda: [Entry(0x10, "k")])
    registrations.write()
    assert (read(memory), registrations.backlog()) == ([], 1)
    other = plain_memory(BASE, SIZE)
    access.listed.append(Journal(other, BASE, SIZE))
    access.listed[-1].begin(OWNER)
    registrations.write()
    assert read(other) == [Entry(0x10, "k")]


def test_nothing_is_written_where_the_session_is_not(memory, access):
    def gone(mappings):
        raise TargetExited(4711)

    access.check_sessions = gone
    registrations = registrations_of(access)
    registrations.enter("one", lambda: [Entry(0x10, "k")])
    memory.writes.clear()
    registrations.write()
    assert memory.writes == []


def test_nothing_is_written_once_another_has_removed_the_session(memory, access):
    registrations = registrations_of(access, over=True)
    registrations.enter("one", lambda: [Entry(0x10, "k")])
    memory.writes.clear()
    registrations.write()
    assert memory.writes == []
