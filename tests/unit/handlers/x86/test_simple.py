"""Simple handlers without LLVM do what LLVM makes of them, on the same words, for all kinds of cells and keys."""

import ctypes
import mmap
import random
import threading
from dataclasses import replace

import pytest

from anyprobe import Avg, Count, Hist, Max, Min, Quantize, Stddev, Sum, emit, i16, i64, u8, u32, u64
from anyprobe.core.code import InputKind
from anyprobe.data.readers.rings import RingReader
from anyprobe.data.readers.tables import TableLayout, TableView
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.storages import Table
from anyprobe.handlers.x86.native import compile_native
from anyprobe.handlers.x86.simple import simple_code

ROUNDS, THREADS, SLOTS = 400, 2, 64
VALUES = [0, 1, 5, 63, 64, 65, 1 << 20, (1 << 44) - 1, 1 << 44, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 64]


class Running:
    """Code in this process, and the table that it changes."""

    def __init__(self, code, layout):
        self.code = code
        self._memory = mmap.mmap(-1, mmap.PAGESIZE * 4, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(code.code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._region = ctypes.create_string_buffer(layout.size + 64)
        self._base = ctypes.addressof(self._region) + -ctypes.addressof(self._region) % 64
        region = memoryview((ctypes.c_char * layout.size).from_address(self._base)).cast("B")
        self.view = TableView(region, layout) if isinstance(layout, TableLayout) else RingReader(region, layout)

    def run(self, given, thread):
        words = []
        for each in self.code.inputs:
            known = {InputKind.STORAGE: self._base, InputKind.THREAD: thread}
            words.append(known.get(each.kind, given.get(each.index, 0)))
        self._call((ctypes.c_uint64 * len(words))(*words))


def both(function):
    handler = intermediate(function, Setting(entry=True, retval=None))
    (store,) = handler.storages
    if isinstance(store, Table):
        layout = store.layout._replace(threads=THREADS)
    else:
        layout = replace(store.layout, slots=SLOTS, rings=1, threads=THREADS)
    placed = handler._replace(storages=(store._replace(layout=layout),))
    code = simple_code(placed)
    assert code is not None
    return Running(code, layout), Running(compile_native(placed), layout)


def compare(function, keys=1 << 64):
    rng = random.Random(7)
    ours, theirs = both(function)
    for _ in range(ROUNDS):
        words = {index: rng.choice(VALUES) if rng.random() < 0.5 else rng.getrandbits(64) for index in range(3)}
        words[0] %= keys
        thread = rng.randrange(THREADS + 2)
        ours.run(words, thread)
        theirs.run(words, thread)
    assert ours.view.result() == theirs.view.result()
    return ours.view.result()


@pytest.mark.parametrize("kind", [Sum, Min, Max, Avg, Hist, Quantize])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_values(kind, signed, keyed):
    found = kind("found", by=("first",) if keyed else ())

    def unsigned_alone(first: u64, second: u32, third: u64):
        if second > 5:
            found.add(third)

    def signed_alone(first: u64, second: u32, third: i64):
        if third != 5:
            found.add(third)

    def unsigned_keyed(first: u64, second: u32, third: u64):
        found.add(third, key=(first,))

    def signed_keyed(first: u64, second: u32, third: i64):
        found.add(third, key=(first,))

    alone, by_key = (signed_alone, signed_keyed) if signed else (unsigned_alone, unsigned_keyed)
    result = compare(by_key if keyed else alone, keys=9)
    assert len(result.entries) == (9 if keyed else 1)


def test_more_keys_than_there_is_room_for_are_dropped():
    found = Count("found", by=("first", "second"), capacity=20)

    def counted(first: u64, second: u32, third: u64):
        found.add(key=(first, second))

    result = compare(counted)
    assert result.dropped > 0
    assert len(result.entries) == 20 + 64


def test_threads_that_insert_the_same_keys_at_once_count_all_of_them_once():
    found = Count("found", by=("first",))

    def counted(first: u64, second: u32, third: u64):
        found.add(key=(first,))

    ours, _ = both(counted)

    def work(thread):
        rng = random.Random(1)
        for _ in range(5 * ROUNDS):
            ours.run({0: rng.getrandbits(9)}, thread)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS + 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    result = ours.view.result()
    assert sum(cell.count for cell in result.entries.values()) == 5 * ROUNDS * len(threads)
    assert len(ours.view.numbers()) == len(result.entries), "no key is there twice"


def test_a_row_that_all_share():
    found = Hist("found", by=("first",), per_thread=False)

    def measured(first: u64, second: u32, third: u64):
        found.add(third, key=(first,))

    assert sum(cell.count for cell in compare(measured, keys=5).entries.values()) == ROUNDS


def test_records_of_all_widths_and_what_finds_no_room():
    def emitted(first: u8, second: u32, third: i64, fourth: i16):
        if second > 5:
            emit("it", first=first, second=second, third=third, fourth=fourth, whole=u64(third))

    rng = random.Random(3)
    ours, theirs = both(emitted)
    for round_ in range(ROUNDS):
        words = {index: rng.choice(VALUES) if rng.random() < 0.5 else rng.getrandbits(64) for index in range(4)}
        thread = rng.randrange(THREADS + 2)
        ours.run(words, thread)
        theirs.run(words, thread)
        if round_ % 150 == 149:  # the rings are full by then
            rows, expected = ([row.tolist()[1:] for row in each.view.drain()] for each in (ours, theirs))
            assert rows == expected
            assert rows
    assert ours.view.drops() == theirs.view.drops()
    assert sum(ours.view.drops().full.values()) > 0


def test_what_is_not_simple_is_for_another_compiler():
    squares, one, two = Stddev("squares"), Count("one"), Count("two")

    def with_squares(first: u64):
        squares.add(first)

    def twice(first: u64):
        one.add()
        two.add()

    def computed(first: u64):
        if first * 3 > 10:
            one.add()

    for function in (with_squares, twice, computed):
        assert simple_code(intermediate(function, Setting(entry=True, retval=None))) is None
