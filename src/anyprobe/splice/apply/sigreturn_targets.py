"""Threads in patches that go, which a signal would bring back to sites that end up inside overwritten instructions.

What a handler of the program is shown of a thread in a patch is the site (see ``signalview``), and there the thread
goes on. So a change that arranges a function's splices anew, such that an earlier site lies in the middle of a jump,
has to wait until no thread is in that site's patch. On a busy machine a thread may be there for long: the site may have
been taken out by the change before, or by any since the thread last ran.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.journal.memfds import is_ours
from anyprobe.splice.apply.dead_jumps import destination_of
from anyprobe.splice.apply.saved_pcs import Stacks

if TYPE_CHECKING:
    from anyprobe.splice.emitted import EmittedSplice, FunctionChange
    from anyprobe.target.base import Quiescence, StoppedThread

_FRAME = 1024
"""Bytes above the stack pointer of a thread in one of our routines among which its return address into a patch is."""


class Way(NamedTuple):
    """Code of a splice that is in the text no more: a thread may be in it, whom a signal would bring to the site."""

    start: int
    end: int
    site: int


class Lingering:
    """The ways back that a session's changes have left, until no thread was found on them."""

    def __init__(self) -> None:
        """No change was made yet."""
        self._ways: list[Way] = []

    def with_removed(self, changes: "Sequence[FunctionChange]") -> Iterator[Way]:
        """Yield the ways back from what earlier changes have taken out, and from all that some are about to."""
        yield from self._ways
        for change in changes:
            yield from _ways_of(change.removed)

    def note(self, changes: "Sequence[FunctionChange]", empty: AbstractSet[Way]) -> None:
        """Take note of what changes that are made have taken out, and that no thread is on some ways any more."""
        self._ways = [way for way in self.with_removed(changes) if way not in empty]


def _ways_of(removed: "Sequence[EmittedSplice]") -> "list[Way]":
    found = []
    for splice in removed:
        if splice.patch is not None:
            found.append(Way(splice.patch.address, splice.patch.address + len(splice.patch.code), _site(splice)))
            if splice.springboard:
                found.append(Way(splice.springboard, splice.springboard + JUMP_BYTES, _site(splice)))
    sites = {way.start: way.site for way in found}
    for splice in removed:
        site = sites.get(destination_of(splice.address, splice.new)) if splice.is_springboard else None
        if site is not None:
            found.append(Way(splice.address, splice.address + JUMP_BYTES, site))
    return found


class SigreturnTargets:
    """The code that no thread may be in when some changes are made."""

    def __init__(self, ways: Iterable[Way], interiors: "Sequence[tuple[int, int, FunctionChange]]") -> None:
        """Take the instruction boundaries that no thread may return to, sorted, with the changes that make them so."""
        lows = [low for low, _, _ in interiors]
        found = []
        for way in ways if interiors else ():
            index = bisect_right(lows, way.site) - 1
            if index >= 0 and way.site < interiors[index][1]:
                found.append((way, interiors[index][2]))
        self._ways = sorted(found, key=lambda each: each[0])
        self._lows = [way.start for way, _ in self._ways]

    def empty(self, refused: "Container[FunctionChange]") -> AbstractSet[Way]:
        """Return the ways on which no thread was when the changes were made that are not ``refused``."""
        return {way for way, change in self._ways if change not in refused}

    def taken(
        self, memory: Memory, stop: "Quiescence", asleep: Callable[[int], object]
    ) -> "Iterator[tuple[FunctionChange, Refusal]]":
        """Yield the changes that a thread in a patch is in the way of; who may be ``asleep`` there is moved."""
        if not self._ways:
            return
        stacks = Stacks(memory, stop.mappings)
        own = [(mapping.start, mapping.end) for mapping in stop.mappings if is_ours(mapping)]
        for thread in stop.threads:
            if asleep(thread.registers.rip):
                continue
            pcs = [thread.registers.rip, *stacks.saved_pcs(thread)]
            if any(low <= thread.registers.rip < high for low, high in own):
                pcs += _words(memory, thread)
            for change in filter(None, map(self._change_at, pcs)):
                detail = f"thread {thread.tid} is in a patch, and a signal would bring it into the bytes to overwrite"
                yield change, Refusal(Reason.SIGNAL_CONTEXT_IN_JTPR, change.address, detail)

    def _change_at(self, pc: int) -> "FunctionChange | None":
        index = bisect_right(self._lows, pc) - 1
        return self._ways[index][1] if index >= 0 and pc < self._ways[index][0].end else None


def _site(splice: "EmittedSplice") -> int:
    return splice.planned.start + splice.bias


def _words(memory: Memory, thread: "StoppedThread") -> list[int]:
    try:
        content = memory.read(thread.registers.rsp & -8, _FRAME)
    except MemoryFault:
        return []
    return memoryview(content).cast("Q").tolist()
