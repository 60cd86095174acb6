"""Whose time it is where a thread changes stacks: the generated routines against a model, for random programs."""

import json
import platform
import random

import pytest

from anyprobe.data.layouts.layout import (
    BLOCK_LEAVING,
    BLOCK_TOP,
    BY_JUMP,
    INSTANCE_BYTES,
    MAY_STAY,
    RECORD_COUNT,
    RECORD_ROOTS,
    RECORD_SELF,
    RECORD_SUM,
    RESUMED,
    SP,
    SWITCHES,
    UNNAMED,
)
from support.nested_runs import (
    COSTS,
    FIRST,
    MAXACTIVE,
    NOTED,
    RECORDS,
    REGION,
    TICK,
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
SWITCH = REGION.offset_of(SWITCHES)


def away(depth):
    return ("call", "enter", SWITCH, depth)


def arrives(depth, flags=0):
    return ("call", "leave_switch", SWITCH | flags, depth)


def unnamed(words, field):
    return words.at(FIRST + REGION.offset_of(UNNAMED) + field)


def own(words):
    return [ticks(words.record(number, RECORD_SELF)) for number in range(len(RECORDS))]


def open_calls(words):
    """Return where there are calls on the thread's stack of them, but for a switch that is over."""
    return [at for at in range(words.block(BLOCK_TOP)) if words.block(SP + INSTANCE_BYTES * at) > RESUMED]


def balanced(words):
    """See that all own times are those of calls without callers."""
    return words.total(RECORD_SELF) + unnamed(words, RECORD_SELF) == words.total(RECORD_ROOTS) + unnamed(
        words, RECORD_ROOTS
    )


def test_what_another_stack_does_is_not_the_caller_s():
    words = ran([
        enter(0, 0), passes(1), away(2), arrives(300), passes(2), enter(1, 301), passes(4), away(303), arrives(2),
        passes(8), enter(2, 2), passes(16), leave(2, 2), away(2), arrives(303), passes(32), leave(1, 301), passes(64),
        away(301), arrives(2), passes(128), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [1 + 8 + 128, 4 + 32, 16, 0]
    assert ticks(unnamed(words, RECORD_SELF)) == 2 + 64
    assert ticks(words.record(0, RECORD_SUM)) == 255
    assert ticks(words.record(1, RECORD_SUM)) == 4 + 8 + 16 + 32
    assert balanced(words)
    assert not open_calls(words)


def test_calls_that_wait_have_their_time_so_far_with_their_callers():
    words = ran([
        enter(0, 0), away(2), arrives(300), enter(1, 301), passes(4), enter(2, 302), passes(2), away(303), arrives(2),
        passes(1), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [1, 4, 2, 0]
    assert [words.record(number, RECORD_COUNT) for number in range(3)] == [1, 0, 0]
    assert ticks(words.record(0, RECORD_ROOTS)) == 1


def test_the_function_that_changes_stacks_may_be_timed_itself():
    words = ran([
        enter(0, 0), passes(1), enter(2, 2), away(2), arrives(300), enter(1, 301), passes(4), enter(2, 303), away(303),
        arrives(2), leave(2, 2), passes(8), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [9, 4, 0, 0]
    assert [words.record(number, RECORD_COUNT) for number in range(3)] == [1, 0, 1]
    assert ticks(words.record(2, RECORD_SUM)) == 4
    assert balanced(words)


@pytest.mark.parametrize("flags", [0, MAY_STAY, BY_JUMP])
def test_who_comes_back_to_the_same_place_has_changed_nothing(flags):
    words = ran([
        enter(0, 0), passes(1), away(2), passes(2), arrives(2 - bool(flags & BY_JUMP) / 8, flags), enter(1, 2),
        passes(4), leave(1, 2), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [3, 4, 0, 0]
    assert unnamed(words, RECORD_ROOTS) == 0
    assert balanced(words)


def test_a_jump_may_have_taken_the_return_address():
    words = ran([
        enter(0, 0), away(2), arrives(300, BY_JUMP), enter(1, 301), passes(4), away(303), arrives(2 - 1 / 8, BY_JUMP),
        passes(2), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [2, 4, 0, 0]


def test_calls_of_the_same_stack_may_have_been_left_instead():
    """``setcontext`` to what ``getcontext`` has kept further up."""
    words = ran([
        enter(0, 0), enter(1, 2), passes(4), away(4), unwinds(4), arrives(1, MAY_STAY), passes(2), enter(2, 2),
        passes(1), leave(2, 2), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [6, 0, 1, 0]
    assert unnamed(words, RECORD_ROOTS) == 0
    assert (open_calls(words), words.block(BLOCK_LEAVING)) == ([], 0)


def test_exceptions_leave_nothing_of_other_stacks():
    words = ran([
        enter(0, 0), away(2), arrives(300), enter(1, 301), passes(4), enter(2, 302), passes(2), away(303), arrives(2),
        enter(3, 4), passes(1), unwinds(6), caught(1), passes(8), away(2), arrives(303), passes(16), leave(2, 302),
        passes(32), leave(1, 301), away(301), arrives(2), leave(0, 0),
    ])  # fmt: skip
    assert own(words) == [9, 36, 18, 0]
    assert balanced(words)
    assert not open_calls(words)


def test_where_it_is_not_seen_that_a_stack_was_left_nothing_is_done():
    words = ran([enter(0, 0), passes(1), arrives(300), enter(1, 2), passes(2), leave(1, 2), leave(0, 0)])
    assert own(words) == [1, 2, 0, 0]
    assert balanced(words)


@pytest.mark.parametrize("calls", [False, True])
def test_a_stack_that_is_gone_on_with_unseen_waits_no_longer(calls):
    """By longjmp, for instance: nothing is counted twice."""
    steps = [enter(0, 0), enter(1, 2), away(4), arrives(300), enter(2, 301), passes(4), leave(2, 301), passes(1)]
    steps += [enter(3, 4), passes(2), leave(3, 4)] * calls
    words = ran([*steps, leave(1, 2), enter(1, 2), passes(8), leave(1, 2), passes(16), leave(0, 0)])
    assert own(words)[0] == 16
    assert own(words)[2:] == [4, 2 * calls]
    assert ticks(words.record(0, RECORD_ROOTS)) == ticks(words.record(0, RECORD_SUM))
    assert balanced(words)


class Fibers:
    """A random program with five stacks, and what is to be known of it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.steps, self.calls, self.own, self.unnamed = [], [0] * len(RECORDS), [0] * len(RECORDS), 0
        self.stacks = [[] for _ in range(5)]
        """Of each the functions of its open calls, with their depths."""
        self.left_at = [None] * 5
        self.now = 0
        self.enter()

    def spend(self):
        some = self.random.randint(1, 9)
        self.steps.append(passes(some))
        if self.stacks[self.now]:
            self.own[self.stacks[self.now][-1][0]] += some
        else:
            self.unnamed += some

    def deeper(self):
        calls = self.stacks[self.now]
        return (calls[-1][1] if calls else 100 * self.now) + self.random.randint(1, 3)

    def enter(self):
        number = self.random.randrange(len(RECORDS))
        depth = self.deeper()
        self.stacks[self.now].append((number, depth))
        self.steps.append(enter(number, depth))

    def end(self):
        number, depth = self.stacks[self.now].pop()
        self.calls[number] += 1
        self.steps.append(leave(number, depth))

    def change(self, to=None):
        to = self.random.choice([n for n in range(5) if n != self.now]) if to is None else to
        depth = self.deeper()
        self.left_at[self.now] = depth
        self.steps += [away(depth), arrives(100 * to if self.left_at[to] is None else self.left_at[to])]
        self.now = to

    def run(self, events):
        for _ in range(events):
            self.spend()
            calls = self.stacks[self.now]
            kinds = [self.enter] * (3 * (len(calls) < 8)) + [self.change] * 2
            kinds += [self.end] * (3 * (len(calls) > (self.now == 0)))
            self.random.choice(kinds)()
        if self.now:
            self.change(0)
        while self.stacks[0]:
            self.spend()
            self.end()
        return self.steps


@pytest.mark.parametrize("seed", range(16))
def test_of_random_programs_each_call_has_its_own_time(seed):
    program = Fibers(seed)
    words = ran(program.run(400))
    assert own(words) == program.own
    assert ticks(unnamed(words, RECORD_SELF)) == program.unnamed
    assert [words.record(number, RECORD_COUNT) for number in range(len(RECORDS))] == program.calls


@pytest.mark.parametrize("seed", range(4))
def test_switches_cost_what_is_left_out_of_times(seed):
    program = Fibers(seed)
    steps = [("pass", step[1] // TICK) if step[0] == "pass" else step for step in program.run(400)]
    costs = COSTS | {"leave_switch": COSTS["leave"]}
    words = Words(run_routines(steps, NOTED, MAXACTIVE, json.dumps(costs))["words"])
    assert [words.record(number, RECORD_SELF) for number in range(len(RECORDS))] == program.own
    assert unnamed(words, RECORD_SELF) == program.unnamed
