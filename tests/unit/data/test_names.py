"""What is shown by name: addresses of code and stacks in keys and records."""

import numpy as np
import pytest

from anyprobe.data.aggregates.aggregations import Count
from anyprobe.data.aggregates.records import Field, RecordType, named, rows
from anyprobe.data.layouts.keys import KeyPart, KeyShape
from anyprobe.data.layouts.stacks import COUNT, DEPTH_LIMIT, FRAMES, HEAD_BYTES, PLACE_BYTES, PLACES, SIZE, StackView
from anyprobe.data.layouts.unwinding import BASE, CURRENT, LAST, RANGE_BYTES, ROWS, Range, UnwindRegion, room_for
from anyprobe.data.readers.tables import ROW_HEAD_BYTES, USED, TableLayout, TableView

SHAPE = KeyShape((KeyPart("func"), KeyPart("signed"), KeyPart("stack")))


def names(kind, number):
    return f"{kind} {number % 10}"


def test_keys_are_shown_by_name():
    words = np.array([[1, (1 << 64) - 2, 3]], np.uint64)
    assert SHAPE.decode(words, names) == [("func 1", -2, "stack 3")]
    assert SHAPE.decode(words) == [(1, -2, 3)]


def test_what_has_one_name_is_counted_together():
    layout = TableLayout(Count("c", capacity=4), KeyShape((KeyPart("func"),)))
    region = np.zeros(layout.size // 8, np.uint64)
    view = TableView(memoryview(region.view(np.uint8)), layout)
    view.names = names
    region[USED // 8] = 3
    for number, (address, count) in enumerate([(11, 5), (21, 7), (12, 9)]):
        region[layout.directory_offset // 8 + number] = number + 1
        region[layout.keys_offset // 8 + number] = address
        region[(layout.rows_offset + ROW_HEAD_BYTES + number * layout.cell_bytes) // 8] = count
    assert {key: cell.count for key, cell in view.result().entries.items()} == {("func 1",): 12, ("func 2",): 9}


def test_records_are_shown_by_name():
    kind = RecordType("r", (Field("f", "func"), Field("n", "i32"), Field("s", "stack"), Field("t", "text", 8)))
    records = np.zeros(3, kind.dtype)
    records["f"], records["n"], records["s"], records["t"] = [11, 12, 21], [1, 2, 3], [5, 6, 5], [b"a", b"b", b"c"]
    shown = named(records, kind, names)
    assert [row["f"] for row in rows(shown)] == ["func 1", "func 2", "func 1"]
    assert [row["s"] for row in rows(shown)] == ["stack 5", "stack 6", "stack 5"]
    assert [row["t"] for row in rows(shown)] == ["a", "b", "c"]
    plain = RecordType("p", (Field("n"),))
    untouched = np.zeros(2, plain.dtype)
    assert named(untouched, plain, names) is untouched
    assert len(named(records[:0], kind, names)) == 0


def test_stacks_that_others_have_written_are_none():
    region = np.zeros(SIZE // 8, np.uint64)
    view = StackView(memoryview(region.view(np.uint8)))
    first = (HEAD_BYTES + 4 * PLACE_BYTES) // 8
    region[first + COUNT // 8], region[first + FRAMES // 8] = 1, 77
    assert view.addresses(5) == [77]
    region[first + COUNT // 8] = DEPTH_LIMIT + 1
    assert view.addresses(5) == view.addresses(0) == view.addresses(PLACES + 1) == view.addresses(-1) == []


def test_unwinding_tables_replace_one_another():
    starts, rules = np.array([1, 5], np.uint32), np.array([9, 0], np.uint32)
    known = Range(0x1000, 0x2000, 0x800, starts, rules)
    region = np.zeros(room_for([known]) // 8, np.uint64)
    tables = UnwindRegion(memoryview(region.view(np.uint8)))
    assert tables.publish([known])
    first = int(region[CURRENT])
    assert tables.publish([known, Range(0x100, 0x200)])
    second = int(region[CURRENT])
    assert second > first
    assert region[first // 8] == 1
    assert region[second // 8] == 2
    old, new = first // 8 + 1, second // 8 + 1 + RANGE_BYTES // 8  # ascending: the known one comes second now
    assert [region[new + at // 8] for at in (LAST, BASE, ROWS)] == [0x2000, 0x800, region[old + ROWS // 8]]


@pytest.mark.parametrize("size", [64, 128])
def test_tables_without_room_are_not_published(size):
    region = np.zeros(size // 8, np.uint64)
    tables = UnwindRegion(memoryview(region.view(np.uint8)))
    starts = np.arange(100, dtype=np.uint32)
    assert not tables.publish([Range(0, 100, 0, starts, starts)])
    assert region[CURRENT] == 0
