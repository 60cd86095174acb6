"""Maps and records of handlers in the kernel: set, read and deleted by several threads, written and read in order."""

import ctypes
import threading

import numpy as np
import pytest

from anyprobe import Map, cstr, emit, i16, i64, printf, ptr, u8, u64
from anyprobe.data.aggregates.records import rows
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.storages import MapTable, Ring
from support import bpf_running

REFUSED = bpf_running.refused_because()
pytestmark = pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))


def storage_of(function, kind):
    return next(each for each in function.storages if isinstance(each, kind))


def test_a_map_is_set_read_and_deleted():
    known = Map("known", by=("key",))

    def handle(what: u64, key: i64, value: i64):
        if what == 0:
            known[key] = value
            return 0
        if what == 1:
            return known.get(key, -1)
        removed = known.delete(key)
        if removed is None:
            return -1
        return removed

    function = intermediate(handle)
    with bpf_running.Runner(function) as runner:

        def ask(*words):
            return i64(runner.call([each % (1 << 64) for each in words]))

        ask(0, -7, 12)
        ask(0, 8, -30)
        assert [ask(1, -7, 0), ask(1, 8, 0), ask(1, 9, 0)] == [12, -30, -1]
        ask(0, 8, 31)
        maps, storage = runner.storages.maps, storage_of(function, MapTable)
        assert maps.items(storage) == {(-7,): 12, (8,): 31}
        assert [ask(2, 8, 0), ask(1, 8, 0), ask(2, 8, 0)] == [31, -1, -1]
        assert maps.items(storage) == {(-7,): 12}
        assert maps.dropped(storage) == {}


def test_a_full_map_says_what_it_lost():
    few = Map("few", by=("key",), capacity=8)

    def put(key: u64):
        few[key] = 1

    function = intermediate(put)
    with bpf_running.Runner(function) as runner:
        for key in range(20):
            runner.call([key])
        maps, storage = runner.storages.maps, storage_of(function, MapTable)
        held = len(maps.items(storage))
        assert maps.dropped(storage) == {"no room": 20 - held}
        assert held >= 8


def test_no_key_has_the_value_of_another_one():
    """Threads set and delete keys of their own in a small map, whose elements the kernel uses again at once."""
    shared = Map("shared", by=("key",), capacity=64)

    def put(key: u64, value: u64):
        shared[key] = value

    def check(key: u64, wrong: u64):
        found = shared.get(key)
        if found is None:
            return 0
        return 1 if found % 1000 == key else 2

    def drop(key: u64):
        shared.delete(key)

    storages = {}
    setting = Setting(storages)
    functions = [intermediate(each, setting) for each in (put, check, drop)]
    with (
        bpf_running.Runner(functions[0]) as puts,
        bpf_running.Runner(functions[1], puts.storages.maps) as checks,
        bpf_running.Runner(functions[2], puts.storages.maps) as drops,
    ):
        seen = [0, 0, 0]

        def churn(first):
            for turn in range(3000):
                key = first + turn % 5
                puts.call([key, turn * 1000 + key])
                drops.call([key])

        def look():
            for turn in range(12000):
                seen[checks.call([turn % 40, 0])] += 1

        threads = [threading.Thread(target=churn, args=(first,)) for first in (0, 10, 20)]
        threads.append(threading.Thread(target=look))
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert seen[2] == 0, seen
        assert sum(seen) == 12000


def test_records_have_named_fields_and_come_in_order():
    def handle(number: i64, small: i16, where: ptr):
        emit("seen", number=number, small=small, byte=u8(number), even=number % 2 == 0, name=cstr(where, 16))

    function = intermediate(handle)
    text = ctypes.create_string_buffer(b"the name")
    with bpf_running.Runner(function) as runner:
        for number in range(-3, 500):
            runner.call([number % (1 << 64), -5 % (1 << 16), ctypes.addressof(text)])
        maps, storage = runner.storages.maps, storage_of(function, Ring)
        found = maps.records(storage)
        assert list(found["number"]) == list(range(-3, 500))
        assert (np.diff(found["ts"].astype(np.int64)) >= 0).all()
        first = next(rows(found))
        assert {name: first[name] for name in ("small", "byte", "even", "name")} == {
            "small": -5,
            "byte": 253,
            "even": False,
            "name": "the name",
        }
        assert len(maps.records(storage)) == 0
        runner.call([7, 0, ctypes.addressof(text)])
        (moment,) = found["ts"][-1:]
        assert len(maps.records(storage, until=int(moment))) == 0
        assert list(maps.records(storage)["number"]) == [7]
        assert maps.dropped(storage) == {}


def test_a_full_ring_says_how_many_records_it_lost():
    def handle(number: u64):
        emit("many", number=number)

    function = intermediate(handle)
    with bpf_running.Runner(function) as runner:
        maps, storage = runner.storages.maps, storage_of(function, Ring)
        total = (maps.ring_bytes // (storage.layout.record.bytes + 8)) + 50
        for number in range(total):
            runner.call([number])
        found = maps.records(storage)
        assert list(found["number"]) == list(range(len(found)))
        assert maps.dropped(storage) == {"ring full": total - len(found)}
        runner.call([123456])
        assert list(maps.records(storage)["number"]) == [123456]


def test_printf_makes_a_record():
    def handle(number: i64):
        printf(f"number {number:>5}!")

    function = intermediate(handle)
    with bpf_running.Runner(function) as runner:
        runner.call([42])
        storage = storage_of(function, Ring)
        (row,) = rows(runner.storages.maps.records(storage))
    assert storage.format.format(**row) == "number    42!"
