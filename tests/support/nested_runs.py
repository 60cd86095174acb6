"""Runs of the generated routines where calls are nested: the steps, and what a thread's block holds then."""

from anyprobe.data.layouts.layout import BankLayout
from support.routine_runs import run_routines

MAXACTIVE, NOTED = 64, 16
LAYOUT = BankLayout(counters=4, records=4, maxactive=MAXACTIVE, nested=True, nodes=64)
RECORDS = [LAYOUT.new_record() for _ in range(4)]
FIRST = LAYOUT.blocks_offset


class Region(BankLayout):
    """The machine's: it has two blocks."""

    @property
    def blocks(self):
        return 2


REGION = Region(counters=4, records=4, maxactive=MAXACTIVE, returns=8, callers=NOTED, nested=True, nodes=64)
TICK = 1 << 40
"""A unit of time beside which what the test itself takes is nothing."""
POINT, UNKNOWN = 0x5555_5555_1234, 0x5555_5555_5678


class Words:
    """What a thread's block holds."""

    def __init__(self, words):
        self._words = words

    def at(self, offset):
        word = self._words.get(str(offset), 0)
        return word - (1 << 64) if word >> 63 else word

    def block(self, field):
        return self.at(FIRST + field)

    def record(self, number, field):
        return self.at(FIRST + RECORDS[number] + field)

    def total(self, field):
        return sum(self.record(number, field) for number in range(len(RECORDS)))


def ran(steps):
    return Words(run_routines(steps, NOTED, MAXACTIVE)["words"])


def enter(number, depth):
    return ("call", "enter", RECORDS[number], depth)


def leave(number, depth):
    return ("call", "leave", RECORDS[number], depth)


def passes(ticks):
    return ("pass", ticks * TICK)


def unwinds(depth):
    return ("call", "unwind", 1, depth)


def caught(depth):
    return ("call", "unwind", 0, depth)


def ticks(word):
    """Return whole units of a sum, as the test itself takes far less than one."""
    return (word + TICK // 2) // TICK


COSTS = {"enter": (0, 7), "leave": (5, 13), "leave_tail": (17, 0), "leave_caller": (3, 19)}
"""Of each routine the ticks until it reads the clock, and afterwards."""
