import mmap
import os
import struct
import tracemalloc
from dataclasses import replace

import pytest

from anyprobe.data.layouts.histogram import BUCKETS
from anyprobe.data.layouts.layout import (
    BLOCK_TOP,
    CHILD_BIT,
    CHILD_BYTES,
    INSTANCE_BYTES,
    INSTANCE_RECORD,
    INSTANCE_SP,
    INSTANCE_T0,
    NEAR_BUCKETS,
    NEXT_BLOCK,
    RECORD_BUCKETS,
    RECORD_COUNT,
    RECORD_LEARNING,
    RECORD_MAX,
    RECORD_MISSED,
    RECORD_NOT_MIN,
    RECORD_SELF,
    RECORD_SUM,
    RECORD_TAIL,
    RECORD_UNMATCHED,
    BankLayout,
)
from anyprobe.data.readers.compact import CompactBlock
from anyprobe.data.readers.near_reader import NearReader
from anyprobe.data.readers.reader import BankReader, Blocks, EndedCounts, ForkChild
from anyprobe.journal.memfds import written_extents

SHARED = -1


class Bank:
    """The region of a bank, written as the target would."""

    def __init__(self, used=2):
        self.layout = BankLayout(counters=4, records=2, maxactive=8)
        self.region = bytearray(self.layout.blocks_offset + 4 * self.layout.stride)
        self.layout_size = len(self.region)
        struct.pack_into("<Q", self.region, NEXT_BLOCK, used)

    @property
    def reader(self):
        """Read the bank as it is now; a reader keeps what it has found."""
        return BankReader(memoryview(self.region), self.layout)

    def put(self, block, offset, value):
        start = self.layout.blocks_offset + block * self.layout.stride
        struct.pack_into("<Q", self.region, start + offset, value)


@pytest.fixture
def bank():
    return Bank()


def test_counters_are_summed_over_the_shared_block_and_the_blocks_in_use(bank):
    first, second = bank.layout.new_counter(), bank.layout.new_counter()
    for block, value in ((SHARED, 1000), (0, 1), (1, 20), (2, 10**6)):
        bank.put(block, second, value)
    counters = bank.reader.counters()
    assert counters[bank.reader.counter_index(second)] == 1021
    assert counters[bank.reader.counter_index(first)] == 0
    assert len(counters) == 4


def test_blocks_of_threads_that_are_left_out_are_not_read():
    bank = Bank(used=3)
    bank.layout.left_out = 2
    reader = BankReader(memoryview(bank.region), bank.layout)
    counter, record = bank.layout.new_counter(), bank.layout.new_record()
    for block, value in ((SHARED, 1000), (0, 1), (1, 20), (2, 300)):
        bank.put(block, counter, value)
        bank.put(block, record + RECORD_NOT_MIN, (1 << 64) - 1 - value)
        bank.put(block, bank.layout.far_of(record) + 8 * NEAR_BUCKETS, value)
        bank.put(block, BLOCK_TOP, 1)
        bank.put(block, bank.layout.instances_offset + INSTANCE_SP, 0x7000)
    assert reader.counters()[0] == 1300
    assert reader.record(record).count == 1300
    assert sum(reader.in_flight().values()) == 2


def test_more_blocks_wanted_than_there_are():
    layout = BankLayout(counters=4, maxactive=8)
    region = bytearray(layout.blocks_offset + layout.blocks * layout.stride)
    struct.pack_into("<Q", region, NEXT_BLOCK, layout.blocks + 1000)
    counter = layout.new_counter()
    struct.pack_into("<Q", region, layout.size - layout.stride + counter, 7)
    assert BankReader(memoryview(region), layout).counters()[0] == 7


def test_the_view_is_live(bank):
    counter = bank.layout.new_counter()
    assert bank.reader.counters()[0] == 0
    bank.put(0, counter, 5)
    assert bank.reader.counters()[0] == 5


def test_records_are_summed_and_their_extremes_combined(bank):
    bank.layout.new_record()
    record = bank.layout.new_record()
    for block, low, high, count in ((0, 30, 90, 2), (1, 50, 4000, 3)):
        bank.put(block, record + RECORD_COUNT, count)
        bank.put(block, record + RECORD_SUM, 100 * count)
        bank.put(block, record + RECORD_NOT_MIN, (1 << 64) - 1 - low)
        bank.put(block, record + RECORD_MAX, high)
        bank.put(block, record + RECORD_TAIL, 1)
        bank.put(block, record + RECORD_BUCKETS + 4 * 40, count)
    bank.put(1, bank.layout.far_of(record) + 8 * (BUCKETS - 1), 9)
    bank.put(SHARED, record + RECORD_MISSED, 6)
    bank.put(SHARED, record + RECORD_UNMATCHED, 4)
    values = bank.reader.record(record)
    # of the nine calls whose duration is not in RECORD_COUNT yet, the bucket was read: what is shown adds up
    assert (values.count, values.sum, values.min, values.max) == (14, 500, 30, 4000)
    assert (values.tail, values.missed, values.unmatched) == (2, 6, 4)
    assert values.buckets == ((40, 5), (BUCKETS - 1, 9))


def test_a_record_without_a_duration(bank):
    values = bank.reader.record(bank.layout.new_record())
    assert (values.count, values.min, values.max, values.sum) == (0, 0, 0, 0)


def test_in_flight_counts_the_living_instances_below_the_top(bank):
    first, second = bank.layout.new_record(), bank.layout.new_record()
    stacks = {0: [(0x7F00, first), (1, first), (0x7E00, second)], 1: [(0, first), (0x7D00, first), (0x7C00, first)]}
    for block, instances in stacks.items():
        for number, (pointer, record) in enumerate(instances):
            at = bank.layout.instances_offset + INSTANCE_BYTES * number
            bank.put(block, at + INSTANCE_SP, pointer)
            bank.put(block, at + INSTANCE_RECORD, record)
    bank.put(0, BLOCK_TOP, 3)
    bank.put(1, BLOCK_TOP, 2)
    assert bank.reader.in_flight() == {first: 2, second: 1}


def test_a_top_beyond_the_stack_reads_the_stack_only(bank):
    bank.put(0, BLOCK_TOP, 10**9)
    assert bank.reader.in_flight() == {}


def test_banks_of_counters_have_nothing_in_flight():
    layout = BankLayout(counters=1)
    region = memoryview(bytearray(layout.blocks_offset + layout.blocks * layout.stride))
    assert BankReader(region, layout).in_flight() == {}


def test_near_counters():
    block = bytearray(4096)
    reader = NearReader(memoryview(block))
    struct.pack_into("<Q", block, 64, 77)
    assert reader.counter(64) == 77
    assert reader.counter(72) == 0


def test_calls_of_a_program_that_was_held_begin_later(bank):
    record = bank.layout.new_record()
    pointers = {0: [0x7F00, 1, 0x7E00, 0x7D00], SHARED: [0, 0x6F00]}  # of calls, freed ones, and those above the top
    for block, stack in pointers.items():
        for number, pointer in enumerate(stack):
            at = bank.layout.instances_offset + INSTANCE_BYTES * number
            for field, value in ((INSTANCE_SP, pointer), (INSTANCE_RECORD, record), (INSTANCE_T0, 1000 + number)):
                bank.put(block, at + field, value)
    bank.put(0, BLOCK_TOP, 3)
    bank.put(SHARED, BLOCK_TOP, 2)
    bank.reader.begin_later(500)

    def begins(block, number):
        start = bank.layout.blocks_offset + block * bank.layout.stride + bank.layout.instances_offset
        return struct.unpack_from("<Q", bank.region, start + INSTANCE_BYTES * number + INSTANCE_T0)[0]

    assert [begins(0, number) for number in range(4)] == [1500, 1001, 1502, 1003]
    assert [begins(SHARED, number) for number in range(2)] == [1000, 1501]


def test_banks_of_counters_have_no_calls_that_begin_later():
    layout = BankLayout(counters=4, records=0, maxactive=0)
    BankReader(memoryview(bytearray(layout.size)), layout).begin_later(500)


# -- memory that nobody has touched


@pytest.fixture
def sparse():
    """A bank in a memfd: block 0 has counted and block 2 is handed out and untouched."""
    layout = BankLayout(counters=2048, records=8, maxactive=512)
    fd = os.memfd_create("bank")
    os.ftruncate(fd, layout.size)
    memory = mmap.mmap(fd, layout.size)
    struct.pack_into("<Q", memory, NEXT_BLOCK, 3)
    counters = [layout.new_counter() for _ in range(2048)]
    records = [layout.new_record() for _ in range(8)]
    for offset in (counters[3], records[5] + RECORD_COUNT, layout.far_of(records[5]) + 8 * (BUCKETS - 1)):
        struct.pack_into("<Q", memory, layout.blocks_offset + offset, 7)

    def extents():
        end = 0
        while end < layout.size:
            try:
                start = os.lseek(fd, end, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(fd, start, os.SEEK_HOLE)
            yield start, end

    reader = BankReader(memoryview(memory), layout, extents())
    yield reader, counters, records, lambda: os.fstat(fd).st_blocks
    del reader
    os.close(fd)


def test_reading_does_not_allocate_memory(sparse):
    reader, counters, records, blocks = sparse
    before = blocks()
    assert reader.counters()[reader.counter_index(counters[3])] == 7
    assert reader.counters().sum() == 7
    values = [reader.record(offset) for offset in records]
    assert [value.count for value in values] == [0, 0, 0, 0, 0, 7, 0, 0]
    assert values[5].buckets == ((BUCKETS - 1, 7),)
    assert reader.in_flight() == {}
    assert blocks() == before


def test_an_untouched_near_counter_is_zero_and_stays_untouched():
    fd = os.memfd_create("near")
    os.ftruncate(fd, 8192)
    memory = mmap.mmap(fd, 8192)
    memory[4096:4104] = struct.pack("<Q", 5)
    reader = NearReader(memoryview(memory), [(4096, 8192)])
    assert [reader.counter(64), reader.counter(4096)] == [0, 5]
    assert os.fstat(fd).st_blocks == 8
    os.close(fd)


class Family:
    """The bank of a process with fork children, and their copies of header and blocks."""

    def __init__(self):
        self.layout = BankLayout(counters=4, records=2, maxactive=8, adopting=True)
        self.counter, self.record = self.layout.new_counter(), self.layout.new_record()
        self.region = mmap.mmap(-1, self.layout.size)
        self.copies = {}
        self.write(self.region, 10, 100)

    def write(self, memory, hits, ticks):
        """Have one thread hit the counter, and time one call."""
        struct.pack_into("<Q", memory, NEXT_BLOCK, 1)
        at = self.layout.blocks_offset
        for offset, value in (
            (self.counter, hits),
            (self.record + RECORD_COUNT, 1),
            (self.record + RECORD_SUM, ticks),
            (self.record + RECORD_MAX, ticks),
            (self.record + RECORD_NOT_MIN, (1 << 64) - 1 - ticks),
            (self.record + RECORD_BUCKETS + 4 * 6, 1 << 32),
        ):
            struct.pack_into("<Q", memory, at + offset, value)

    def fork(self, number, pid, hits, ticks):
        self.copies[number] = mmap.mmap(-1, self.layout.child_bytes)
        self.write(self.copies[number], hits, ticks)
        at = self.layout.children_offset + CHILD_BYTES * number
        struct.pack_into("<Q", self.region, at, pid | 1 << CHILD_BIT)

    def reader(self, ended=None):
        def copy(number):
            return memoryview(self.copies[number]), [(0, self.layout.child_bytes)]

        return BankReader(memoryview(self.region), self.layout, None, copy, ended)

    def kept(self, child, reader):
        """Return what is kept of a child once it has ended."""
        ended = EndedCounts(self.layout)
        ended.add(replace(child, ended=1), reader.compact(child), {})
        return ended


def test_what_fork_children_count_is_told_apart_and_added_up():
    family = Family()
    family.fork(3, 4242, 20, 50)
    family.fork(1000, 4243, 30, 700)
    reader = family.reader()
    assert reader.counters()[reader.counter_index(family.counter)] == 60
    first, second = ForkChild(3, 4242, has_copy=True), ForkChild(1000, 4243, has_copy=True)
    assert reader.forked() == [first, second]
    index = reader.counter_index(family.counter)
    assert {child: reader.hits_of(child) for child in reader.forked()} == {first: {index: 20}, second: {index: 30}}
    together = reader.record(family.record)
    assert (together.count, together.sum, together.min, together.max) == (3, 850, 50, 700)
    own = reader.record(family.record, "target")
    assert (own.count, own.sum, own.min, own.max) == (1, 100, 100, 100)
    other = reader.record(family.record, second)
    assert (other.count, other.sum, other.min, other.max) == (1, 700, 700, 700)


@pytest.mark.parametrize("field", [RECORD_TAIL, RECORD_UNMATCHED, RECORD_MISSED, RECORD_LEARNING, RECORD_SELF])
def test_what_is_in_no_bucket_is_written_too(bank, field):
    bank.layout.new_record()
    record = bank.layout.new_record()
    assert not bank.reader.is_written(record)
    bank.put(1, record + field, 1)
    assert bank.reader.is_written(record)
    bank.put(1, record + field, 0)
    bank.put(1, record - 8, 1)
    assert not bank.reader.is_written(record)


def test_records_are_written_by_one_process_or_another():
    family = Family()
    other = family.layout.new_record()
    family.fork(3, 4242, 20, 50)
    child, kept = ForkChild(3, 4242, has_copy=True), ForkChild(3, 4242, has_copy=True, ended=1)
    before = family.reader()
    struct.pack_into("<Q", family.region, family.layout.blocks_offset + other + RECORD_TAIL, 1)
    after = family.reader(family.kept(child, before))
    for whose in ("all", "target", child, kept):
        assert after.is_written(family.record, whose)
        assert after.is_written(other, whose) == (whose in {"all", "target"})


def test_what_ended_children_have_counted_is_as_before():
    """Another child may have the copy by then."""
    family = Family()
    family.fork(3, 4242, 20, 50)
    before = family.reader()
    child, kept = ForkChild(3, 4242, has_copy=True), ForkChild(3, 4242, has_copy=True, ended=1)
    ended = family.kept(child, before)
    family.fork(3, 4250, 5, 9)
    after = family.reader(ended)
    assert after.record(family.record, kept) == before.record(family.record, child)
    assert after.counters()[after.counter_index(family.counter)] == 35
    together = after.record(family.record)
    assert (together.count, together.sum, together.min, together.max) == (3, 159, 9, 100)


def test_of_a_child_that_much_is_kept_and_looked_at_as_it_has_written():
    """There is room for the calls of each function, in each thread."""
    layout = BankLayout(counters=4, records=1024, maxactive=8, adopting=True, threads=16)
    counter, records = layout.new_counter(), [layout.new_record() for _ in range(layout.records)]
    fd = os.memfd_create("copy")
    os.ftruncate(fd, layout.child_bytes)
    with mmap.mmap(fd, layout.child_bytes) as memory, memoryview(memory) as view:
        struct.pack_into("<Q", memory, NEXT_BLOCK, 2)
        for block, calls in ((0, 3), (1, 4)):
            at = layout.blocks_offset + block * layout.stride
            struct.pack_into("<Q", memory, at + counter, calls)
            struct.pack_into("<Q", memory, at + records[700] + RECORD_SUM, calls * 100)
            struct.pack_into("<Q", memory, at + records[700] + RECORD_MAX, 100 * calls)
            struct.pack_into("<Q", memory, at + layout.far_of(records[700]) + 8 * 1007, calls)
        struct.pack_into("<Q", memory, layout.blocks_offset + records[900] + RECORD_TAIL, 5)
        before = os.fstat(fd).st_blocks
        tracemalloc.start()
        try:
            kept = Blocks(view, layout, list(written_extents(fd, 0, layout.child_bytes))).compact()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert os.fstat(fd).st_blocks == before
    os.close(fd)
    assert peak < 1_000_000 < layout.stride
    assert kept.records() == [records[700], records[900]]
    assert kept.words(layout.counters_offset, 8 * layout.counters) == {0: 7}
    assert kept.columns(counter, 8).tolist() == [[7]]
    both = CompactBlock.joined(layout, [kept, kept])
    for block, times in ((kept, 1), (both, 2)):
        record = block.record(records[700])
        assert (record[RECORD_SUM // 8], record[RECORD_MAX // 8]) == (times * 700, 400)
        assert record[RECORD_BUCKETS // 8 + 1007] == times * 7
        assert block.record(records[900]) == {RECORD_TAIL // 8: times * 5}
        assert block.record(records[899]) == {}
