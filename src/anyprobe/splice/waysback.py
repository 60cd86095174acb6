"""Threads in patches that go, which a signal would bring back to sites that end up inside overwritten instructions.

What a handler of the program is shown of a thread in a patch is the site (see ``signalview``), and there the thread
goes on. So a change that arranges a function's splices anew, such that an earlier site lies in the middle of a jump,
has to wait until nobody is in that site's patch.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.arena import is_ours
from anyprobe.splice.deadjumps import destination_of
from anyprobe.splice.savedpcs import Stacks

if TYPE_CHECKING:
    from anyprobe.splice.transaction import FunctionChange, LiveSplice
    from anyprobe.target.stopping import Stop
    from anyprobe.target.thread import Thread

_FRAME = 1024
"""Bytes above the stack pointer of a thread in one of our routines among which its return address into a patch is."""


class WaysBack:
    """The patches of some changes that nobody may be in, nor on the way to from a springboard."""

    def __init__(
        self, changes: "Sequence[FunctionChange]", interiors: "Sequence[tuple[int, int, FunctionChange]]"
    ) -> None:
        """Take the instruction boundaries that nobody may come back to, sorted, with the changes that make them so."""
        lows = [low for low, _, _ in interiors]
        found = []
        for change in changes if interiors else ():
            for splice in change.removed:
                index = bisect_right(lows, _site(splice)) - 1
                if splice.patch is not None and index >= 0 and _site(splice) < interiors[index][1]:
                    blocked = interiors[index][2]
                    found.append((splice.patch.address, len(splice.patch.code), blocked))
                    if splice.springboard:
                        found.append((splice.springboard, JUMP_BYTES, blocked))
        starts = {start: change for start, _, change in found}
        boards = [splice for change in changes if found for splice in change.removed if splice.is_springboard]
        for splice in boards:
            leads_to = destination_of(splice.address, splice.new)
            if leads_to in starts:
                found.append((splice.address, JUMP_BYTES, starts[leads_to]))
        self._patches = sorted(((low, low + size, change) for low, size, change in found), key=lambda each: each[0])
        self._lows = [low for low, _, _ in self._patches]

    def taken(
        self, memory: Memory, stop: "Stop", asleep: Callable[[int], object]
    ) -> "Iterator[tuple[FunctionChange, Refusal]]":
        """Yield the changes that a thread in a patch is in the way of; who may be ``asleep`` there is moved."""
        if not self._patches:
            return
        stacks = Stacks(memory, stop.mappings)
        ours = [(mapping.start, mapping.end) for mapping in stop.mappings if is_ours(mapping)]
        for thread in stop.threads:
            if asleep(thread.registers.rip):
                continue
            pcs = [thread.registers.rip, *stacks.saved_pcs(thread)]
            if any(low <= thread.registers.rip < high for low, high in ours):
                pcs += _words(memory, thread)
            for change in filter(None, map(self._change_at, pcs)):
                detail = f"thread {thread.tid} is in a patch, and a signal would bring it into the bytes to overwrite"
                yield change, Refusal(Reason.SIGNAL_CONTEXT_IN_JTPR, change.address, detail)

    def _change_at(self, pc: int) -> "FunctionChange | None":
        index = bisect_right(self._lows, pc) - 1
        return self._patches[index][2] if index >= 0 and pc < self._patches[index][1] else None


def _site(splice: "LiveSplice") -> int:
    return splice.planned.insns[0].address + splice.bias


def _words(memory: Memory, thread: "Thread") -> list[int]:
    try:
        content = memory.read(thread.registers.rsp & -8, _FRAME)
    except MemoryFault:
        return []
    return memoryview(content).cast("Q").tolist()
