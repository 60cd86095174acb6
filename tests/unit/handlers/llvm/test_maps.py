"""Maps: the generated operations against a dictionary, and from many threads and signal handlers at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from anyprobe.core.errors import UsageError
from anyprobe.data.layouts.keys import UNKEYED, KeyPart, KeyShape
from anyprobe.data.readers.maps import FREE, INSERTING, MARK, NODE_LINK, NUMBER_MASK, USED, Map, MapLayout, MapView
from anyprobe.handlers.llvm.updates import map_delete, map_get, map_increase, map_set
from anyprobe.handlers.llvm.words import constant, increase
from support import inprocess

ONE = KeyShape((KeyPart("signed"),))
MISSING = 0xDEAD
SET, GET, DELETE = range(3)


def operations(builder, layout, base, operation, value, key):
    """Do the operation with this number; return the value found, or MISSING."""
    result = builder.alloca(ir.IntType(64))
    builder.store(constant(MISSING), result)
    with builder.if_then(builder.icmp_unsigned("==", operation, constant(SET))):
        map_set(builder, layout, base, key, value)
    for number, build in ((GET, map_get), (DELETE, map_delete)):
        with builder.if_then(builder.icmp_unsigned("==", operation, constant(number))):
            there, found = build(builder, layout, base, key)
            builder.store(builder.select(there, found, constant(MISSING)), result)
    return builder.load(result)


class Shared:
    """A map in memory of ours, and code that does an operation given by its number."""

    def __init__(self, capacity, shape=ONE, words=8):
        self.layout = MapLayout(Map("m", capacity=capacity), shape)
        self.region = inprocess.Region(self.layout.size + 8 * words)
        self.view = MapView(self.region.view, self.layout)
        self.extra = np.frombuffer(self.region.view, np.uint64, words, self.layout.size)

    def compile(self):
        return inprocess.Compiled(
            3 + self.layout.shape.words,
            lambda builder, base, operation, value, *key: operations(builder, self.layout, base, operation, value, key),
        )

    def word(self, offset):
        return int(np.frombuffer(self.region.view, np.uint64, 1, offset)[0])

    def free_nodes(self):
        """Return how many nodes are on the list of free ones."""
        count, word = 0, self.word(FREE)
        while word & NUMBER_MASK:
            word = self.word(self.layout.nodes_offset + (word & NUMBER_MASK) * self.layout.node_bytes)
            count += 1
        return count

    def dead_nodes(self):
        """Return how many nodes wait in a list for whoever comes by to take them out."""
        layout, count = self.layout, 0
        words = np.frombuffer(self.region.view, np.uint64, layout.size // 8).tolist()
        for bucket in range(layout.buckets):
            word = words[layout.buckets_offset // 8 + bucket]
            while word & NUMBER_MASK:
                word = words[(layout.nodes_offset + (word & NUMBER_MASK) * layout.node_bytes + NODE_LINK) // 8]
                count += bool(word & MARK)
        return count


SMALL = Shared(4)
SMALL_CODE = SMALL.compile()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-50, 50)), max_size=200)
)
def test_operations_agree_with_a_dictionary(steps):
    model = {}
    for key in range(-50, 51):
        SMALL_CODE.call(SMALL.region.address, DELETE, 0, key & (1 << 64) - 1)
    assert not SMALL.view.items()
    for operation, value, key in steps:
        found = SMALL_CODE.call(SMALL.region.address, operation, value & (1 << 64) - 1, key & (1 << 64) - 1)
        if operation == SET:
            model[key] = value
        else:
            expected = model.pop(key, MISSING) if operation == DELETE else model.get(key, MISSING)
            assert found == expected & (1 << 64) - 1
    assert SMALL.view.items() == {(key,): value for key, value in model.items()}
    assert SMALL.free_nodes() + len(model) == min(SMALL.word(USED), SMALL.layout.nodes)
    assert SMALL.view.dropped == SMALL.view.contended == 0


def test_a_full_map_counts_what_it_drops_and_takes_new_keys_when_others_go():
    shared = Shared(10)
    code = shared.compile()
    room = 10 + INSERTING
    for key in range(room + 5):
        code.call(shared.region.address, SET, key, key)
    assert shared.view.dropped == 5
    assert len(shared.view.items()) == room
    code.call(shared.region.address, SET, 77, 3)
    assert shared.view.items()[3,] == 77
    for _ in range(3):
        assert code.call(shared.region.address, DELETE, 0, 4) in {4, 1000}
        code.call(shared.region.address, SET, 1000, 4)
    assert shared.view.dropped == 5


def test_increases_of_many_threads_and_signal_handlers_yield_each_sum_once():
    shared = Shared(16, words=1 << 19)
    layout = shared.layout

    def build(builder, base, thread, value, step):
        there, total = map_increase(builder, layout, base, [builder.and_(step, constant(3))], constant(1))
        extra = builder.add(base, constant(layout.size))
        with builder.if_then(there):
            place = builder.add(builder.mul(total, constant(4)), builder.and_(step, constant(3)))
            increase(builder, builder.add(extra, builder.mul(place, constant(8))), 0, atomic=True)

    code = inprocess.Compiled(4, build)
    steps = inprocess.hammer(code, shared.region.address, threads=8, count=8_000, signals=True)
    assert shared.view.contended == shared.view.dropped == 0
    ends = {key: int((steps & np.uint64(3) == key).sum()) for key in range(4)}
    assert shared.view.items() == {(key,): count for key, count in ends.items()}
    for key, count in ends.items():
        assert shared.extra[key::4][1 : count + 1].tolist() == [1] * count


def test_an_increase_adds_and_finds_no_room_in_a_full_map():
    shared = Shared(1)
    code = inprocess.Compiled(
        3, lambda builder, base, key, by: _sum(builder, *map_increase(builder, shared.layout, base, [key], by))
    )
    assert [code.call(shared.region.address, 7, by) for by in (1, 1, 5, (1 << 64) - 2)] == [1, 2, 7, 5]
    for key in range(100, 100 + INSERTING):
        assert code.call(shared.region.address, key, 1) == 1
    assert code.call(shared.region.address, 99, 1) == MISSING
    assert code.call(shared.region.address, 7, 1) == 6


def _sum(builder, there, total):
    return builder.select(there, total, constant(MISSING))


def test_each_key_is_deleted_exactly_once_by_whoever_comes():
    # each step sets its own key and deletes the one of another thread's or its own earlier step
    shared = Shared(1 << 16)
    layout = shared.layout

    def build(builder, base, thread, value, step):
        map_set(builder, layout, base, [step], builder.add(step, constant(5)))
        other = builder.xor(step, builder.lshr(value, constant(48)))
        deleted, found = map_delete(builder, layout, base, [other])
        extra = builder.add(base, constant(layout.size))
        with builder.if_then(deleted):
            increase(builder, extra, 0, atomic=True)
            increase(builder, extra, 8, found, atomic=True)
            with builder.if_then(builder.icmp_unsigned("!=", found, builder.add(other, constant(5)))):
                increase(builder, extra, 16, atomic=True)

    code = inprocess.Compiled(4, build)
    steps = inprocess.hammer(code, shared.region.address, threads=8, count=20_000, signals=True)
    left = shared.view.items()
    assert shared.view.contended == 0
    assert int(shared.extra[0]) + len(left) + shared.view.dropped == len(steps)
    if not shared.view.dropped:
        total = int((steps + np.uint64(5)).sum(dtype=np.uint64))
        assert (int(shared.extra[1]) + sum(left.values()) - total) % (1 << 64) == 0
    assert int(shared.extra[2]) == 0
    assert {key + 5 for (key,) in left} == set(left.values())
    # a deleted node stays in its list where somebody was faster, until the next one comes by
    assert shared.free_nodes() + shared.dead_nodes() + len(left) == min(shared.word(USED), layout.nodes)


@pytest.mark.parametrize(("keys", "words"), [(2, 1), (5, 8), (1000, 3)])
def test_few_keys_that_all_fight_for_never_mix_values(keys, words):
    shape = KeyShape(tuple(KeyPart() for _ in range(words)))
    shared = Shared(keys, shape)
    layout = shared.layout

    def build(builder, base, thread, value, number):
        # all words of the key, and the low half of each value, follow from its number
        key = [builder.mul(builder.add(number, constant(1)), constant(index + 3)) for index in range(words)]
        low = constant(0xFFFF)
        own = builder.or_(builder.and_(value, constant(~0xFFFF)), builder.and_(number, low))
        operation = builder.urem(builder.lshr(value, constant(5)), constant(3))
        found = operations(builder, layout, base, operation, own, key)
        foreign = builder.icmp_unsigned("!=", builder.and_(found, low), number)
        wrong = builder.and_(foreign, builder.icmp_unsigned("!=", found, constant(MISSING)))
        extra = builder.add(base, constant(layout.size))
        with builder.if_then(wrong):
            increase(builder, extra, 0, atomic=True)
        with builder.if_then(builder.icmp_unsigned("!=", found, constant(MISSING))):
            increase(builder, extra, 8, atomic=True)

    code = inprocess.Compiled(4, build)
    inprocess.hammer(code, shared.region.address, threads=8, count=100_000, keys=keys, signals=True)
    left = shared.view.items()
    assert int(shared.extra[0]) == 0
    assert int(shared.extra[1]) > 10_000
    assert {key: value & 0xFFFF for key, value in left.items()} == {key: key[0] // 3 - 1 for key in left}
    assert shared.view.dropped == shared.view.contended == 0
    assert shared.free_nodes() + shared.dead_nodes() + len(left) == min(shared.word(USED), layout.nodes)


def _bucket(key):
    # what updates_tables.hashed computes of one word, for two buckets
    total = ((1 ^ key) * 0x9E3779B97F4A7C15) % (1 << 64)
    return (total ^ total >> 32) & 1


_KEYS = [
    None,
    *[key for key in range(1, 30) if _bucket(key)][:4],
    *[key for key in range(1, 30) if not _bucket(key)][:2],
]
"""Numbers 1 to 4 stand for keys of one bucket, 5 and 6 for those of the other."""
_OUTER = [(operation, key) for operation in (SET, GET, DELETE) for key in (1, 2)]
_OTHERS = [
    [(DELETE, 1)],
    [(SET, 1)],
    [(SET, 2)],
    [(DELETE, 1), (SET, 2)],
    [(DELETE, 3), (SET, 2)],
    [(DELETE, 3), (SET, 4)],
    [(DELETE, 1), (SET, 1)],
    [(DELETE, 1), (SET, 2), (DELETE, 2), (SET, 1)],
    [(DELETE, 1), (DELETE, 3), (SET, 3), (SET, 2), (SET, 1)],
    [(DELETE, 3), (SET, 2), (GET, 2), (DELETE, 2), (SET, 3)],
    [(SET, 4), (SET, 5), (DELETE, 1), (SET, 6), (DELETE, 5), (SET, 1), (DELETE, 3)],
]


def _model(state, operation, key, value):
    if operation == SET:
        state[key] = value
        return MISSING
    return state.pop(key, MISSING) if operation == DELETE else state.get(key, MISSING)


@pytest.mark.parametrize("outer", _OUTER, ids=lambda outer: f"{('set', 'get', 'delete')[outer[0]]}-{outer[1]}")
def test_operations_between_any_two_instructions_come_before_or_after(outer):
    # with two buckets and a list of free nodes that works like a stack, nodes come back at once under other keys
    shared = Shared(1)
    code = shared.compile()
    base = shared.region.address
    for others in _OTHERS:
        for steps in range(1, 2000):
            for key in range(1, 7):
                code.call(base, DELETE, 0, _KEYS[key])
            for key in (1, 3):
                code.call(base, SET, key * 10, _KEYS[key])
            calls = [inprocess.call_of(code, base, operation, 500 + key, _KEYS[key]) for operation, key in others]
            found = inprocess.interrupted(inprocess.call_of(code, base, outer[0], 700, _KEYS[outer[1]]), steps, calls)
            if found is None:
                break
            allowed = []
            for first in (True, False):
                state, results = {1: 10, 3: 30}, [0]
                if first:
                    results[0] = _model(state, *outer, 700)
                results += [_model(state, operation, key, 500 + key) for operation, key in others]
                if not first:
                    results[0] = _model(state, *outer, 700)
                allowed.append((results, state))
            now = {_KEYS.index(key): value for (key,), value in shared.view.items().items()}
            assert (found, now) in allowed, f"{others} after {steps} instructions"
            for key in range(100, 120):  # who looks for what is not there takes out what is dead
                code.call(base, GET, 0, key)
            assert shared.free_nodes() + len(now) == min(shared.word(USED), shared.layout.nodes)
        assert steps > 20


@pytest.mark.parametrize("outer", _OUTER, ids=lambda outer: f"{('set', 'get', 'delete')[outer[0]]}-{outer[1]}")
def test_an_operation_that_never_ends_costs_a_node_at_most(outer):
    shared = Shared(1)
    code, base = shared.compile(), shared.region.address
    for steps in range(1, 2000):
        shared.region.map[:] = bytes(len(shared.region.map))
        for key in (1, 3):
            code.call(base, SET, key * 10, key)
        if inprocess.interrupted(inprocess.call_of(code, base, outer[0], 700, outer[1]), steps, [], leave=True) is None:
            break
        state = {key: value for (key,), value in shared.view.items().items()}
        after = {1: 10, 3: 30}
        _model(after, *outer, 700)
        assert state in ({1: 10, 3: 30}, after)
        for number in range(200):
            key = number % 5
            assert code.call(base, GET, 0, key) == state.get(key, MISSING)
            operation = (SET, SET, DELETE)[number % 3]
            assert operation == SET or code.call(base, GET, 0, key) == state.get(key, MISSING)
            assert code.call(base, operation, number, key) == _model(state, operation, key, number)
        assert shared.view.items() == {(key,): value for key, value in state.items()}
        for key in range(100, 120):
            code.call(base, GET, 0, key)
        assert 0 <= shared.word(USED) - shared.free_nodes() - len(state) <= 1
    assert steps > 20


@pytest.mark.parametrize(
    ("capacity", "lasting", "keys", "threads", "count"),
    [(2000, 500, 1000, 4, 300_000), (8, 4, 4, 4, 300_000), (2, 1, 1, 2, 1_000_000)],
)
def test_a_live_view_shows_what_is_there_all_the_time(capacity, lasting, keys, threads, count):
    import threading

    shared = Shared(capacity)
    code = shared.compile()
    fixed = {(key,): key * 3 for key in range(1 << 20, (1 << 20) + lasting)}
    for (key,), value in fixed.items():
        code.call(shared.region.address, SET, value, key)

    def build(builder, base, thread, value, number):
        operation = builder.urem(builder.lshr(value, constant(5)), constant(3))
        operations(builder, shared.layout, base, operation, number, [number])

    churn = inprocess.Compiled(4, build)
    worker = threading.Thread(
        target=inprocess.hammer,
        args=(churn, shared.region.address),
        kwargs={"threads": threads, "count": count, "keys": keys},
    )
    worker.start()
    looks = 0
    while worker.is_alive() or not looks:
        found = shared.view.items()
        assert fixed.items() <= found.items()
        assert all(value == key for (key,), value in found.items() if key < 1 << 20)
        looks += 1
    worker.join()


def test_a_map_needs_a_key_and_room():
    with pytest.raises(UsageError, match="needs a key"):
        MapLayout(Map("m"), UNKEYED)
    with pytest.raises(UsageError, match="holds nothing"):
        Map("m", capacity=0)
    with pytest.raises(UsageError, match="for handlers"):
        Map("m").get((1,))


def test_nothing_outside_is_called():
    code = Shared(10).compile()
    calls = {line.split()[1] for line in code.assembly.splitlines() if line.strip().startswith("call")}
    assert calls
    assert all(name.startswith("map.10.1.") for name in calls)
    assert code.assembly.count("cmpxchg16b") == 2
