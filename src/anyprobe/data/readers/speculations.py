"""Records that are kept only if the call in which they were emitted turns out to be worth it.

Handlers write into their threads' rings as always, and besides a *mark* where a speculation begins, is committed or is
discarded. The reader does the rest: what a thread has emitted since a begin is held until its end is read. Speculations
are nested as calls are: what is committed belongs to the one around it, what is discarded takes all within along.

A call that is left by an exception or ``longjmp``, or whose thread ends, makes no end. That is noticed by the stack
pointers of the marks: a call whose frame lies below one that marks something is over. Its records are discarded and
counted, with what the thread has emitted until it was noticed.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from anyprobe.data.aggregates.records import TIME, Records

if TYPE_CHECKING:
    import numpy as np
else:
    from anyprobe.core.later import np

MOST_HELD = 1 << 20
"""Records that are held of one process: beyond, the speculation that has most of them loses these, which is counted."""
_STACK = 8 << 20
"""Stack pointers that are further apart are of different stacks."""
_RETURN = 8
"""How much higher the stack pointer may be where a call ends in its caller."""
Batches = Sequence[tuple[int, Records]]
"""Records with the number of the thread that has emitted them; 0 of those that share a ring."""


class Mark(IntEnum):
    """What a handler does with a speculation of its thread."""

    BEGIN = 0
    COMMIT = 1
    DISCARD = 2


@dataclass(slots=True)
class _Open:
    """A speculation that is not decided."""

    sp: int
    tid: int
    held: list[tuple[str, Records]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(batch) for _, batch in self.held)


@dataclass
class Speculations:
    """The speculations of one process."""

    committed: int = 0
    discarded: int = 0
    """Speculations, as their handlers have decided."""
    left: int = 0
    """How many calls have ended without a decision."""
    lost: int = 0
    """Their records, and records for which there was no room."""
    undecided: int = 0
    """Ends for which nothing had begun, and marks of threads without a ring of their own, whose records are kept."""
    _open: dict[int, list[_Open]] = field(default_factory=dict)
    """By the number of the thread, the innermost last."""

    def threads(self) -> set[int]:
        """Return the threads that have begun something which is not decided, by their ids."""
        return {each.tid for stack in self._open.values() for each in stack}

    def sift(
        self, records: Mapping[str, Batches], marks: Batches, *, gone: AbstractSet[int] = frozenset()
    ) -> dict[str, list[Records]]:
        """Return the records that are to be kept by now.

        Args:
            records: What was read, by the names of the records, before the marks were.
            marks: The marks that were read.
            gone: The threads that had ended before anything was read: what they had begun is over.

        """
        found: dict[str, list[Records]] = {name: [] for name in records}
        by_thread: dict[int, list[tuple[str, Records]]] = {}
        for name, batches in records.items():
            for thread, batch in batches:
                by_thread.setdefault(thread, []).append((name, batch))
        ends: dict[int, list[tuple[int, int, int, int]]] = {}
        for thread, batch in marks:
            ends.setdefault(thread, []).extend(
                (int(each[TIME]), int(each["what"]), int(each["sp"]), int(each["tid"])) for each in batch
            )
        self.undecided += len(ends.pop(0, ()))
        for thread in by_thread.keys() | ends.keys():
            self._follow(thread, by_thread.get(thread, []), ends.get(thread, []), found)
        self._bury(gone)
        self._limit()
        return found

    def finish(self) -> None:
        """Give up what is not decided: nothing is being emitted any more."""
        self._bury(self.threads())

    def _follow(
        self,
        thread: int,
        batches: Iterable[tuple[str, Records]],
        marks: Sequence[tuple[int, int, int, int]],
        found: dict[str, list[Records]],
    ) -> None:
        """Go through what one thread has done, in its order."""
        if not marks and thread not in self._open:
            for name, batch in batches:
                found[name].append(batch)
            return
        pieces = [(name, _cut(batch, marks)) for name, batch in batches]
        for number in range(len(marks) + 1):
            self._keep(thread, [(name, cut[number]) for name, cut in pieces if len(cut[number])], found)
            if number < len(marks):
                self._mark(thread, *marks[number][1:], found)

    def _keep(self, thread: int, batches: Iterable[tuple[str, Records]], found: dict[str, list[Records]]) -> None:
        held = self._open.get(thread)
        if held:
            held[-1].held += batches
            return
        for name, batch in batches:
            found.setdefault(name, []).append(batch)

    def _mark(self, thread: int, what: int, sp: int, tid: int, found: dict[str, list[Records]]) -> None:
        stack = self._open.setdefault(thread, [])
        while stack and stack[-1].tid != tid:  # another thread has the number by now
            self._leave(stack)
        if what == Mark.BEGIN:
            while stack and 0 <= sp - stack[-1].sp < _STACK:
                self._leave(stack)
            stack.append(_Open(sp, tid))
            return
        if any(each.sp >= sp - _RETURN for each in stack):
            while stack[-1].sp < sp - _RETURN:
                self._leave(stack)
        if not stack:
            self.undecided += 1
            del self._open[thread]
            return
        ended = stack.pop()
        if not stack:
            del self._open[thread]
        if what == Mark.COMMIT:
            self.committed += 1
            self._keep(thread, ended.held, found)
        else:
            self.discarded += 1

    def _leave(self, stack: list[_Open]) -> None:
        self.left += 1
        self.lost += stack.pop().count

    def _bury(self, gone: AbstractSet[int]) -> None:
        """Give up what threads have begun that are gone."""
        for thread, stack in list(self._open.items()):
            while stack and stack[-1].tid in gone:
                self._leave(stack)
            if not stack:
                del self._open[thread]

    def _limit(self) -> None:
        while sum(each.count for stack in self._open.values() for each in stack) > MOST_HELD:
            largest = max((each for stack in self._open.values() for each in stack), key=lambda each: each.count)
            self.lost += largest.count
            largest.held.clear()


def _cut(batch: Records, marks: Sequence[tuple[int, int, int, int]]) -> list[Records]:
    """Return the records before each mark, and those after the last; of one moment, those are within that may be."""
    times, places = batch[TIME], []
    for moment, what, _, _ in marks:
        places.append(int(np.searchsorted(times, moment, side="left" if what == Mark.BEGIN else "right")))
    return [batch[start:end] for start, end in zip([0, *places], [*places, len(batch)], strict=True)]
