from dataclasses import dataclass

import pytest

from anyprobe.core.address import PAGE, page_floor
from anyprobe.splice.memory.space import (
    GO_HEAP_ROOM,
    HEAP_ROOM,
    MINIMUM_ADDRESS,
    QUIET,
    REACH,
    STACK_ROOM,
    TOP,
    AddressSpace,
)

GB = 1 << 30
PIE = 0x5555_5555_0000
LIBRARY = 0x7FFF_0000_0000


@dataclass(frozen=True)
class Line:
    start: int
    end: int
    path: str = ""


def test_the_lowest_pages_and_the_kernel_half_are_taken():
    space = AddressSpace([])
    assert not space.is_free(0, 0x1000)
    assert not space.is_free(MINIMUM_ADDRESS - 0x1000, MINIMUM_ADDRESS + 0x1000)
    assert space.is_free(MINIMUM_ADDRESS, 0x7FFF_7000)
    assert space.is_free(1 << 32, TOP)
    assert not space.is_free(TOP - 0x1000, TOP + 0x1000)
    assert not space.is_free(-0x1000, 0x1000)


def test_room_stays_for_the_heap_and_the_stack():
    heap, stack = Line(0x2000_0000, 0x2001_0000, "[heap]"), Line(0x7FFE_0000_0000, 0x7FFE_0010_0000, "[stack]")
    space = AddressSpace([heap, stack])
    assert not space.is_free(0x2001_0000 + HEAP_ROOM - 0x1000, 0x2001_0000 + HEAP_ROOM)
    assert space.is_free(0x2001_0000 + HEAP_ROOM, 0x2001_0000 + HEAP_ROOM + 0x1000)
    low = 0x7FFE_0000_0000 - STACK_ROOM
    assert not space.is_free(low, low + 0x1000)
    assert space.is_free(low - 0x1000, low)


def test_room_stays_for_a_heap_that_does_not_exist_yet():
    low, heap = Line(0x10_0000, 0x20_0000), 0x43_0000
    space = AddressSpace([low, Line(0x40_0000, 0x42_0000, "/bin/x"), Line(LIBRARY, LIBRARY + 0x1000)], heap)
    assert space.is_free(low.end, 0x40_0000)
    assert space.is_free(0x42_0000, heap)
    assert not space.is_free(heap, heap + 0x1000)
    assert not space.is_free(heap + HEAP_ROOM - 0x1000, heap + HEAP_ROOM)
    assert space.is_free(heap + HEAP_ROOM, heap + HEAP_ROOM + 0x1000)
    assert space.is_free(LIBRARY + 0x1000, LIBRARY + 0x2000)


def test_a_gap_below_the_module_is_preferred():
    space = AddressSpace([Line(LIBRARY, LIBRARY + 0x10000, "/lib/x.so")])
    place = space.gap_near(LIBRARY, LIBRARY + 0x10000, 0x3000)
    assert place == LIBRARY - 0x3000 - 0x1000
    assert space.is_free(place, place + 0x3000)


def test_a_gap_above_where_below_is_taken():
    space = AddressSpace([Line(LIBRARY - 3 * GB, LIBRARY + 0x10000, "/lib/x.so")])
    assert space.gap_near(LIBRARY, LIBRARY + 0x10000, 0x3000) == LIBRARY + 0x11000


def test_a_gap_inside_what_is_to_be_reached_need_not_serve_from_its_beginning():
    end = LIBRARY + REACH + 0x5000
    space = AddressSpace([Line(LIBRARY - 3 * GB, LIBRARY + 0x1000), Line(end - 0x1000, end + 3 * GB)])
    place = space.gap_near(LIBRARY, end, 0x2000)
    assert LIBRARY + 0x1000 < end - REACH < place < end
    assert space.is_free(place, place + 0x2000)
    assert space.gap_near(LIBRARY, end, REACH - 0x3000) is None


def test_no_gap_within_reach():
    lines = [Line(PIE - 3 * GB, PIE), Line(PIE, PIE + 0x1000, "/bin/x"), Line(PIE + 0x1000, PIE + 3 * GB)]
    assert AddressSpace(lines).gap_near(PIE, PIE + 0x1000, 0x1000) is None


@pytest.mark.parametrize("size", [0x1000, 0x123000])
def test_gaps_are_near_to_the_last_page_within_reach(size):
    low, high = LIBRARY, LIBRARY + 0x20_0000
    furthest = page_floor(REACH - 1 - size - PAGE - (high - low))
    above = Line(high, high + REACH)
    near = AddressSpace([Line(low - furthest, high, "/lib/x.so"), above])
    assert near.gap_near(low, high, size) == low - furthest - PAGE - size
    far = AddressSpace([Line(low - furthest - PAGE, high, "/lib/x.so"), above])
    assert far.gap_near(low, high, size) is None


def test_a_gap_too_small_is_passed_over():
    module = Line(LIBRARY, LIBRARY + 0x1000, "/lib/x.so")
    space = AddressSpace([Line(LIBRARY - 0x10000, LIBRARY - 0x5000), module, Line(module.end, TOP)])
    assert space.gap_near(LIBRARY, LIBRARY + 0x1000, 0x3000) == LIBRARY - 0x4000
    assert space.gap_near(LIBRARY, LIBRARY + 0x1000, 0x4000) == LIBRARY - 0x10000 - 0x5000


def test_reserved_ranges_are_taken():
    space = AddressSpace([Line(LIBRARY, LIBRARY + 0x1000, "/lib/x.so")])
    first = space.gap_near(LIBRARY, LIBRARY + 0x1000, 0x1000)
    space.reserve(first + 1, first + 2)
    assert not space.is_free(first, first + 0x1000)
    second = space.gap_near(LIBRARY, LIBRARY + 0x1000, 0x1000)
    assert second + 0x1000 < first
    space.reserve(second, second + 0x1000)
    assert space.is_free(second + 0x1000, first)


def test_far_gap_is_the_first_at_or_above_the_start():
    space = AddressSpace([Line(0x5000_0000, 0x6000_0000), Line(0x6000_4000, 0x7000_0000)])
    assert space.far_gap(0x1000, 0x5000_0000) == 0x6000_1000
    assert space.far_gap(0x3000, 0x5000_0000) == 0x7000_1000
    assert space.far_gap(0x1000, 0x1_8000_0001) == 0x1_8000_1000
    assert space.far_gap(TOP, 0) is None


def test_what_a_sanitizer_keeps_is_taken():
    assert not AddressSpace([]).is_free(0x8000_0000, 0x8000_1000)


def test_a_quiet_gap_is_where_no_program_asks_for_memory():
    space = AddressSpace([Line(QUIET.start, QUIET.start + GB), Line(QUIET.start + 2 * GB, QUIET.stop)])
    place = space.quiet_gap(GB // 2)
    assert QUIET.start + GB < place < QUIET.start + 3 * GB // 2
    assert space.quiet_gap(GB) is None
    assert space.quiet_gap(len(QUIET)) is space.quiet_gap(1 << 40) is None


def test_less_room_may_be_kept_for_the_heap():
    heap = Line(0x2000_0000, 0x2001_0000, "[heap]")
    space = AddressSpace([heap], 0x2000_0000, heap_room=GO_HEAP_ROOM)
    assert not space.is_free(0x2001_0000 + GO_HEAP_ROOM - 0x1000, 0x2001_0000 + GO_HEAP_ROOM)
    assert space.is_free(0x2001_0000 + GO_HEAP_ROOM, 0x2001_0000 + HEAP_ROOM)
