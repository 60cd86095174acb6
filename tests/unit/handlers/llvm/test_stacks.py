"""Taking stacks, run in this process on stacks and tables made up here."""

import ctypes
import mmap

import numpy as np
import pytest

from anyprobe.binary.unwind.rules import (
    AT_RBP,
    END,
    NONE,
    OF_RBP,
    OF_RSP,
    OFFSET_SHIFT,
    SAVED_SHIFT,
    SIGNAL,
    STUB,
)
from anyprobe.data.layouts import stacks
from anyprobe.data.layouts.stacks import StackView
from anyprobe.data.layouts.unwinding import Range, UnwindRegion
from anyprobe.handlers.llvm.stack_walk import Place, Reading
from anyprobe.handlers.llvm.stacks import capture, number_of
from anyprobe.handlers.llvm.words import I64, constant
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.context_routines import emit_context_routines
from anyprobe.splice.codegen.handlers.memory_routines import UNKNOWN, emit_memory_routines
from support import inprocess

CODE, OTHER, NOWHERE = 0x10_0000, 0x20_0000, 0x30_0000
"""Code with tables, code without, and no code."""


def rule(kind, words=0, saved=0):
    return kind | saved << SAVED_SHIFT | (words & 0xFFFF) << OFFSET_SHIFT


ROWS = {
    0x000: rule(NONE),
    0x100: rule(OF_RSP, 3, 2),
    0x200: rule(OF_RBP, 2, 2),
    0x300: rule(AT_RBP, -1),
    0x400: rule(STUB, 11),
    0x500: rule(SIGNAL),
    0x600: rule(END),
    0x700: rule(OF_RSP, 1),
    0x800: rule(OF_RSP, 0),
    0x900: rule(NONE),
}


@pytest.fixture(scope="module")
def routines():
    asm = Assembler()
    emit_memory_routines(asm, frozenset({"read"}), UNKNOWN)
    emit_context_routines(asm, frozenset({"peek"}), UNKNOWN)
    code = asm.finish(0)
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    yield start + asm.offset_of("read"), start + asm.offset_of("peek")
    assert area


@pytest.fixture(scope="module")
def tables():
    region = inprocess.Region(1 << 16)
    starts, rules = np.array([*ROWS], np.uint32), np.array([*ROWS.values()], np.uint32)
    ranges = [Range(OTHER, OTHER + 0x1000), Range(CODE, CODE + 0x1000, CODE, starts, rules)]
    assert UnwindRegion(region.view).publish(ranges)
    return region


class Walker:
    """Takes stacks of at most eight addresses."""

    def __init__(self, tables, routines, *, at_entry=False):
        self.tables, self.routines = tables, routines
        self.region = inprocess.Region(stacks.SIZE)
        self.view = StackView(self.region.view)
        self.code = inprocess.Compiled(
            7,
            lambda builder, base, tables, read, peek, *place: capture(
                builder, base, Reading(tables, read, peek), Place(*place, at_entry), 8
            ),
        )

    def take(self, ip, words, *, sp=0, bp=0, tables=None):
        """Return the addresses for a stack of words; ``sp`` and ``bp`` count words of it."""
        memory = (ctypes.c_uint64 * len(words))()
        start = ctypes.addressof(memory)
        memory[:] = [start + 8 * word.place if isinstance(word, At) else word for word in words]
        where = self.tables.address if tables is None else tables
        number = self.code.call(self.region.address, where, *self.routines, ip, start + 8 * sp, start + 8 * bp)
        return self.view.addresses(number)


class At:
    """The address of a word of the stack."""

    def __init__(self, place):
        self.place = place


@pytest.fixture(scope="module")
def walker(tables, routines):
    return Walker(tables, routines)


def test_frames_of_the_stack_pointer(walker):
    # at 0x100: the frame is three words, rbp in the second but one
    words = [1, 0x5555, CODE + 0x150, 0, 0, CODE + 0x610]
    assert walker.take(CODE + 0x110, words) == [CODE + 0x110, CODE + 0x150, CODE + 0x610]


def test_frames_of_the_base_pointer(walker):
    words = [7, 7, At(5), CODE + 0x220, 7, At(8), CODE + 0x610, 7, 7]
    assert walker.take(CODE + 0x210, words, bp=2) == [CODE + 0x210, CODE + 0x220, CODE + 0x610]


def test_a_saved_base_pointer_is_used_further_up(walker):
    # the first frame saves rbp in front of its return address, and is found by rsp
    words = [7, At(4), CODE + 0x220, 7, 0, CODE + 0x610]
    assert walker.take(CODE + 0x110, words, bp=2) == [CODE + 0x110, CODE + 0x220, CODE + 0x610]


def test_frames_that_realign_the_stack(walker):
    words = [7, 7, At(6), At(8), 7, CODE + 0x610, 7, CODE + 0x220, 7, 7]
    words[2], words[3] = At(8), 0  # the word below rbp holds the frame address, rbp points at the saved one
    assert walker.take(CODE + 0x310, words, bp=3) == [CODE + 0x310, CODE + 0x220]


def test_linkage_stubs(walker):
    pushed = [7, CODE + 0x610]
    assert walker.take(CODE + 0x40A, pushed[1:]) == [CODE + 0x40A, CODE + 0x610]
    assert walker.take(CODE + 0x40B, pushed) == [CODE + 0x40B, CODE + 0x610]


def test_signal_frames(walker):
    words = [0] * 40
    words[168 // 8], words[160 // 8], words[120 // 8] = CODE + 0x700, At(30), 7
    words[30] = CODE + 0x610
    # the interrupted pc is looked up as it is: right at the start of its function
    assert walker.take(CODE + 0x510, words) == [CODE + 0x510, CODE + 0x700, CODE + 0x610]


def test_return_addresses_belong_to_the_call_in_front(walker):
    # a return address right behind a function is still its
    assert walker.take(CODE + 0x710, [CODE + 0x200, 7, 7, 7, CODE + 0x610], bp=2)[1:] == [CODE + 0x200]
    assert walker.take(CODE + 0x710, [CODE + 0x800, CODE + 0x610]) == [CODE + 0x710, CODE + 0x800, CODE + 0x610]


def test_frame_pointers_where_there_are_no_tables(walker):
    words = [7, At(4), OTHER + 0x20, 7, At(6), OTHER + 0x30, 0, CODE + 0x610]
    expected = [OTHER + 0x10, OTHER + 0x20, OTHER + 0x30, CODE + 0x610]
    assert walker.take(OTHER + 0x10, words, bp=1) == expected
    assert walker.take(CODE + 0x910, words, bp=1) == [CODE + 0x910, *expected[1:]]
    assert walker.take(OTHER + 0x10, words, sp=2, bp=1) == [OTHER + 0x10]  # below the stack


def test_at_an_entry_the_caller_is_on_top(tables, routines):
    walker = Walker(tables, routines, at_entry=True)
    words = [OTHER + 0x20, 7, At(5), OTHER + 0x30, 7, 0, CODE + 0x610]
    assert walker.take(OTHER + 0x10, words, bp=2) == [OTHER + 0x10, OTHER + 0x20, OTHER + 0x30, CODE + 0x610]


def test_what_is_no_code_ends_a_stack(walker):
    assert walker.take(CODE + 0x710, [NOWHERE, CODE + 0x610]) == [CODE + 0x710]
    assert walker.take(NOWHERE, [CODE + 0x610]) == [NOWHERE]
    assert walker.take(CODE + 0x610, [CODE + 0x710]) == [CODE + 0x610]
    assert walker.take(CODE + 0x710, [0, CODE + 0x610]) == [CODE + 0x710]


def test_a_frame_that_goes_nowhere_ends_a_stack(walker):
    assert walker.take(CODE + 0x810, [CODE + 0x810] * 4) == [CODE + 0x810]
    loop = [7, At(1), OTHER + 0x20, 7]
    assert walker.take(OTHER + 0x10, loop, bp=1) == [OTHER + 0x10, OTHER + 0x20]


def test_no_more_than_was_asked_for(walker):
    assert walker.take(CODE + 0x710, [CODE + 0x710] * 20) == [CODE + 0x710] * 8


def test_a_stack_that_cannot_be_read(walker):
    assert walker.view.addresses(
        walker.code.call(walker.region.address, walker.tables.address, *walker.routines, CODE + 0x710, 8, 8)
    ) == [CODE + 0x710]


def test_a_stack_longer_than_the_window(walker):
    words = [7] * 200
    words[1], words[2] = At(100), OTHER + 0x20
    words[100], words[101] = At(199 - 1), OTHER + 0x30
    words[198], words[199] = 0, OTHER + 0x40
    assert walker.take(OTHER + 0x10, words, bp=1) == [OTHER + at for at in (0x10, 0x20, 0x30, 0x40)]


def test_without_tables_frame_pointers_are_followed(walker):
    words = [7, At(4), NOWHERE, 7, 0, 0]
    memory_is_code = walker.take(OTHER + 0x10, words, bp=1, tables=0)
    assert memory_is_code == [OTHER + 0x10, NOWHERE]


# -- the table


class Numbers:
    """Numbers stacks of three addresses."""

    def __init__(self):
        self.region = inprocess.Region(stacks.SIZE)
        self.view = StackView(self.region.view)

        def build(builder, base, *addresses):
            from llvmlite import ir

            with builder.goto_entry_block():
                frames = builder.bitcast(builder.alloca(ir.ArrayType(I64, 3)), I64.as_pointer())
            start = builder.append_basic_block("start")
            builder.branch(start)
            builder.position_at_end(start)
            for index, address in enumerate(addresses):
                builder.store(address, builder.gep(frames, [constant(index)]))
            return number_of(builder, base, frames, constant(3))

        self.code = inprocess.Compiled(4, build)

    def number(self, *addresses):
        return self.code.call(self.region.address, *addresses)


def test_a_stack_has_one_number():
    numbers = Numbers()
    first, second = numbers.number(1, 2, 3), numbers.number(1, 2, 4)
    assert first != second
    assert numbers.number(1, 2, 3) == first
    assert numbers.view.addresses(first) == [1, 2, 3]
    assert numbers.view.addresses(second) == [1, 2, 4]
    assert numbers.view.addresses(0) == numbers.view.addresses(stacks.PLACES + 1) == []
    assert numbers.view.dropped == 0


def test_a_full_table_counts_what_it_drops():
    numbers = Numbers()
    found = {}
    for at in range(3 * stacks.PLACES):
        found[at] = numbers.number(at, at * 7, 5)
    lost = [at for at, number in found.items() if not number]
    kept = [at for at, number in found.items() if number]
    assert len(set(found.values()) - {0}) == len(kept) <= stacks.PLACES
    assert len(kept) > 0.98 * stacks.PLACES
    assert numbers.view.dropped == len(lost)
    assert all(numbers.view.addresses(found[at]) == [at, at * 7, 5] for at in kept)


def test_who_is_interrupted_for_good_is_replaced():
    steps, finished, numbers = 0, False, Numbers()
    while not finished:
        ctypes.memset(numbers.region.address, 0, stacks.SIZE)
        call = inprocess.call_of(numbers.code, numbers.region.address, 11, 12, 13)
        results = inprocess.interrupted(call, steps, [call], leave=True)
        finished = results is None
        number = numbers.number(11, 12, 13)
        assert numbers.view.addresses(number) == [11, 12, 13]
        assert numbers.view.dropped == 0
        steps += 1
    assert steps > 30
