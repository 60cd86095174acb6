"""Calls that are still running when a program ends: they have run until then, which their records are to have.

Where it is known which calls made which, they are left as those are that wait on another stack when a thread goes on on
this one (``splice.codegen.timing.switches``): what they have taken themselves is in their records, and their callers'.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import SWITCHES, UNNAMED, BankLayout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MASK, _SIGN = (1 << 64) - 1, 1 << 63


def gone_at(block: "NDArray[np.uint64]") -> int:
    """Return when a block's thread has begun to end the process by ``_exit``, 0 if that is not known."""
    return int(block[at.BLOCK_SLOW // 8]) if int(block[at.BLOCK_LEAVING // 8]) & at.GONE else 0


def end_open_calls(block: "NDArray[np.uint64]", layout: BankLayout, now: int) -> Counter[int]:
    """End what a block has open, once its thread is over, at a time; return what the calls have taken, by record.

    Of recursion it is the outermost call's time. Where calls are nested their own times are added to the records.
    """
    calls = _OpenCalls(block, layout)
    now -= calls.spent()
    open_ones = calls.nested(now) if layout.nested else calls.alone()
    if layout.nodes:
        for number in open_ones:
            calls.add(calls.node(number) + at.NODE_SUM, now - calls.field(number, at.INSTANCE_T0))
    return calls.outermost(open_ones, now)


def thread_in(block: "NDArray[np.uint64]") -> int:
    """Return the id of the thread whose times on processors a block has."""
    return int(block[at.BLOCK_LOCK // 8]) >> 32


def last_moment(block: "NDArray[np.uint64]", layout: BankLayout) -> int:
    """Return the time at which the last of a block's open calls began, with what is in no call's time."""
    calls = _OpenCalls(block, layout)
    return max((calls.field(number, at.INSTANCE_T0) for number in calls.alone()), default=0) + calls.spent()


def running_calls(
    block: "NDArray[np.uint64]", layout: BankLayout, now: int, ran: "Callable[[int], int] | None" = None
) -> Counter[int]:
    """Return how long what a block has open has run by a time, by record: of recursion it is the outermost call's time.

    The program may be writing: a call that begins or ends just now is there or is not. ``ran``: tells for how many
    ticks a thread has been on processors, where times are of that.
    """
    if ran is not None:
        ticks = ran(thread_in(block))
        now = ticks + int(block[at.BLOCK_OFF // 8]) if ticks else last_moment(block, layout)
    calls = _OpenCalls(block, layout)
    return calls.outermost(calls.chained() if layout.nested else calls.alone(), now - calls.spent())


def opened_by(owner: int, heads: "NDArray[np.uint64]", layout: BankLayout) -> list[tuple[int, int]]:
    """Return where the calls begin that a thread has open, in bytes of the bank, and how many there are.

    ``heads``: owner and top of each block, the shared one first.
    """
    start = layout.shared_offset + layout.instances_offset
    return [
        (start + number * layout.stride, min(top, layout.maxactive))
        for number, (whose, top) in enumerate(heads.tolist())
        if whose == owner and top and layout.maxactive
    ]


class _OpenCalls:
    def __init__(self, block: "NDArray[np.uint64]", layout: BankLayout) -> None:
        self._block, self._layout = block, layout
        self._top = min(int(block[at.BLOCK_TOP // 8]), layout.maxactive)
        self._switches = layout.offset_of(SWITCHES) if layout.nested else -1

    def word(self, offset: int) -> int:
        word = int(self._block[offset // 8])
        return word - (1 << 64) if word & _SIGN else word

    def spent(self) -> int:
        """Return the ticks that are in no call's time: the thread's probes took them, or it was not on a processor."""
        return (self.word(at.BLOCK_COST) >> at.COST_BITS) + self.word(at.BLOCK_OFF)

    def outermost(self, open_ones: Iterable[int], now: int) -> Counter[int]:
        """Return how long open calls have run, by record; of several of one record the outermost one."""
        found = Counter[int]()
        for number in sorted(open_ones):
            record = self.record(number)
            if record not in found:
                found[record] = max(now - self.field(number, at.INSTANCE_T0), 0)
        return found

    def add(self, offset: int, ticks: int) -> None:
        self._block[offset // 8] = (int(self._block[offset // 8]) + ticks) & _MASK

    def field(self, number: int, field: int) -> int:
        return self.word(self._place(number) + field)

    def record(self, number: int) -> int:
        return self.field(number, at.INSTANCE_RECORD) & ~at.JUMPED

    def node(self, number: int) -> int:
        node = self.field(number, at.INSTANCE_CALLER) >> 32 & 0xFFFFFFFF
        return self._layout.tree_offset + node * at.NODE_BYTES

    def _place(self, number: int) -> int:
        return self._layout.instances_offset + number * at.INSTANCE_BYTES

    def _caller(self, number: int) -> int:
        """Return which call made one, -1 if none did."""
        caller = (self.field(number, at.INSTANCE_CALLER) & 0xFFFFFFFF) // at.INSTANCE_BYTES - 1
        return caller if caller < number else -1

    def _is_switch(self, number: int) -> bool:
        return self.record(number) == self._switches

    def alone(self) -> list[int]:
        """Return the open calls where none knows its caller: those that what is above them has not left behind."""
        found, highest = list[int](), at.RESUMED
        for number in reversed(range(self._top)):
            pointer = self.field(number, at.INSTANCE_SP) & _MASK
            if pointer > highest:
                found.append(number)
                highest = pointer
        return found

    def nested(self, now: int) -> set[int]:
        """Give the open calls the own time that they have had since it was last known; return them."""
        running = self._running()
        for number, ticks in self._own_times(running, now) if running >= 0 else ():
            self.add(self._place(number) + at.INSTANCE_WITHIN, ticks)
            self.add(self.record(number) + at.RECORD_SELF, ticks)
            if self._layout.nodes:
                self.add(self.node(number) + at.NODE_SELF, ticks)
        if running >= 0:
            root = list(self._chain(running))[-1]
            ticks = now - self.field(root, at.INSTANCE_T0) - self.field(root, at.INSTANCE_CHARGED)
            self.add(self._place(root) + at.INSTANCE_CHARGED, ticks)
            self.add(self.record(root) + at.RECORD_ROOTS, ticks)
            self.add(self._switches + at.RECORD_ROOTS, ticks)
        self._end_unnamed(now)
        return self._in_chains(running)

    def chained(self) -> set[int]:
        """Return the open calls where each knows its caller: of the stack that runs, and of those that wait."""
        return self._in_chains(self._running())

    def _in_chains(self, running: int) -> set[int]:
        waiting = [number for number in range(self._top) if self._is_waiting(number)]
        starts = [*map(self._caller, waiting), running]
        return {number for start in starts if start >= 0 for number in self._chain(start)}

    def _running(self) -> int:
        """Return the call that the thread is in, -1 if it is in none."""
        alive = (n for n in reversed(range(self._top)) if self.field(n, at.INSTANCE_SP) & _MASK > at.TOMBSTONE)
        last = next(alive, -1)
        if last >= 0 and self._is_waiting(last):  # that stack is left: it may be on one to which it has come back
            last = self.word(self._switches + at.RECORD_OPEN) // at.INSTANCE_BYTES - 1
            if not (0 <= last < self._top and self._is_switch(last)):
                return -1
        if last < 0 or not self._is_switch(last):
            return last
        return self._caller(last) if self.field(last, at.INSTANCE_SP) == at.RESUMED else -1

    def _is_waiting(self, number: int) -> bool:
        return self._is_switch(number) and self.field(number, at.INSTANCE_SP) & _MASK > at.RESUMED

    def _chain(self, number: int) -> Iterator[int]:
        while number >= 0:
            yield number
            number = self._caller(number)

    def _own_times(self, running: int, now: int) -> list[tuple[int, int]]:
        found, until = list[tuple[int, int]](), now
        for number in self._chain(running):
            began = self.field(number, at.INSTANCE_T0)
            ticks = until - began - self.field(number, at.INSTANCE_WITHIN)
            if found and not ticks:
                break  # its callers have waited with it
            found.append((number, ticks))
            until = began + self.field(number, at.INSTANCE_CHARGED)
        return found

    def _end_unnamed(self, now: int) -> None:
        """Add to what is in no row what has run outside of all calls, while some waited."""
        switches, unnamed = self._switches, self._layout.offset_of(UNNAMED)
        roots = self.word(switches + at.RECORD_ROOTS)
        if self.word(switches + at.SWITCH_COUNTS):
            ticks = now - self.word(switches + at.SWITCH_SINCE) - roots + self.word(switches + at.SWITCH_ROOTS)
            self.add(unnamed + at.RECORD_SELF, ticks)
            self.add(unnamed + at.RECORD_ROOTS, ticks)
        self._block[(switches + at.SWITCH_SINCE) // 8] = now & _MASK
        self._block[(switches + at.SWITCH_ROOTS) // 8] = roots & _MASK
