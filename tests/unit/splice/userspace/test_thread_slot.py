from types import SimpleNamespace

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts.layout import BLOCK_OWNER, HEADER_BYTES, NEXT_BLOCK, SLOTS
from anyprobe.splice.memory.space import QUIET, AddressSpace
from anyprobe.splice.userspace.thread_slot import choose_slot, clear_slots, region_place

BASE = 0x7000_0000
THREADS = [BASE + 0x1000, BASE + 0x2000, BASE + 0x3000]
STRIDE, BLOCKS, SLOT = 0x1000, 4, 0x240
REGION = BASE + 0x8000
FIRST = REGION + HEADER_BYTES + STRIDE


@pytest.fixture
def memory(plain_memory):
    memory = plain_memory(BASE, 0x10000)
    for pointer in THREADS:
        put(memory, pointer + 0x10, pointer)
    return memory


def put(memory, address, value):
    memory.write(address, value.to_bytes(8, "little"))


def word(memory, address):
    return int.from_bytes(memory.read(address, 8), "little")


# -- choosing


def test_the_slot_is_zero_in_every_thread(memory):
    for number, slot in enumerate(SLOTS):
        if slot != 0x248:
            put(memory, THREADS[number % 3] + slot, 1)
    assert choose_slot(memory, THREADS, frozenset()) == 0x248


def test_slots_of_other_sessions_are_left_alone(memory):
    taken = frozenset(SLOTS) - {0x210}
    assert choose_slot(memory, THREADS, taken) == 0x210
    assert choose_slot(memory, THREADS, frozenset(SLOTS)) is None


def test_no_slot_where_two_tasks_share_a_thread_pointer(memory):
    assert choose_slot(memory, [THREADS[0], THREADS[0]], frozenset()) is None


def test_no_slot_where_the_thread_pointer_is_no_control_block(memory):
    put(memory, THREADS[1] + 0x10, 0x1234)
    assert choose_slot(memory, THREADS, frozenset()) is None


def test_no_slot_where_the_control_block_cannot_be_read(memory):
    assert choose_slot(memory, [*THREADS, 0x10], frozenset()) is None


def test_tasks_without_a_thread_pointer_do_not_matter(memory):
    assert choose_slot(memory, [0, 0, THREADS[0]], frozenset()) in SLOTS


# -- the region


def test_all_addresses_of_a_region_have_its_bit():
    for size in (0x1000, 1 << 31):
        place, bit = region_place(AddressSpace([]), size)
        assert place & bit
        assert (place + size - 1) & bit
        assert place % 4096 == 0


def test_a_region_is_never_placed_on_something():
    taken = SimpleNamespace(start=0x10000, end=QUIET.stop - 0x5000, path="")
    place, bit = region_place(AddressSpace([taken]), 0x1000)
    assert taken.end < place < QUIET.stop
    assert place & bit
    assert region_place(AddressSpace([taken]), 0x5000) is None
    everything = SimpleNamespace(start=0x10000, end=0x7FFF_FFFF_F000, path="")
    assert region_place(AddressSpace([everything]), 0x1000) is None


# -- clearing


def hand_out(memory, *owners):
    put(memory, REGION + NEXT_BLOCK, len(owners))
    for number, owner in enumerate(owners):
        put(memory, FIRST + number * STRIDE + BLOCK_OWNER, owner)
        put(memory, owner + SLOT, FIRST + number * STRIDE)


def clear(memory, live=THREADS, mapped=()):
    clear_slots(
        memory, region=REGION, stride=STRIDE, blocks=BLOCKS, slot=SLOT, live=live, mapped=lambda at: at in mapped
    )


def test_slots_of_living_and_of_dead_threads_are_cleared(memory):
    hand_out(memory, THREADS[0], THREADS[1])
    clear(memory, live=[THREADS[0], 0])
    assert [word(memory, pointer + SLOT) for pointer in THREADS] == [0, 0, 0]


def test_a_thread_that_lost_its_block_to_a_reused_stack_is_cleared(memory):
    put(memory, THREADS[2] + SLOT, FIRST)  # the pointer of a dead thread; no block names this one
    clear(memory)
    assert word(memory, THREADS[2] + SLOT) == 0


def test_foreign_values_stay(memory):
    hand_out(memory, THREADS[0])
    put(memory, THREADS[0] + SLOT, REGION - 8)
    end = REGION + HEADER_BYTES + (BLOCKS + 1) * STRIDE
    put(memory, THREADS[1] + SLOT, end)
    clear(memory)
    assert word(memory, THREADS[0] + SLOT) == REGION - 8
    assert word(memory, THREADS[1] + SLOT) == end


def test_memory_that_is_no_control_block_any_more_is_not_written(memory):
    hand_out(memory, THREADS[0], THREADS[1])
    put(memory, THREADS[1] + 0x10, 0)
    put(memory, FIRST + 0 * STRIDE + BLOCK_OWNER, 0x10)  # unmapped by now
    memory.writes.clear()
    clear(memory, live=[])
    assert memory.writes == []


def test_a_slot_that_is_there_and_cannot_be_read_is_not_taken_for_an_empty_one(memory):
    hand_out(memory, THREADS[0])
    put(memory, FIRST + BLOCK_OWNER, 0x10000)
    clear(memory, live=[])
    with pytest.raises(MemoryFault):
        clear(memory, live=[], mapped=[0x10000])


def test_more_hits_than_blocks(memory):
    hand_out(memory, THREADS[0])
    put(memory, REGION + NEXT_BLOCK, 1000)
    clear(memory, live=[])
    assert word(memory, THREADS[0] + SLOT) == 0
