"""Text gets its own bytes back page by page, whatever has happened to it since that was laid out."""

import pytest

from anyprobe.core.address import PAGE
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.records import AT_HANDLER, FoundJournal, Owner, Record, RecordKind
from anyprobe.splice.apply.recovery.restoring import TextRestoration
from anyprobe.target.system.procfs import Mapping

BASE = 0x400000
OLD, NEW, OTHER = b"\x55\x48\x89\xe5\x53", b"\xe9\x01\x02\x03\x04", b"\xcc" * 5
MAPPED = [Mapping(BASE, BASE + 4 * PAGE, "r-xp", 0, "00:01", 1, "/lib/some.so", deleted=False)]
SITES = (BASE + 0x10, BASE + 0x20, BASE + PAGE + 8)


@pytest.fixture
def memory(plain_memory):
    """Four pages with splices at three sites."""
    found = plain_memory(BASE, 4 * PAGE)
    for site in SITES:
        found.write(site, NEW)
    return found


def text_of(memory, sites=SITES):
    records = [Record(RecordKind.SPLICE, site, 5, 0x1000, OLD, NEW) for site in sites]
    return TextRestoration(memory, [FoundJournal(0, 0, Owner(bytes(16), 1, 1), tuple(enumerate(records)), 0)])


def test_what_is_at_signal_handlers_goes_by_itself(memory):
    extras = (0x1000, 0x2000 | AT_HANDLER, AT_HANDLER)
    records = [Record(RecordKind.SPLICE, site, 5, x, OLD, NEW) for site, x in zip(SITES, extras, strict=True)]
    journal = FoundJournal(0, 0, Owner(bytes(16), 1, 1), tuple(enumerate(records)), 0)
    for at_handlers, left in ((False, [OLD, NEW, NEW]), (True, [OLD, OLD, OLD])):
        TextRestoration(memory, [journal], at_handlers=at_handlers).write(MAPPED)
        assert [memory.read(site, 5) for site in SITES] == left


def test_each_page_is_written_once(memory, monkeypatch):
    text, written = text_of(memory), []
    write = memory.write
    monkeypatch.setattr(memory, "write", lambda at, content: (written.append((at, len(content))), write(at, content)))
    text.write(MAPPED)
    assert written == [(SITES[0], 0x15), (SITES[2], 5)]
    assert [memory.read(site, 5) for site in SITES] == [OLD] * 3
    assert (text.splices, text.foreign, text.pages) == (3, (), [BASE, BASE + PAGE])


def test_what_the_program_has_written_since_stays(memory):
    text = text_of(memory)
    memory.write(SITES[0] + 5, b"new")
    memory.write(SITES[2], OTHER)
    text.write(MAPPED)
    assert memory.read(SITES[0], 8) == OLD + b"new"
    assert memory.read(SITES[2], 5) == OTHER
    assert (text.splices, text.foreign) == (2, (SITES[2],))


def test_a_change_that_was_cut_short_has_two_records_of_one_site(memory):
    """What is there is one of the two, or the old bytes: nothing foreign."""
    newer = b"\xe9\x0a\x0b\x0c\x0d"
    for order in ((NEW, newer), (newer, NEW)):
        for now in (NEW, newer, OLD):
            memory.write(SITES[0], now)
            records = [Record(RecordKind.SPLICE, SITES[0], 5, 0x1000, OLD, new) for new in order]
            journal = FoundJournal(0, 0, Owner(bytes(16), 1, 1), tuple(enumerate(records)), 0)
            text = TextRestoration(memory, [journal])
            text.write(MAPPED)
            assert memory.read(SITES[0], 5) == OLD
            assert (text.splices, text.foreign) == (int(now != OLD), ())


def test_a_second_time_finds_nothing_to_do(memory):
    text = text_of(memory)
    text.write(MAPPED)
    text.write(MAPPED)
    assert (text.splices, text.pages) == (3, [BASE, BASE + PAGE])


def test_text_that_cannot_be_read_matters_only_while_it_is_mapped(memory, monkeypatch):
    text, read = text_of(memory), memory.read

    def refuse(address, size):
        if address == BASE:
            raise MemoryFault(address, size)
        return read(address, size)

    monkeypatch.setattr(memory, "read", refuse)
    with pytest.raises(TargetError, match="text cannot be restored"):
        text.write(MAPPED)
    text.write([])
    assert read(SITES[2], 5) == OLD


@pytest.mark.parametrize("files", [True, False])
def test_a_byte_that_looks_like_a_trap_is_left_where_nothing_was_ever_written(memory, files):
    """Another library may be there now; a whole jump to a patch, though, is nobody else's."""
    traps = [BASE + 0x30, BASE + 2 * PAGE + 0x30]
    for trap in traps:
        memory.write(trap, b"\xcc")
    records = [Record(RecordKind.SPLICE, SITES[0], 5, 0x1000, OLD, NEW)]
    records += [Record(RecordKind.SPLICE, trap, 1, 0x1000, b"\x55", b"\xcc") for trap in traps]
    journal = FoundJournal(0, 0, Owner(bytes(16), 1, 1), tuple(enumerate(records)), 0)
    text = TextRestoration(memory, [journal], lambda page: files and page == BASE + 2 * PAGE)
    text.write(MAPPED)
    assert memory.read(SITES[0], 5) == OLD
    assert [memory.read(trap, 1) for trap in traps] == [b"\x55", b"\xcc" if files else b"\x55"]
    assert (text.splices, text.foreign) == ((2, (traps[1],)) if files else (3, ()))


@pytest.mark.parametrize(("permissions", "stays"), [("r-xs", True), ("r-xp", False), ("rwxs", False)])
def test_what_cannot_be_written_stays_only_in_shared_memory_that_is_closed(memory, monkeypatch, permissions, stays):
    """Elsewhere a write that fails is raised, so that it is tried again."""

    def fail(address, content):
        raise MemoryFault(address, len(content))

    monkeypatch.setattr(memory, "write", fail)
    mapped = [MAPPED[0]._replace(perms=permissions)]
    text = text_of(memory)
    if stays:
        text.write(mapped)
        assert (text.splices, text.foreign) == (0, SITES)
        return
    with pytest.raises(MemoryFault):
        text.write(mapped)


def test_a_breakpoint_elsewhere_does_not_widen_what_is_written(memory, monkeypatch):
    """The kernel may take other breakpoints away meanwhile: what was read of these must not be written again."""
    lone, last = BASE + 0x200, BASE + 0x300
    for site in (lone, last):
        memory.write(site, b"\xcc" + OLD[1:])
    for site in SITES[:2]:
        memory.write(site, NEW)
    text, written = text_of(memory, (*SITES[:2], lone, last)), []
    write = memory.write
    monkeypatch.setattr(memory, "write", lambda at, content: (written.append((at, len(content))), write(at, content)))
    text.write(MAPPED)
    assert written == [(SITES[0], 0x15)]
    assert memory.read(lone, 5) == b"\xcc" + OLD[1:]
