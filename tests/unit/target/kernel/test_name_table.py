"""Names by number and numbers by name, packed and found again."""

import pytest

from anyprobe.target.kernel.name_table import NameTable

NAMES = [b"vfs_read", b"read", b"vfs_read_more", b"read", b"zero", b""]


@pytest.fixture
def table():
    return NameTable(memoryview(b"before" + NameTable.packed(NAMES))[6:])


def test_names_have_their_numbers(table):
    assert [table.numbers(name) for name in ("vfs_read", "read", "zero")] == [[0], [1, 3], [4]]
    assert [table.numbers(name) for name in ("vfs", "ead", "more", "read_")] == [[]] * 4
    assert [table.name(each) for each in range(len(table))] == table.names() == [each.decode() for each in NAMES]


def test_names_that_start_with_a_text(table):
    assert list(table.starting("vfs_")) == [(0, "vfs_read"), (2, "vfs_read_more")]
    assert list(table.starting("read")) == [(1, "read"), (3, "read")]
    assert list(table.starting("x")) == []
    assert [number for number, _ in table.starting("")] == list(range(len(NAMES)))


def test_names_of_one_hash_are_told_apart():
    same = [b"plumless", b"buckeroo"]  # crc32 of both is 0x4ddb0c25
    table = NameTable(memoryview(NameTable.packed(same)))
    assert [table.numbers(each.decode()) for each in same] == [[0], [1]]


def test_no_names():
    table = NameTable(memoryview(NameTable.packed([])))
    assert (len(table), table.names(), table.numbers("f"), list(table.starting("f"))) == (0, [], [], [])
