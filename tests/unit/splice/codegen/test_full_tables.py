"""Threads' stacks of open calls that are full: what makes room there, and what it has to keep."""

import platform
import random
from dataclasses import dataclass

import pytest

from anyprobe.data.layouts.layout import (
    BLOCK_HEAD_BYTES,
    BLOCK_LEAVING,
    BLOCK_PURGING,
    BLOCK_TOP,
    BLOCK_UNWOUND,
    GOLDEN_32,
    INSTANCE_BYTES,
    INSTANCE_CALLER,
    INSTANCE_CHARGED,
    INSTANCE_COST,
    INSTANCE_RECORD,
    INSTANCE_SP,
    INSTANCE_T0,
    INSTANCE_UNWOUND,
    INSTANCE_WITHIN,
    JUMPED,
    NO_CALLER,
    NODE_BYTES,
    NODE_COUNT,
    NODE_KEY_SHIFT,
    NODE_SELF,
    NODE_SUM,
    PLACE_BYTES,
    RECORD_COUNT,
    RECORD_JUMPED,
    RECORD_LEFT,
    RECORD_MISSED,
    RECORD_OPEN,
    RECORD_OUTERMOST,
    RECORD_REPLACED,
    RECORD_ROOTS,
    RECORD_SELF,
    RECORD_UNMATCHED,
    TOMBSTONE,
    UNSURE_CALLER,
    BankLayout,
)
from support.routine_runs import run_routines

FUNCTIONS, NODES = 4, 64
TICK = 1 << 40
"""A unit of time beside which what the test itself takes is nothing."""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")


def layout_of(maxactive):
    """Return the layout of the machine's bank, and where its records are."""

    class Region(BankLayout):
        @property
        def blocks(self):
            return 2

    layout = Region(counters=4, records=FUNCTIONS, maxactive=maxactive, returns=8, nested=True, nodes=NODES)
    return layout, [layout.new_record() for _ in range(FUNCTIONS)]


def ran(steps, maxactive):
    return run_routines(steps, 0, maxactive)


# -- the same calls, with and without room for all of them


class Coroutines:
    """Calls on several stacks, which end in any order: instances are freed in the middle of the table."""

    ROOM = 8

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.stacks = [[] for _ in range(4)]
        self.steps = []
        self.calls = 0
        self.order = []
        """The open calls as they began."""
        self.own, self.any = ([0] * FUNCTIONS for _ in range(2))

    def enter(self):
        stack = self.random.randrange(len(self.stacks))
        frames = self.stacks[stack]
        if len(frames) > 4 or sum(map(len, self.stacks)) >= self.ROOM:
            return
        frame = (self.random.randrange(FUNCTIONS), 40 * stack + 1 + len(frames))
        frames.append(frame)
        self.order.append(frame)
        self.calls += 1
        self.steps.append(("call", "enter", frame[0], frame[1]))

    def leave(self):
        frames = self.random.choice([each for each in self.stacks if each] or [None])
        if frames is not None:
            self.steps.append(("call", "leave", *frames[-1]))
            self.order.remove(frames.pop())

    def spend(self, ticks):
        self.steps.append(("pass", ticks * TICK))
        if self.order:
            self.own[self.order[-1][0]] += ticks
        for number in {number for number, _ in self.order}:
            self.any[number] += ticks

    def run(self, events):
        for _ in range(events):
            self.random.choice((self.enter, self.enter, self.enter, self.leave, self.leave))()
            self.spend(self.random.randint(1, 9))
        while any(self.stacks):
            self.leave()
            self.spend(1)
        return self.steps


def account(steps, maxactive):
    """Return what is recorded of each function, and the call tree."""
    layout, records = layout_of(maxactive)
    placed = [(*step[:2], records[step[2]], step[3]) if step[0] == "call" else step for step in steps]
    words = {int(at): word for at, word in ran(placed, maxactive)["words"].items()}
    first = layout.blocks_offset

    def at(offset):
        return words.get(offset, 0)

    def ticks(offset):
        return (at(offset) - (1 << 64) * (at(offset) >> 63) + TICK // 2) // TICK

    def path(node):
        if node in (NO_CALLER, UNSURE_CALLER):
            return () if node == NO_CALLER else ("?",)
        key = at(layout.nodes_offset + 8 * node)
        return (*path(key & (1 << NODE_KEY_SHIFT) - 1), records.index(key >> NODE_KEY_SHIFT))

    functions = [
        {name: look(first + record + field) for name, look, field in (
            ("calls", at, RECORD_COUNT), ("missed", at, RECORD_MISSED), ("unmatched", at, RECORD_UNMATCHED),
            ("left", at, RECORD_LEFT), ("self", ticks, RECORD_SELF), ("outermost", ticks, RECORD_OUTERMOST),
            ("roots", ticks, RECORD_ROOTS),
        )}
        for record in records
    ]  # fmt: skip
    tree = {}
    for node in range(1, NODES):
        start = first + layout.tree_offset + NODE_BYTES * node
        if at(start + NODE_COUNT):
            tree[path(node)] = at(start + NODE_COUNT), ticks(start + NODE_SUM), ticks(start + NODE_SELF)
    open_calls = [at(first + BLOCK_HEAD_BYTES + INSTANCE_BYTES * number) for number in range(at(first + BLOCK_TOP))]
    assert set(open_calls) <= {TOMBSTONE}
    assert not at(first + layout.tree_offset + NODE_COUNT)  # the tree has room for all
    assert at(first + BLOCK_PURGING) & 0xFFFF_FFFF == 0
    assert sum(at(first + record + RECORD_SELF) for record in records) % (1 << 64) == sum(
        at(first + record + RECORD_ROOTS) for record in records
    )
    return functions, tree


@pytest.mark.parametrize("seed", range(16))
def test_making_room_changes_nothing_of_what_is_recorded(seed):
    program = Coroutines(seed)
    steps = program.run(100)
    functions, tree = account(steps, Coroutines.ROOM)
    assert sum(each["calls"] for each in functions) == program.calls
    assert all(each["missed"] == each["unmatched"] == each["left"] == 0 for each in functions)
    assert [each["self"] for each in functions] == program.own
    assert [each["outermost"] for each in functions] == program.any
    assert (functions, tree) == account(steps, 256)


# -- tables made up at random, against a model


@dataclass
class Call:
    """An instance in the model; ``caller`` is another one."""

    depth: int
    """How far the stack pointer is down, in the machine's units."""
    record: int
    jumped: bool = False
    start: int = 0
    unwound: int = 0
    within: int = 0
    charged: int = 0
    caller: "Call | None" = None
    node: int = 0
    cost: int = 0


class Table:
    """A full table, and what is to become of it when a function is entered."""

    ROOM = 12

    def __init__(self, seed, records):
        self.random = rng = random.Random(seed)
        self.records = records
        self.unwound = rng.randrange(3)
        self.leaving = rng.randrange(60) if rng.random() < 0.3 else None
        self.deepest, holes = rng.choice([30, 200]), rng.choice([0.0, 0.2])
        self.calls = []  # None: a tombstone
        for _ in range(self.ROOM):
            self.calls.append(None if rng.random() < holes else self.made_up())
        self.open = {}
        for record in records:
            those = [call for call in self.calls if call and call.record == record]
            if those and rng.random() < 0.8:
                self.open[record] = rng.choice(those)
        self.replaced = {record for record in records if rng.random() < 0.1}
        self.left, self.missed, self.roots = (dict.fromkeys(records, 0) for _ in range(3))
        self.entered = self.made_up()
        filled = [number for number, call in enumerate(self.calls) if call]
        self.reserved = rng.choice(filled) if filled and rng.random() < 0.05 else None

    def made_up(self):
        rng = self.random
        called = [call for call in self.calls if call]
        return Call(
            rng.choice([rng.randrange(self.deepest), rng.choice([1, 2, 300, 400])]), rng.choice(self.records),
            rng.random() < 0.15, rng.randrange(1, 1 << 40), rng.randrange(self.unwound + 1), rng.randrange(1 << 30),
            rng.randrange(1 << 20), rng.choice([None, *called]), rng.randrange(1, NODES), rng.randrange(1 << 50),
        )  # fmt: skip

    def words(self, layout):
        """Return the words of the block, by their offsets."""
        place = {id(call): INSTANCE_BYTES * (at + 1) for at, call in enumerate(self.calls) if call}
        found = [(BLOCK_TOP, self.ROOM), (BLOCK_PURGING, 0), (BLOCK_UNWOUND, self.unwound)]
        found.append((BLOCK_LEAVING, [self.leaving] if self.leaving is not None else 0))
        for number, call in enumerate(self.calls):
            start = BLOCK_HEAD_BYTES + INSTANCE_BYTES * number
            if call is None:
                found.append((start + INSTANCE_SP, TOMBSTONE))
                continue
            found += [
                (start + INSTANCE_SP, 0 if number == self.reserved else [call.depth]),
                (start + INSTANCE_T0, call.start),
                (start + INSTANCE_RECORD, call.record | JUMPED * call.jumped),
                (start + INSTANCE_UNWOUND, call.unwound), (start + INSTANCE_WITHIN, call.within),
                (start + INSTANCE_CHARGED, call.charged), (start + INSTANCE_COST, call.cost),
                (start + INSTANCE_CALLER, (place[id(call.caller)] if call.caller else 0) | call.node << 32),
            ]  # fmt: skip
        for record in self.records:
            found.append((record + RECORD_JUMPED, sum(call.jumped for call in self.those(record))))
            found.append((record + RECORD_OPEN, place[id(self.open[record])] if record in self.open else 0))
            found.append((record + RECORD_REPLACED, int(record in self.replaced)))
        # what an earlier look has left
        places = range(layout.places_offset, layout.places_offset + PLACE_BYTES * (self.ROOM + 1), 8)
        return found + [(at, self.random.choice([0, 64 << 32, 128 << 32])) for at in places]

    def those(self, record):
        return [call for call in self.calls if call and call.record == record]

    def drop(self, call):
        counted = self.missed if call.jumped and not self.seen(call) else self.left
        counted[call.record] += 1
        if self.open.get(call.record) is call:
            del self.open[call.record]
        if call.caller:
            call.caller.within += call.within - call.charged
        else:
            self.roots[call.record] += call.within - call.charged
        for other in filter(None, self.calls):
            if other.caller is call:
                other.caller = call.caller
        self.calls[self.calls.index(call)] = None

    def seen(self, call):
        """Return whether it was seen that this call was left behind."""
        return (
            self.leaving is not None
            and self.entered.depth <= call.depth <= self.leaving
            and (call.unwound != self.unwound)
        )

    def enter(self, stack_pointer):
        """Enter a function; return whether there was room."""
        own = self.entered
        settles = self.leaving is not None and own.depth <= self.leaving
        if settles:
            if self.leaving - own.depth < 1 << 17:
                for call in [each for each in reversed(self.calls) if each and self.seen(each)]:
                    if self.calls.index(call) != self.reserved:
                        self.drop(call)
            self.leaving = None
            while self.calls and self.calls[-1] is None:
                self.calls.pop()
        if len(self.calls) == self.ROOM and (self.reserved is not None or not self.make_room(stack_pointer)):
            self.missed[own.record] += 1
            return False
        self.calls.append(own)
        return True

    def make_room(self, stack_pointer):
        own, begin = self.entered, self.ROOM
        while begin and (top := self.calls[begin - 1]) and top.depth == own.depth and top.record != own.record:
            begin -= 1
        last = {}
        for number in reversed(range(self.ROOM)):
            call = self.calls[number]
            if call is None:
                continue
            key = call.depth, call.record
            word = (stack_pointer(call.depth) ^ call.record) * GOLDEN_32 % (1 << 32) * self.ROOM >> 32
            if (number < begin and call.depth == own.depth) or (
                last.get(word) == key and not call.jumped and call.record not in self.replaced
            ):
                self.drop(call)
            elif last.get(word) != key:
                last[word] = key
        self.calls = [call for call in self.calls if call]
        return len(self.calls) < self.ROOM

    def compare(self, block, stack_pointer, had_room):
        """See that the block's words say what the model says."""
        live = [call for call in self.calls if call]
        place = {id(call): INSTANCE_BYTES * (at + 1) for at, call in enumerate(self.calls) if call}
        at = block.get
        assert at(BLOCK_TOP, 0) == len(self.calls)
        assert at(BLOCK_PURGING, 0) & 0xFFFF_FFFF == 0
        for number, call in enumerate(self.calls):
            start = BLOCK_HEAD_BYTES + INSTANCE_BYTES * number
            if call is None:
                assert at(start, 0) == TOMBSTONE
                continue
            assert at(start + INSTANCE_SP, 0) == (0 if number == self.reserved else stack_pointer(call.depth))
            assert at(start + INSTANCE_RECORD, 0) == call.record | JUMPED * call.jumped
            if call is self.entered:
                continue
            assert at(start + INSTANCE_T0, 0) == call.start
            assert at(start + INSTANCE_UNWOUND, 0) == call.unwound
            assert at(start + INSTANCE_WITHIN, 0) == call.within % (1 << 64)
            assert at(start + INSTANCE_CHARGED, 0) == call.charged
            assert at(start + INSTANCE_CALLER, 0) == (place[id(call.caller)] if call.caller else 0) | call.node << 32
            assert at(start + INSTANCE_COST, 0) == call.cost
        for number in range(len(self.calls), self.ROOM):
            assert at(BLOCK_HEAD_BYTES + INSTANCE_BYTES * number, 0) == 0
        for record in self.records:
            assert at(record + RECORD_LEFT, 0) == self.left[record]
            assert at(record + RECORD_MISSED, 0) == self.missed[record]
            assert at(record + RECORD_ROOTS, 0) == self.roots[record] % (1 << 64)
            assert at(record + RECORD_JUMPED, 0) == sum(call.jumped for call in live if call.record == record)
            if record != self.entered.record or not had_room:
                assert at(record + RECORD_OPEN, 0) == (place[id(self.open[record])] if record in self.open else 0)


@pytest.mark.parametrize("part", range(4))
def test_tables_made_up_at_random_become_what_the_model_says(part):
    layout, records = layout_of(Table.ROOM)
    tables = [Table(seed, records) for seed in range(1000 * part, 1000 * part + 1000)]
    steps = [("call", "count", layout.counters_offset, 0)]
    for table in tables:
        table.entered.jumped = False
        steps += [
            ("fill", table.words(layout)),
            ("call", "enter", table.entered.record, table.entered.depth),
            ("look",),
        ]
    result = ran(steps, Table.ROOM)

    def stack_pointer(depth):
        return result["top_of_stack"] - 0x40 * depth

    kinds = dict.fromkeys(("room", "no room"), 0)
    for table, block in zip(tables, result["looks"], strict=True):
        had_room = table.enter(stack_pointer)
        kinds["room" if had_room else "no room"] += 1
        table.compare({int(at): word for at, word in block.items()}, stack_pointer, had_room)
    assert min(kinds.values()) > 20, kinds


def test_what_was_interrupted_while_it_reserves_gives_back_its_own():
    """A full table's enter has taken one more and not yet given it back: a signal handler's makes room meanwhile."""
    room = 8
    layout, records = layout_of(room)
    top = layout.blocks_offset + BLOCK_TOP
    steps = [("call", "count", layout.counters_offset, 0)]
    steps += [("call", "enter", records[0], depth) for depth in range(1, room + 1)]
    steps += [("call", "leave", records[0], 2), ("call", "leave", records[0], 3)]
    steps += [("write", top, room + 1), ("call", "enter", records[1], 20), ("call", "leave", records[1], 20), ("look",)]
    block = {int(at): word for at, word in ran(steps, room)["looks"][-1].items()}
    assert block[BLOCK_TOP] == room - 2 + 1
    assert block.get(records[1] + RECORD_COUNT) == 1
