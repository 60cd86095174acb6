"""Histograms whose buckets are in two places, near to the record and far from it: a bucket is the sum of both."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data.layouts.layout import NEAR_BUCKETS, NEXT_BLOCK, RECORD_BUCKETS, RECORD_COUNT, BankLayout
from anyprobe.data.readers.reader import BankReader, Blocks

BLOCKS, RECORDS = 3, 2
CALLS = st.integers(0, 1 << 31)
HELD = st.dictionaries(
    st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, RECORDS - 1), st.integers(0, NEAR_BUCKETS + 40)),
    st.tuples(CALLS, CALLS),
    max_size=20,
)


@given(HELD)
def test_all_calls_of_all_blocks_are_found_near_and_far_together_and_apart(held):
    layout = BankLayout(counters=3, records=RECORDS, maxactive=8)
    records = [layout.new_record() for _ in range(RECORDS)]
    region = bytearray(layout.blocks_offset + (BLOCKS - 1) * layout.stride)
    struct.pack_into("<Q", region, NEXT_BLOCK, BLOCKS - 1)
    wanted = [dict[int, int]() for _ in records]
    for (block, number, bucket), (near, far) in held.items():
        start, record = layout.shared_offset + block * layout.stride, records[number]
        region[start + record + RECORD_COUNT] = 1
        struct.pack_into("<Q", region, start + layout.far_of(record) + 8 * bucket, far)
        if bucket < NEAR_BUCKETS:
            struct.pack_into("<I", region, start + record + RECORD_BUCKETS + 4 * bucket, near)
        calls = far + near * (bucket < NEAR_BUCKETS)
        if calls:
            wanted[number][bucket] = wanted[number].get(bucket, 0) + calls
    reader, first = BankReader(memoryview(region), layout), RECORD_BUCKETS // 8
    compact = Blocks(memoryview(region), layout, None).compact()
    for record, buckets in zip(records, wanted, strict=True):
        found = reader.record(record)
        assert (dict(found.buckets), found.count) == (buckets, sum(buckets.values()))
        assert {word - first: calls for word, calls in compact.record(record).items() if word >= first} == buckets


def test_a_near_bucket_does_not_reach_into_what_comes_after_its_record():
    layout = BankLayout(counters=4, records=2, maxactive=8)
    first, second = layout.new_record(), layout.new_record()
    assert first + RECORD_BUCKETS + 4 * NEAR_BUCKETS == second
    assert second + RECORD_BUCKETS + 4 * NEAR_BUCKETS == layout.far_of(first)
