"""How much room code regions are said to have where the routines of many banks may be wanted."""

from types import SimpleNamespace

import pytest

from anyprobe.core.address import PAGE
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.splice.codegen.routines import RoutineFacts, assemble_routines
from anyprobe.splice.codegen.timing.goroutine_routines import GoroutineFacts, assemble_goroutine_routines
from anyprobe.splice.memory.arena import Piece
from anyprobe.splice.regions.code_region import (
    BANK_ROUTINE_BYTES,
    ROUTINE_BYTES,
    Cluster,
    CodeRegion,
    SlotBank,
    code_region_pieces,
)
from anyprobe.splice.translate.routine import assemble_view

PLACE, DATA, CLOCK = 0x7F00_0000_0000, 1 << 46, 0x7FFF_1234_5000
TIMED = {"counters": 1024, "records": 16, "maxactive": 64, "callers": 4096}
EVERYTHING = {"returns": 4096, "adopting": True, "nested": True, "nodes": 4096, "by_thread": True}


def bank(index, **layout):
    return SlotBank(None, Piece(0, DATA, 1 << 30), BankLayout(**TIMED, **layout), 0x200, DATA, index, CLOCK)


def region():
    gate, code = code_region_pieces(PLACE, 1 << 18, None, 0)
    return CodeRegion(SimpleNamespace(write=lambda *_: None), gate, code, None)


@pytest.mark.parametrize("more", [{}, EVERYTHING])
def test_routines_of_a_bank_and_of_the_signal_view_take_no_more_than_is_reckoned(more):
    words = {name: PLACE + PAGE * number for number, name in enumerate(("adopted", "closed", "change"), 1)}
    facts = RoutineFacts(BankLayout(**TIMED, **more), DATA, PLACE, 0x200, CLOCK, 1 << 20, mask=DATA, **words)
    code, _, _ = assemble_routines(facts, PLACE)
    assert len(code) < BANK_ROUTINE_BYTES
    assert BANK_ROUTINE_BYTES + len(assemble_view(PLACE, DATA)[0]) < ROUTINE_BYTES
    goroutines = GoroutineFacts(BankLayout(**TIMED, **more), DATA, DATA, PLACE, 0x98, DATA + 0x68)
    assert len(assemble_goroutine_routines(goroutines, PLACE)[0]) < BANK_ROUTINE_BYTES


def test_room_is_what_is_left_beside_routines_that_are_still_to_be_written():
    home, banks = region(), [bank(index) for index in range(8)]
    before = home.room()
    assert home.room(banks) == before - 8 * BANK_ROUTINE_BYTES
    for number, each in enumerate(banks, 1):
        least = home.room(banks)
        home.slot_code(each)
        assert home.room(banks[:number]) == home.room() < before
        assert home.room(banks) >= least


def test_each_new_region_has_room_for_the_routines_of_earlier_banks():
    few = Cluster(PLACE, PLACE + (1 << 20), 1 << 20)
    many = Cluster(PLACE, PLACE + (1 << 20), 1 << 20, routine_bytes=10 * BANK_ROUTINE_BYTES)
    for count in (1, 4):
        pairs = zip(few.sizes(count), many.sizes(count), strict=True)
        assert all(more - less >= 10 * BANK_ROUTINE_BYTES for less, more in pairs)
