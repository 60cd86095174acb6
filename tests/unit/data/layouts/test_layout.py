import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data.layouts import layout
from anyprobe.data.layouts.histogram import BUCKETS
from anyprobe.data.layouts.layout import BankLayout

LAYOUTS = [(1, 0, 0), (1000, 0, 0), (0, 1, 16), (64, 20, 128), (100_000, 500, 256)]


@pytest.mark.parametrize("capacities", LAYOUTS)
def test_the_parts_of_a_block_follow_each_other(capacities):
    bank = BankLayout(*capacities)
    counters, records, maxactive = capacities
    assert bank.instances_offset == layout.BLOCK_HEAD_BYTES
    assert bank.counters_offset == bank.instances_offset + layout.INSTANCE_BYTES * maxactive
    assert bank.records_offset == bank.counters_offset + 8 * counters
    assert bank.stride % 4096 == 0
    assert 0 <= bank.stride - (bank.records_offset + records * (layout.RECORD_BYTES + layout.FAR_BYTES)) < 4096


@pytest.mark.parametrize("capacities", LAYOUTS)
def test_blocks_follow_the_header_and_fill_the_region(capacities):
    bank = BankLayout(*capacities)
    assert bank.shared_offset == layout.HEADER_BYTES
    assert bank.blocks_offset == bank.shared_offset + bank.stride
    assert bank.size == bank.blocks_offset + bank.blocks * bank.stride
    assert 16 <= bank.blocks <= 1024


@given(st.integers(0, 1 << 20), st.integers(0, 4000), st.integers(0, 4096))
def test_a_bank_keeps_to_the_limit_unless_that_left_it_too_few_blocks(counters, records, maxactive):
    bank = BankLayout(counters, records, maxactive)
    assert bank.size <= layout.BANK_BYTES_LIMIT + layout.HEADER_BYTES or bank.blocks == 16


def test_few_blocks_where_all_of_them_take_memory():
    assert [layout.room_for(threads, is_scarce=True) for threads in (1, 8, 9, 100)] == [16, 16, 32, 256]
    assert [BankLayout(64, 20, 128, threads=threads).blocks for threads in (16, 32, 256)] == [16, 32, 256]
    assert layout.room_for(1) == 1024


def test_offsets_are_handed_out_once():
    bank = BankLayout(3, 2, 16)
    counters = [bank.new_counter() for _ in range(3)]
    records = [bank.new_record() for _ in range(2)]
    assert counters == [bank.counters_offset + 8 * number for number in range(3)]
    assert records == [bank.records_offset, bank.records_offset + layout.RECORD_BYTES]
    assert bank.counters_left() == bank.records_left() == 0
    assert records[-1] + layout.RECORD_BYTES == bank.far_of(records[0])
    assert bank.far_of(records[-1]) + layout.FAR_BYTES <= bank.stride


def test_the_fields_of_a_record_do_not_overlap():
    names = ("SUM", "NOT_MIN", "MAX", "COUNT", "TAIL", "UNMATCHED", "MISSED")
    fields = [getattr(layout, f"RECORD_{name}") for name in names]
    assert len(set(fields)) == len(fields)
    assert max(fields) + 8 <= layout.RECORD_BUCKETS
    assert all(field % 8 == 0 for field in fields)
    assert layout.RECORD_BYTES % 64 == 0
    assert 8 * BUCKETS <= layout.FAR_BYTES
