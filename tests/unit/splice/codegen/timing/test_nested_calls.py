"""Whose time it is: the generated routines against a model of the calls, for programs made up at random."""

import json
import platform
import random
from dataclasses import dataclass

import pytest

from anyprobe.data.layouts.layout import (
    BLOCK_COST,
    BLOCK_LEAVING,
    BLOCK_TOP,
    CALLER_WATCHED,
    COST_BITS,
    JUMPED,
    NO_CALLER,
    NODE_BYTES,
    NODE_COUNT,
    NODE_KEY_SHIFT,
    NODE_SELF,
    NODE_SUM,
    RECORD_COST,
    RECORD_COUNT,
    RECORD_LEARNING,
    RECORD_LEFT,
    RECORD_MADE,
    RECORD_MISSED,
    RECORD_OUTERMOST,
    RECORD_ROOTS,
    RECORD_SELF,
    RECORD_SUM,
    RECORD_TAIL,
    RECORD_UNMATCHED,
    UNSURE_CALLER,
)
from support.nested_runs import (
    COSTS,
    FIRST,
    LAYOUT,
    MAXACTIVE,
    NOTED,
    POINT,
    RECORDS,
    REGION,
    TICK,
    UNKNOWN,
    Words,
    caught,
    enter,
    leave,
    passes,
    ran,
    ticks,
    unwinds,
)
from support.routine_runs import run_routines

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")


def account(words):
    """Return (calls, self, outermost, roots, left) of each record, times in units."""
    return [
        (
            words.record(number, RECORD_COUNT), ticks(words.record(number, RECORD_SELF)),
            ticks(words.record(number, RECORD_OUTERMOST)), ticks(words.record(number, RECORD_ROOTS)),
            words.record(number, RECORD_LEFT),
        )
        for number in range(len(RECORDS))
    ]  # fmt: skip


def tree(words):
    """Return {path of functions: (calls, their time, in themselves)}; a path may begin with what is not known."""
    start = REGION.nodes_offset
    keys = {node: words.at(start + 8 * node) for node in range(LAYOUT.nodes)}

    def path(node):
        if node in (NO_CALLER, UNSURE_CALLER):
            return () if node == NO_CALLER else ("?",)
        key = keys[node]
        number = RECORDS.index(key >> NODE_KEY_SHIFT)
        return (*path(key & (1 << NODE_KEY_SHIFT) - 1), number)

    found = {}
    for node in range(LAYOUT.nodes):
        at = FIRST + LAYOUT.tree_offset + NODE_BYTES * node
        count, total, own = (words.at(at + field) for field in (NODE_COUNT, NODE_SUM, NODE_SELF))
        if count:
            found[path(node) if node else None] = count, ticks(total), ticks(own)
    return found


def settled(words):
    assert words.block(BLOCK_TOP) == words.total(RECORD_UNMATCHED) == 0
    assert words.total(RECORD_SELF) == words.total(RECORD_ROOTS)


def test_a_call_s_time_is_its_own_without_that_of_the_calls_it_makes():
    words = ran([
        enter(0, 0), passes(5), enter(1, 1), passes(20), enter(2, 2), passes(100), leave(2, 2), leave(1, 1),
        enter(1, 1), passes(30), leave(1, 1), passes(7), leave(0, 0),
    ])  # fmt: skip
    settled(words)
    assert account(words) == [(1, 12, 162, 162, 0), (2, 50, 150, 0, 0), (1, 100, 100, 0, 0), (0, 0, 0, 0, 0)]
    assert tree(words) == {(0,): (1, 162, 12), (0, 1): (2, 150, 50), (0, 1, 2): (1, 100, 100)}


def test_recursion_counts_once():
    words = ran([
        enter(0, 0), passes(1), enter(1, 1), passes(2), enter(0, 2), passes(4), enter(0, 3), passes(8), leave(0, 3),
        leave(0, 2), passes(16), leave(1, 1), leave(0, 0), enter(0, 1), passes(32), leave(0, 1),
    ])  # fmt: skip
    settled(words)
    assert account(words)[:2] == [(4, 45, 63, 63, 0), (1, 18, 30, 0, 0)]
    assert ticks(words.record(0, RECORD_SUM)) == 31 + 12 + 8 + 32


def test_what_is_left_behind_is_its_caller_s_time():
    words = ran([
        enter(0, 0), passes(1), enter(1, 2), passes(2), enter(2, 4), passes(4), enter(3, 5), passes(8), leave(3, 5),
        unwinds(6), passes(16), enter(3, 2), passes(32), leave(3, 2), leave(0, 0),
    ])  # fmt: skip
    settled(words)
    assert account(words) == [(1, 1 + 2 + 4 + 16, 63, 63, 0), (0, 0, 0, 0, 1), (0, 0, 0, 0, 1), (2, 40, 40, 0, 0)]


@pytest.mark.parametrize("told", [False, True])
def test_it_is_taken_out_where_the_program_goes_on(told):
    steps = [enter(0, 0), enter(1, 2), enter(1, 4), passes(4), unwinds(6)]
    steps += [caught(1)] * told + [passes(1), enter(1, 2), passes(2), leave(1, 2)]
    words = ran(steps)
    assert words.block(BLOCK_TOP) == 1
    assert words.block(BLOCK_LEAVING) == 0
    assert account(words)[1] == (1, 2, 2, 0, 2)


def test_destructors_run_in_what_is_being_left():
    words = ran([
        enter(0, 0), enter(1, 2), enter(2, 4), unwinds(6), passes(1), enter(3, 4), passes(2), leave(3, 4),
        unwinds(3), caught(1), passes(4), leave(0, 0),
    ])  # fmt: skip
    settled(words)
    assert account(words) == [(1, 5, 7, 7, 0), (0, 0, 0, 0, 1), (0, 0, 0, 0, 1), (1, 2, 2, 0, 0)]


def test_calls_on_another_stack_go_on_where_their_caller_ends():
    words = ran([
        enter(0, 0), passes(1), enter(1, 2), passes(2), enter(2, 300), passes(4), leave(1, 2), passes(8),
        leave(2, 300), passes(16), leave(0, 0),
    ])  # fmt: skip
    settled(words)
    assert account(words)[:3] == [(1, 17, 31, 31, 0), (1, 2, 6, 0, 0), (1, 12, 12, 0, 0)]


def test_unwinding_takes_nothing_from_other_stacks():
    words = ran([
        enter(0, 0), enter(1, 300), passes(1), enter(2, 2), unwinds(4), passes(2), enter(3, 2), leave(3, 2),
        leave(1, 300), leave(0, 0),
    ])  # fmt: skip
    settled(words)
    assert [found[0] for found in account(words)] == [1, 1, 0, 1]
    assert [found[4] for found in account(words)] == [0, 0, 1, 0]


def test_more_calls_than_there_is_room_for_are_their_caller_s():
    depth = MAXACTIVE + 3
    down = [step for at in range(depth) for step in (enter(at % 2, at), passes(1))]
    words = ran([*down, *(leave(at % 2, at) for at in reversed(range(MAXACTIVE)))])
    settled(words)
    assert words.total(RECORD_MISSED) == 3
    assert [found[:2] for found in account(words)[:2]] == [(32, 32), (32, 32 + 3)]
    kept = tree(words)
    assert sum(count for count, _, _ in kept.values()) == MAXACTIVE
    assert sum(own for _, _, own in kept.values()) == MAXACTIVE + 3
    assert None in kept  # for which the tree had no room


@pytest.mark.parametrize("told", [False, True])
def test_callers_are_not_guessed_after_unwinding(told):
    steps = [enter(0, 0), enter(1, 2), enter(2, 4), passes(4), unwinds(6), *[caught(1)] * told]
    steps += [passes(1), enter(3, 5), passes(2), leave(3, 5)]
    words = ran([*steps, leave(0, 0)])
    assert words.total(RECORD_SELF) == words.total(RECORD_ROOTS)
    assert [found[1] for found in account(words)] == [5, 0, 0, 2]
    assert words.block(BLOCK_TOP) == (0 if told else 3)  # they may be on another stack
    assert set(tree(words)) == {(0,), (0, 3) if told else ("?", 3)}


@dataclass
class Frame:
    """An open call in the model."""

    number: int
    depth: int
    began: int
    own: int = 0
    jumped: bool = False
    outermost: bool = False
    unwound: int = 0
    """How often calls had been left behind when it left by a jump."""


class Program:
    """A random program, and what is to be known of it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.told = seed % 2 == 0
        self.steps = [("know", POINT, record, CALLER_WATCHED) for record in RECORDS]
        self.frames, self.now = [], 0
        self.own, self.outermost, self.left, self.calls, self.tails = ([0] * len(RECORDS) for _ in range(5))
        self.unwound, self.missed, self.direct = 0, 0, False

    def spend(self):
        for_now = self.random.randint(1, 9)
        self.now += for_now
        self.steps.append(passes(for_now))
        if self.frames:
            self.frames[-1].own += for_now

    def call(self, depth=None):
        number = self.random.randrange(len(RECORDS))
        if depth is None:
            base = self.frames[-1].depth if self.frames else 0
            depth = base + (1 if self.direct else self.random.randint(1, 3))
        self.direct = False
        outermost = all(frame.number != number for frame in self.frames)
        self.frames.append(Frame(number, depth, self.now, outermost=outermost))
        self.steps.append(enter(number, depth))

    def drop(self):
        """Take out the last call, of which no time is known: it was its caller's."""
        frame = self.frames.pop()
        if self.frames:
            self.frames[-1].own += frame.own
        return frame

    def end(self, frame):
        self.calls[frame.number] += 1
        self.own[frame.number] += frame.own
        if frame.outermost:
            self.outermost[frame.number] += self.now - frame.began

    def come_back(self):
        frame = self.frames.pop()
        self.steps.append(leave(frame.number, frame.depth))
        self.end(frame)
        ended = []
        while self.frames and self.frames[-1].jumped:
            ended.append(self.frames[-1])
            if self.frames[-1].unwound == self.unwound:
                self.end(self.frames.pop())
            else:  # it may be one that was left behind
                self.missed += 1
                self.drop()
        for number in self.random.sample(sorted({each.number for each in ended}), len({each.number for each in ended})):
            self.steps.append(("end", "leave_caller", RECORDS[number] | JUMPED, frame.depth, 0))

    def jump(self):
        frame = self.frames[-1]
        watched = self.random.random() < 0.8
        point = POINT if watched else UNKNOWN + 16 * self.random.randrange(2)
        self.steps.append(("end", "leave_tail", RECORDS[frame.number], frame.depth, point))
        if watched:
            frame.jumped, frame.unwound = True, self.unwound
        else:
            self.drop()
            self.tails[frame.number] += 1
        self.call(frame.depth)

    def throw(self):
        if len(self.frames) < 2:
            return
        self.steps.append(unwinds(self.frames[-1].depth + self.random.randint(1, 3)))
        catching = self.random.choice([at for at, frame in enumerate(self.frames[:-1]) if not frame.jumped] or [None])
        if catching is None:
            self.steps.pop()
            return
        self.unwound += 1
        while len(self.frames) > catching + 1:
            if self.told and self.random.random() < 0.3:  # a landing pad
                self.unwound += 1
                self.steps.append(unwinds(self.frames[-1].depth + 1))
            self.left[self.drop().number] += 1
        self.direct = True
        if self.told:
            self.steps.append(caught(self.frames[-1].depth + 1))

    def run(self, events):
        for _ in range(events):
            self.spend()
            kinds = [self.call] * 5 + [self.come_back] * 4 + [self.jump] * 2 + [self.throw]
            kind = self.random.choice(kinds) if self.frames else self.call
            if len(self.frames) > MAXACTIVE // 2 and kind in (self.call, self.jump):
                kind = self.come_back
            if self.direct and kind is self.jump:
                kind = self.call
            kind()
        while self.frames:
            self.spend()
            self.come_back()
        return self.steps


@pytest.mark.parametrize("seed", range(16))
def test_of_random_programs_all_times_are_somebody_s(seed):
    program = Program(seed)
    words = ran(program.run(400))
    assert words.total(RECORD_SELF) == words.total(RECORD_ROOTS)
    found = account(words)
    assert [each[0] for each in found] == program.calls
    assert [each[1] for each in found] == program.own
    assert words.total(RECORD_MISSED) + words.total(RECORD_LEFT) == program.missed + sum(program.left)
    if program.told:  # else what has jumped to where the program goes on may have been left behind, and may not
        assert [each[4] for each in found] == program.left
    tails = [words.record(number, RECORD_LEARNING) + words.record(number, RECORD_TAIL) for number in range(4)]
    assert tails == program.tails
    assert [each[2] for each in found] == program.outermost
    by_function = [[0, 0] for _ in RECORDS]
    for path, (count, _, own) in tree(words).items():
        if path is not None:
            by_function[path[-1]][0] += count
            by_function[path[-1]][1] += own
    if None not in tree(words):
        assert [tuple(each) for each in by_function] == [(each[0], each[1]) for each in found]
    settled(words)


# -- what probes cost: to the tick, as each routine takes always the same


class Costly(Program):
    """A program of which no more is known than the model knows: probes have taken none of its time."""

    def run(self, events):
        return [("pass", step[1] // TICK) if step[0] == "pass" else step for step in super().run(events)]


@pytest.mark.parametrize("seed", range(16))
def test_times_are_those_without_probes(seed):
    program = Costly(seed)
    words = Words(run_routines(program.run(400), NOTED, MAXACTIVE, json.dumps(COSTS))["words"])
    numbers = range(len(RECORDS))
    assert [words.record(number, RECORD_COUNT) for number in numbers] == program.calls
    assert [words.record(number, RECORD_SELF) for number in numbers] == program.own
    assert [words.record(number, RECORD_OUTERMOST) for number in numbers] == program.outermost
    assert words.total(RECORD_SELF) == words.total(RECORD_ROOTS)


def test_what_was_measured_is_known_as_well():
    steps = [
        enter(0, 0), ("pass", 5), enter(1, 1), ("pass", 20), enter(2, 2), ("pass", 100), leave(2, 2), leave(1, 1),
        enter(1, 1), ("pass", 30), leave(1, 1), ("pass", 7), leave(0, 0),
    ]  # fmt: skip
    words = Words(run_routines(steps, NOTED, MAXACTIVE, json.dumps(COSTS))["words"])
    inside, whole = 7 + 5, 7 + 5 + 13
    cost = [words.record(number, RECORD_COST) >> COST_BITS for number in range(3)]
    assert [words.record(number, RECORD_SUM) for number in range(3)] == [162, 150, 100]
    assert cost == [inside + 3 * whole, 2 * inside + whole, inside]
    assert [words.record(number, RECORD_MADE) for number in range(3)] == [2, 1, 0]
    assert words.block(BLOCK_COST) >> COST_BITS == 4 * whole
