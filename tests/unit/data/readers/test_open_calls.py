"""Calls that a program ends in: what their records have then, on random stacks of calls by the arithmetic of trees."""

import random

import numpy as np
import pytest

from anyprobe.data.layouts import layout as at
from anyprobe.data.readers.open_calls import end_open_calls, gone_at, running_calls

FUNCTIONS, DEEP, NOW = 3, 6, 1_000_000


class Thread:
    """A block as a thread leaves it that has made calls one in the other, and has come back from others before."""

    def __init__(self, *, nested=True, nodes=0, cost=0):
        self.layout = at.BankLayout(counters=0, records=FUNCTIONS, maxactive=16, nested=nested, nodes=nodes)
        self.records = [self.layout.new_record() for _ in range(FUNCTIONS)]
        self.block = np.zeros(self.layout.stride // 8, np.uint64)
        self.put(at.BLOCK_COST, cost << at.COST_BITS)
        self.depth = 0

    def put(self, offset, value):
        self.block[offset // 8] = value

    def get(self, offset):
        return int(self.block[offset // 8].astype(np.int64))

    def call(self, record, began, within, *, pointer=None, caller=None, node=0):
        """Begin a call in the one before, or in ``caller``, which has made calls that took ``within``."""
        place = self.layout.instances_offset + self.depth * at.INSTANCE_BYTES
        caller = self.depth if caller is None else caller
        self.put(place + at.INSTANCE_SP, 0x7F0000 - 64 * self.depth if pointer is None else pointer)
        self.put(place + at.INSTANCE_T0, began)
        self.put(place + at.INSTANCE_RECORD, record)
        self.put(place + at.INSTANCE_WITHIN, within)
        self.put(place + at.INSTANCE_CALLER, caller * at.INSTANCE_BYTES | node << 32)
        self.depth += 1
        self.put(at.BLOCK_TOP, self.depth)

    def own(self):
        return [self.get(record + at.RECORD_SELF) for record in self.records]

    def roots(self):
        return [self.get(record + at.RECORD_ROOTS) for record in self.records]


@pytest.mark.parametrize("seed", range(40))
def test_own_times_of_open_calls_are_the_time_of_the_outermost(seed):
    rng = random.Random(seed)
    cost = rng.randrange(500)
    thread, now = Thread(cost=cost), NOW + cost
    began = sorted(rng.sample(range(NOW), rng.randint(1, DEEP)))
    until = [*began[1:], NOW]
    own, inclusive = dict.fromkeys(thread.records, 0), {}
    for start, end in zip(began, until, strict=True):
        record, within = rng.choice(thread.records), rng.randint(0, end - start)
        thread.call(record, start, within)
        own[record] += end - start - within
        inclusive.setdefault(record, NOW - start)  # of recursion the outermost
    before = thread.block.copy()
    assert running_calls(thread.block, thread.layout, now) == inclusive
    assert (thread.block == before).all()
    assert end_open_calls(thread.block, thread.layout, now) == inclusive
    assert thread.own() == [own[record] for record in thread.records]
    assert sum(thread.roots()) == NOW - began[0]


def test_it_is_the_same_in_a_tree():
    thread = Thread(nodes=64)
    one, other, _ = thread.records
    thread.call(one, 100, 30, node=5)
    thread.call(other, 400, 50, node=9)
    end_open_calls(thread.block, thread.layout, 1000)
    nodes = {
        node: (thread.get(thread.layout.tree_offset + node * at.NODE_BYTES + at.NODE_SUM),
               thread.get(thread.layout.tree_offset + node * at.NODE_BYTES + at.NODE_SELF))
        for node in (5, 9)
    }  # fmt: skip
    assert nodes == {5: (900, 270), 9: (600, 550)}


def test_what_waits_on_another_stack_has_had_its_time_and_runs_on_in_its_total():
    thread = Thread()
    one, other, _ = thread.records
    switches = thread.layout.offset_of(at.SWITCHES)
    thread.call(one, 100, 300)  # up to 400, when it has changed its stack: its own time so far is in its record
    thread.put(one + at.RECORD_SELF, 300)
    thread.put(one + at.RECORD_ROOTS, 300)
    thread.call(switches, 400, 1)
    thread.call(other, 450, 0, caller=0)
    assert running_calls(thread.block, thread.layout, 1000) == {one: 900, other: 550}
    assert end_open_calls(thread.block, thread.layout, 1000) == {one: 900, other: 550}
    assert thread.own()[:2] == [300, 550]
    assert thread.roots()[:2] == [300, 550]


def test_what_runs_outside_of_all_calls_meanwhile_is_in_no_row():
    thread = Thread()
    one, switches = thread.records[0], thread.layout.offset_of(at.SWITCHES)
    unnamed = thread.layout.offset_of(at.UNNAMED)
    thread.call(one, 100, 300)
    thread.call(switches, 400, 1)
    thread.put(switches + at.SWITCH_COUNTS, 1)
    thread.put(switches + at.SWITCH_SINCE, 400)
    assert end_open_calls(thread.block, thread.layout, 1000) == {one: 900}
    assert [thread.get(unnamed + field) for field in (at.RECORD_SELF, at.RECORD_ROOTS)] == [600, 600]


def test_calls_that_are_over_or_left_behind_have_none():
    thread = Thread(nested=False)
    one, other, third = thread.records
    thread.call(one, 100, 0, pointer=0x7F00)
    thread.call(third, 150, 0, pointer=0x7000)  # left by longjmp: what is called above lies further up the stack
    thread.call(third, 160, 0, pointer=at.TOMBSTONE)
    thread.call(other, 400, 0, pointer=0x7E00)
    before = thread.block.copy()
    assert end_open_calls(thread.block, thread.layout, 1000) == {one: 900, other: 600}
    assert (thread.block == before).all()


def test_the_moment_of_exit_is_what_the_thread_has_noted_there():
    thread = Thread()
    thread.put(at.BLOCK_SLOW, 777)
    assert gone_at(thread.block) == 0
    thread.put(at.BLOCK_LEAVING, 0x7F00 | at.GONE)
    assert gone_at(thread.block) == 777
