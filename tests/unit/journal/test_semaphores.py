"""Counting a semaphore down from its record alone, wherever a controller has died."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.journal.records import Record, RecordKind
from anyprobe.journal.semaphores import Place, changing, held, is_in_place, place_of, released

ADDRESS = 0x5000


@dataclass(frozen=True)
class Area:
    """A line of the memory map."""

    start: int
    end: int
    inode: int
    offset: int


MAPPINGS = [Area(0x4000, 0x5000, 7, 0x3000), Area(0x5000, 0x6000, 7, 0x4000), Area(0x7000, 0x8000, 0, 0)]
HELD = held(ADDRESS, Place(7, 0x4000))


@given(st.integers(0, 0xFFFE), st.booleans())
def test_whoever_dies_while_it_goes_up_is_followed_by_one_who_sees_whether_it_has(before, written):
    record = changing(HELD, before, before + 1)
    assert released(record, before + written) == before


@given(st.integers(1, 0xFFFF), st.booleans())
def test_whoever_dies_while_it_goes_down_is_followed_by_one_who_sees_whether_it_has(before, written):
    record = changing(HELD, before, before - 1)
    assert released(record, before - written) == before - 1


@pytest.mark.parametrize(("value", "after"), [(0, 0), (1, 0), (5, 4), (0xFFFF, 0xFFFE)])
def test_one_that_is_up_goes_down_by_one_and_never_below_zero(value, after):
    assert released(HELD, value) == after


def test_records_come_back_as_they_were_written():
    record = changing(HELD, 3, 4)
    assert Record.unpack(record.pack().ljust(64, b"\0")) == record
    assert record.kind is RecordKind.SEMAPHORE


@pytest.mark.parametrize(
    ("mappings", "there"),
    [
        (MAPPINGS, True),
        (MAPPINGS[:1], False),
        ([Area(0x5000, 0x6000, 8, 0x4000)], False),
        ([Area(0x5000, 0x6000, 7, 0x8000)], False),
        ([Area(0x4000, 0x6000, 7, 0x3000)], True),
    ],
)
def test_only_what_is_mapped_from_the_same_place_of_the_same_file_is_counted_down(mappings, there):
    assert is_in_place(HELD, mappings) is there


def test_a_semaphore_in_no_file_is_known_by_its_address():
    place = place_of(0x7FFE, MAPPINGS)
    assert is_in_place(held(0x7FFE, place), MAPPINGS)
    assert place_of(0x7FFF, MAPPINGS) is None  # its second byte is not mapped
