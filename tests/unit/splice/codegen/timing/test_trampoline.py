"""Replaced return addresses: every return comes back to its caller, with everything as the function left it."""

import platform
import re

import pytest

from anyprobe.data.layouts.layout import RECORD_MISSED, BankLayout
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.routines import RoutineFacts, assemble_routines
from anyprobe.splice.codegen.timing.trampoline import (
    COUNTED,
    RETURNS,
    STUB_BYTES,
    TRAMPOLINE_BYTES,
    UNREPLACED,
    assemble_trampolines,
)
from support.routine_runs import run_routines

RETURNS_HERE = 8
LAYOUT = BankLayout(counters=4, records=2, maxactive=4, returns=RETURNS_HERE)
RECORD, OTHER = LAYOUT.new_record(), LAYOUT.new_record()
COUNTER, MISSED = LAYOUT.counters_offset, LAYOUT.counters_offset + 8
TABLE = LAYOUT.blocks_offset + 2 * LAYOUT.stride  # the machine's bank has two blocks
FIRST, SHARED = LAYOUT.blocks_offset, LAYOUT.shared_offset
ADDRESS = 0x7000_0000

native = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")


# -- the code


def assembled(layout, clock=0):
    facts = RoutineFacts(layout, 0x4000_0000_0000, 0x7100_0000, 0x208, clock)
    code, routines, _ = assemble_routines(facts, ADDRESS - 0x2000)
    return (*assemble_trampolines(facts, routines, ADDRESS), routines, code)


@pytest.mark.parametrize("clock", [0, 0x7FFF_1234_5670], ids=["tsc", "vdso"])
def test_all_bytes_decode_to_what_the_listing_says(clock):
    code, places, listing, routines, _ = assembled(LAYOUT, clock)
    after = ADDRESS + RETURNS_HERE * STUB_BYTES
    shown = disassemble.format(code[after - ADDRESS :], after)
    said = [
        part.removeprefix("lock ").split()[0]
        for line in listing().splitlines()
        if (found := re.fullmatch(r" *[0-9a-f]+  (?:[0-9a-f]{2} ?)+ +(.*)", line))
        for part in found[1].split("; ")
    ]
    names = {"jz": "je", "jnz": "jne"}
    assert [names.get(word, word) for word in said] == [text.removeprefix("lock ").split()[0] for _, _, text in shown]
    inside = {insn.target for insn in decode_range(code[after - ADDRESS :], after)} - {None}
    assert {at for at in inside if not after <= at < ADDRESS + len(code)} == {
        routines.leave,
        routines.count,
        routines.purge,
    }
    assert after < places.enter < places.enter_counted < ADDRESS + len(code)


def test_each_stub_is_one_call_and_all_lead_to_the_same_place():
    code, places, _, _, _ = assembled(LAYOUT)
    stubs = [decode_range(code[at : at + 5], ADDRESS + at)[0] for at in range(0, RETURNS_HERE * 8, STUB_BYTES)]
    assert all(stub.is_call and stub.length == 5 for stub in stubs)
    assert {stub.target for stub in stubs} == {ADDRESS + RETURNS_HERE * STUB_BYTES}
    assert (places.stubs, places.count, places.table) == (
        ADDRESS,
        RETURNS_HERE,
        0x4000_0000_0000 + LAYOUT.returns_offset,
    )


def test_what_is_reserved_suffices():
    layout = BankLayout(counters=4, records=2, maxactive=4, returns=RETURNS)
    for clock in (0, 0x7FFF_1234_5670):
        assert len(assembled(layout, clock)[0]) <= TRAMPOLINE_BYTES


def test_without_timing_records_nothing_leads_to_routines_of_timing():
    code, _, _, routines, _ = assembled(BankLayout(counters=4, returns=RETURNS_HERE))
    after = ADDRESS + RETURNS_HERE * STUB_BYTES
    inside = {insn.target for insn in decode_range(code[after - ADDRESS :], after)} - {None}
    assert {at for at in inside if not after <= at < ADDRESS + len(code)} == {routines.count}


def test_the_table_lies_behind_the_last_block():
    plain = BankLayout(counters=4, records=2, maxactive=4)
    assert plain.returns_offset == plain.size
    assert LAYOUT.size == plain.size + 4096


# -- what it does


def after(*steps):
    """Return the words of the bank and which entries replaced a return address, in a process of its own."""
    result = run_routines(steps)
    return {int(offset): value for offset, value in result["words"].items()}, result["replaced"]


def timed(depth, caller, record=RECORD):
    return ("enter", "enter", record, depth, caller)


def counted(depth, caller, counter=COUNTER):
    return ("enter", "enter_counted", counter | COUNTED, depth, caller)


def back(depth, caller):
    return ("back", depth, caller)


def times(words, record=RECORD, block=FIRST):
    return words.get(block + record + 24, 0)


@native
def test_a_timed_call_comes_back_to_its_caller():
    words, replaced = after(timed(0, 2), back(0, 2))
    assert (replaced, times(words)) == ([True], 1)
    assert FIRST + 8 not in words  # no instance is left


@native
def test_a_counted_call_comes_back_to_its_caller():
    words, replaced = after(counted(0, 1), back(0, 1), counted(0, 3), back(0, 3))
    assert (replaced, words[FIRST + COUNTER]) == ([True, True], 2)


def handled(depth, caller):
    return ("enter", "enter_counted", None, depth, caller)


@native
def test_a_handled_call_comes_back_to_its_caller():
    words, replaced = after(handled(0, 1), handled(1, 2), back(1, 2), back(0, 1), handled(0, 1), back(0, 1))
    assert (replaced, words[FIRST + COUNTER]) == ([True] * 3, 3)


@native
def test_what_is_handled_counted_and_timed_is_all_three():
    words, _ = after(timed(0, 1), handled(0, None), counted(0, None, COUNTER + 8), back(0, 1))
    assert (times(words), words[FIRST + COUNTER], words[FIRST + COUNTER + 8]) == (1, 1, 1)


@native
def test_a_handled_call_without_a_stub_is_missed_apart_from_hits_inside_handlers():
    full = [("write", TABLE + 16 * n + 8 * word, 0x1000 + n) for n in range(RETURNS_HERE) for word in (0, 1)]
    words, replaced = after(*full, handled(0, 2), back(0, 2))
    assert (replaced, words[SHARED + COUNTER + UNREPLACED]) == ([False], 1)
    assert not {FIRST + COUNTER, SHARED + COUNTER, SHARED + MISSED} & words.keys()


@native
def test_recursion_comes_back_level_by_level():
    words, _ = after(timed(0, 0), timed(1, 1), timed(2, 1), back(2, 1), back(1, 1), back(0, 0))
    assert times(words) == 3


@native
def test_one_pair_takes_one_entry_however_often_it_is_used():
    words, _ = after(*(step for _ in range(20) for step in (counted(0, 1), back(0, 1))))
    assert words[FIRST + COUNTER] == 20
    assert sum(TABLE <= at < TABLE + 16 * RETURNS_HERE for at in words) == 2


@native
def test_two_probes_of_one_function_are_both_served():
    words, replaced = after(timed(0, 1), counted(0, None), timed(0, None, OTHER), back(0, 1))
    assert replaced == [True, True, True]
    assert (times(words), times(words, OTHER), words[FIRST + COUNTER]) == (1, 1, 1)


@native
def test_functions_that_jump_to_each_other_without_end_are_missed_and_come_back():
    jumps = [counted(0, None, COUNTER if number % 2 else COUNTER + 16) for number in range(12)]
    words, replaced = after(counted(0, 1), *jumps, back(0, 1))
    taken = sum(replaced)
    assert 2 <= taken <= 5
    assert words[FIRST + COUNTER] + words.get(FIRST + COUNTER + 16, 0) == taken
    assert words[SHARED + MISSED] + words[SHARED + MISSED + 16] == 13 - taken


@native
def test_without_room_in_the_table_the_address_stays_and_the_call_is_missed():
    full = [("write", TABLE + 16 * n + 8 * word, 0x1000 + n) for n in range(RETURNS_HERE) for word in (0, 1)]
    words, replaced = after(*full, timed(0, 2), back(0, 2), counted(0, 3), back(0, 3))
    assert replaced == [False, False]
    assert (words[SHARED + RECORD + RECORD_MISSED], words[SHARED + MISSED]) == (1, 1)
    assert times(words) == 0


@native
def test_without_room_for_an_instance_the_address_stays():
    words, replaced = after(*(timed(depth, 1) for depth in range(6)), *(back(depth, 1) for depth in range(5, -1, -1)))
    assert replaced == [True] * 4 + [False] * 2
    assert (times(words), words[FIRST + RECORD + RECORD_MISSED]) == (4, 2)


@native
def test_a_fork_child_comes_back_and_times_nothing():
    words, replaced = after(timed(0, 1), ("gate", 0), timed(1, 2), back(1, 2), back(0, 1))
    assert replaced == [True, False]
    assert times(words) == 0
    assert words[SHARED + RECORD + RECORD_MISSED] == 1
    assert words[FIRST + 8] == 1  # the parent's instance is as it was


@native
def test_a_call_comes_back_when_its_instance_is_gone():
    words, _ = after(timed(0, 1), ("write", FIRST + 8, 0), back(0, 1))
    assert times(words) == 0


@native
def test_a_misaligned_stack_is_left_alone():
    _, replaced = after(("enter", "enter", RECORD, 0.0625, 1), ("enter", "enter_counted", COUNTER | 1, 0.0625, 1))
    assert replaced == [False, False]
