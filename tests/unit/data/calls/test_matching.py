"""Events become calls: against a machine that calls, returns, throws and loses events, and knows what it has done."""

import random
from itertools import pairwise

import numpy as np
import pytest

from anyprobe.data.calls.matching import UNKNOWN, Matcher
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, RETURN

STACK = 0x7FFF_0000


class Machine:
    """A thread that calls functions; of each call it knows when it began, when it returned, and how deep it is."""

    def __init__(self, seed, *, throws=0.0, tail_calls=0.0, in_callers=0.0):
        self.random = random.Random(seed)
        self.throws, self.tail_calls, self.in_callers = throws, tail_calls, in_callers
        self.events = []
        self.calls = []
        self.open = []
        self.now = 1000

    def step(self):
        self.now += self.random.randint(1, 50)
        if self.open and self.random.random() < self.throws:
            del self.open[self.random.randrange(len(self.open)) :]
        elif self.open and (self.random.random() < 0.5 or len(self.open) > 30):
            self.leave()
        else:
            self.enter()

    def enter(self):
        function = self.random.randrange(6)
        frame = (
            self.open[-1][2] - 16 * self.random.randint(1, 8) if self.open else STACK - 16 * self.random.randint(0, 3)
        )
        if self.open and self.random.random() < self.tail_calls and self.open[-1][1] != function:
            frame = self.open[-1][2]
        self.events.append((self.now, function << END_BITS | ENTRY, frame))
        self.open.append((len(self.calls), function, frame))
        self.calls.append([len(self.events) - 1, len(self.open) - 1, UNKNOWN])

    def leave(self):
        call, function, frame = self.open.pop()
        frame += 8 * (self.random.random() < self.in_callers)
        self.calls[call][2] = self.now
        self.events.append((self.now, function << END_BITS | RETURN, frame))

    def columns(self):
        times, what, frames = zip(*self.events, strict=True)
        return np.array(times, np.int64), np.array(what, np.uint32), np.array(frames, np.uint32)


def matched(columns, parts=1, jumping=()):
    """Match events in some parts: their depths, other ends, and the calls that are gone, by their entries."""
    matcher, depths, others, gone = Matcher(jumping), [], [], {}
    bounds = np.linspace(0, len(columns[0]), parts + 1).astype(int).tolist()
    for first, last in pairwise(bounds):
        found = matcher.match(*(each[first:last] for each in columns))
        depths += found.depths.tolist()
        others += found.others.tolist()
        for each in found.gone:
            gone[each.call.began, each.call.function, each.depth] = int(columns[0][first + each.event])
    return depths, others, gone, matcher


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("seed", range(12))
def test_each_return_has_its_call_and_each_call_its_return(seed, parts):
    machine = Machine(seed, tail_calls=0.1 * (seed % 3), in_callers=0.5 * (seed % 2))
    for _ in range(400):
        machine.step()
    columns = machine.columns()
    depths, others, gone, matcher = matched(columns, parts, range(6) if seed % 3 else ())
    assert not gone
    ends = {}
    for entry, depth, ended in machine.calls:
        assert depths[entry] == depth
        ends[ended] = columns[0][entry]
        # of an entry whose return is in a later part it is not known yet
        assert others[entry] == ended or (parts > 1 and others[entry] == UNKNOWN)
    for at, (time, what, _) in enumerate(machine.events):
        if what & 3 == RETURN:
            assert others[at] == ends[time]
    assert [(each.function, each.frame) for each in matcher.calls] == [each[1:] for each in machine.open]


@pytest.mark.parametrize("seed", range(20))
def test_calls_that_are_left_otherwise_have_no_return_and_no_others_get_wrong_ones(seed):
    machine = Machine(seed, throws=0.08)
    for _ in range(600):
        machine.step()
    columns = machine.columns()
    _, others, gone, _ = matched(columns)
    for entry, _, ended in machine.calls:
        assert others[entry] in {ended, UNKNOWN}
        # a return that was seen is found, unless its call seemed to be gone before, which it never is
        assert ended == UNKNOWN or others[entry] == ended
    left = {
        (int(columns[0][entry]), machine.events[entry][1] >> END_BITS)
        for entry, _, ended in machine.calls
        if ended == UNKNOWN
    }
    for (began, function, _), seen in gone.items():
        assert (began, function) in left
        assert seen >= began


def test_what_is_open_where_events_are_lost_has_no_end():
    columns = (
        np.array([10, 20, 30, 30, 40, 50], np.int64),
        np.array(
            [ENTRY, 1 << END_BITS | ENTRY, 12 << END_BITS | GAP, 1 << END_BITS | RETURN, ENTRY, RETURN], np.uint32
        ),
        np.array([STACK, STACK - 32, 0, STACK - 32, STACK - 64, STACK - 64], np.uint32),
    )
    depths, others, gone, _ = matched(columns)
    # the return at 30 may be that of another call of the same function, so no duration is made of it
    assert others == [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 50, 40]
    assert set(gone) == {(10, 0, 0), (20, 1, 1)}
    assert depths[4] == 0


def test_calls_on_another_stack_end_none_of_those_on_the_first():
    far = 0x1000_0000
    columns = (
        np.arange(8, dtype=np.int64),
        np.array([ENTRY, 4 | ENTRY, 8 | ENTRY, 8 | RETURN, 12 | ENTRY, 4 | RETURN, RETURN, 12 | RETURN], np.uint32),
        np.array([STACK, STACK - 64, far, far, far - 64, STACK - 64, STACK, far - 64], np.uint32),
    )
    _, others, gone, _ = matched(columns)
    assert others[:4] == [6, 5, 3, 2]
    assert set(gone) == {(4, 3, 2)}, "a call on a stack that was switched away from is not known to go on"
    assert others[7] == UNKNOWN
