"""Rings in shared memory: records of one type, from many threads to one reader.

Each thread has a ring of its own, claimed with its first record. It takes the next position by one ``xadd``, so a
signal handler that emits in the middle gets the next position; fills the record; and stores its time last, shifted
left by one, with a lowest bit that changes with every lap. So the reader sees which records are complete, and a *hole*
(an emit that a signal handler has interrupted, for a while or for good) holds up the reader only.

Threads that have no number, and those that come when all rings are claimed, share one ring more, by ``lock xadd``. So
programs that begin threads all the time lose speed and no records.

A hole that stays is *retired*: the reader marks it and goes on, and no later lap uses the place again, since a writer
that was interrupted may still come back and write to it. The record is counted as abandoned. Nothing is ever
overwritten before it was read: a full ring drops what is new, and counts it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.records import TIME, Gathering, Records, RecordType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

NEXT_RING = 0
"""Head: rings handed out, changed by ``lock xadd``; may exceed the number of rings."""
HEAD_BYTES = 128
PRODUCED = 0
"""Row: positions taken, changed by ``xadd``."""
CONSUMED_SEEN = 8
"""Row: what the producer last saw of CONSUMED."""
RING = 16
"""Row: offset of the thread's ring in the region, 0 before the first record."""
FULL = 24
"""Row: records dropped since the ring was full, or its next place retired."""
CONSUMED = 64
"""Row, on a cache line of the reader's: positions that were read."""
ROW_BYTES = 128
MARGIN = 16
"""Places that stay free, for signal handlers that come between the look at the room and the ``xadd``, nested."""
SHARED_MARGIN = 2048
"""The margin of the shared ring, where other threads come in between as well; at most half of the ring."""
RETIRED = 0xFFFF << 48
"""What the time of a retired place begins with; below are the bits of the lap in which it was retired. So a writer that
was interrupted before he saw it knows whether it is his own record that was given up, and counted."""
PATIENCE = 1.0
"""Seconds after which the reader goes on after a record that was begun and not finished."""

CALL_FIELDS = ("tid", "func", "frame", "lost")
"""The fields of records of calls, 32 bits each: the thread; the function's address; the stack pointer and, added to it,
which end of the call it is; and how many records the ring has dropped before."""


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Where everything is in the region of one type of records. Zeroed memory is empty rings."""

    record: RecordType
    slots: int = 1 << 14
    """Records per ring, a power of two."""
    rings: int = 64
    threads: int = 1024

    def __post_init__(self) -> None:
        """Refuse what the arithmetic does not allow."""
        if self.slots < 64 or self.slots & (self.slots - 1):
            raise UsageError(f"a ring has a power of two of records, 64 or more, not {self.slots}")

    @classmethod
    def of_size(cls, record: RecordType, ring_bytes: int, *, rings: int = 64, threads: int = 1024) -> "RingLayout":
        """Return a layout whose rings have at most ``ring_bytes`` each."""
        return cls(record, 1 << max((ring_bytes // record.bytes).bit_length() - 1, 6), rings, threads)

    @property
    def ring_bytes(self) -> int:
        """Bytes of one ring."""
        return self.slots * self.record.bytes + 4095 & ~4095

    @property
    def rings_offset(self) -> int:
        """Offset of the first ring in the region."""
        return HEAD_BYTES + (self.threads + 1) * ROW_BYTES + 4095 & ~4095

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.shared_offset + self.ring_bytes

    @property
    def shared_offset(self) -> int:
        """Offset of the shared ring, after the others."""
        return self.rings_offset + self.rings * self.ring_bytes

    def reader_class(self) -> "type[RingReader]":
        """Return what reads such rings."""
        return RingReader

    @property
    def shared_margin(self) -> int:
        """Places of the shared ring that stay free."""
        return min(SHARED_MARGIN, self.slots // 2)


@dataclass(slots=True)
class ThreadRing:
    """What the reader remembers of one thread's ring."""

    slots: "NDArray[Any]"
    consumed: int = 0
    thread: int = 0
    hole_at: int = -1
    hole_since: float = 0.0


class Drops(NamedTuple):
    """Records that were lost: by the number of the thread (0: those that share a ring) since the ring was full."""

    full: dict[int, int] = field(default_factory=dict)
    abandoned: int = 0
    """Begun by a thread that was interrupted for good."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.full.values()) + self.abandoned


class RingReader:
    """The only reader of one type of records in one process; its memory is a live view.

    Times are in the units of the producer's clock; ``nanoseconds`` of a unit, times two to the 32, turn them into
    nanoseconds.
    """

    def __init__(
        self,
        region: memoryview,
        layout: RingLayout,
        *,
        nanoseconds: int = 0,
        allocate: Callable[[int, int], None] | None = None,
    ) -> None:
        """Read ``region``, which begins with the rings' head.

        ``allocate(offset, size)`` gives memory to a part of it: the rings in use and the next one then have theirs
        before the target writes to them, which would cost it more than the writing.
        """
        self._region = region
        self._words = np.frombuffer(region, np.uint64, count=layout.rings_offset // 8)
        self.layout = layout
        self._nanoseconds = nanoseconds
        self._allocate, self._allocated = allocate, 0
        self._allocate_ahead()
        self._rings: dict[int, ThreadRing] = {}
        self._gathering = Gathering(layout.record.dtype)
        self._held = np.empty(0, layout.record.dtype)
        self._by_thread: list[tuple[int, Records]] | None = None
        self.abandoned = 0
        """Records that were begun and never finished."""

    def _rows(self) -> "NDArray[np.uint64]":
        rows = self._words[HEAD_BYTES // 8 : (HEAD_BYTES + (self.layout.threads + 1) * ROW_BYTES) // 8]
        return rows.reshape(-1, ROW_BYTES // 8)

    def _allocate_ahead(self) -> None:
        layout = self.layout
        wanted = min(int(self._words[NEXT_RING // 8]) + 1, layout.rings)
        if self._allocate is not None and self._allocated < wanted:
            offset = layout.rings_offset + self._allocated * layout.ring_bytes
            self._allocate(offset, (wanted - self._allocated) * layout.ring_bytes)
            self._allocated = wanted

    def drain(self, *, until: int | None = None, final: bool = False) -> Records:
        """Return the records that are complete, by time, and make room for new ones.

        Records from ``until`` on are kept for the next time: with a moment that lies before this call, by more than
        an emit takes, what is returned is in order with what comes later. ``final``: nothing is being emitted any more.
        """
        if len(self._held):
            self._gathering.add(self._held)
        self._drain_rings(final=final)
        ordered = self._gathering.take()
        place = len(ordered) if until is None else int(np.searchsorted(ordered[TIME], until))
        self._held = ordered[place:]
        return ordered[:place]

    def drain_by_thread(self, *, final: bool = False) -> list[tuple[int, Records]]:
        """Return the records that are complete in pieces, each of one thread and in its order, with its number.

        The number is 0 for those of threads that share a ring, -1 for those that were read before and kept.
        """
        self._by_thread = [(-1, self._held)] if len(self._held) else []
        self._held = self._held[:0]
        try:
            self._drain_rings(final=final)
            return self._by_thread
        finally:
            self._by_thread = None

    def _drain_rings(self, *, final: bool) -> None:
        self._allocate_ahead()
        rows = self._rows()
        claimed = np.flatnonzero(rows[:, RING // 8]).tolist()
        for thread in (0, *claimed) if rows[0, PRODUCED // 8] else claimed:
            self._drain_ring(rows, thread, final=final)

    def _drain_ring(self, rows: "NDArray[np.uint64]", thread: int, *, final: bool) -> None:
        row = rows[thread]
        produced = int(row[PRODUCED // 8])
        ring = self._rings.get(thread) or self._claimed(row, thread)
        if ring is None or produced - ring.consumed > (slots := len(ring.slots)):
            return  # the target has written over it
        while ring.consumed < produced:
            first = ring.consumed % slots
            count = min(slots - first, produced - ring.consumed)
            complete = self._gather(ring, first, count)
            ring.consumed += complete
            # only now: from here on the places may be written again
            row[CONSUMED // 8] = ring.consumed
            if complete < count and not self._pass_hole(ring, produced, final=final):
                break
        row[CONSUMED // 8] = ring.consumed

    def _claimed(self, row: "NDArray[np.uint64]", thread: int) -> ThreadRing | None:
        """Return the ring that a thread has claimed, None if its row makes no sense."""
        layout = self.layout
        offset = int(row[RING // 8]) if thread else layout.shared_offset
        number, inside = divmod(offset - layout.rings_offset, layout.ring_bytes)
        if inside or not 0 <= number <= layout.rings:
            return None
        ring = self._rings[thread] = ThreadRing(self._memory(thread, offset), int(row[CONSUMED // 8]), thread)
        return ring

    # -- what depends on the form of the records of a ring

    def _memory(self, thread: int, offset: int) -> "NDArray[Any]":  # noqa: ARG002 - others are of threads
        """Return the places of a ring."""
        return np.frombuffer(self._region, self.layout.record.dtype, count=self.layout.slots, offset=offset)

    def _marks(self, ring: ThreadRing) -> "NDArray[np.uint64]":
        """Return of each place the word that is written last."""
        marks: NDArray[np.uint64] = ring.slots[TIME]
        return marks

    def _is_retired(self, ring: ThreadRing, marks: "NDArray[np.uint64]") -> "NDArray[np.bool_]":  # noqa: ARG002
        """Return which places are not used again."""
        retired: NDArray[np.bool_] = marks >= np.uint64(RETIRED)
        return retired

    def _given_up(self, ring: ThreadRing, lap: int) -> int:  # noqa: ARG002
        """Return what a place has that is retired in a lap."""
        return RETIRED | lap

    def _may_pass(self, ring: ThreadRing) -> bool:  # noqa: ARG002
        """Return whether what comes after a hole makes sense without it."""
        return True

    def _taken(self, ring: ThreadRing, batch: "NDArray[Any]", retired: "NDArray[np.bool_]") -> Records:  # noqa: ARG002
        """Return the records of complete places, with times as they were written."""
        batch = batch[~retired] if retired.any() else batch.copy()
        batch[TIME] >>= np.uint64(1)
        return batch

    # --

    def _gather(self, ring: ThreadRing, first: int, count: int) -> int:
        """Gather the complete records from a place on without the retired ones; return how many places that were."""
        slots = len(ring.slots)
        marks = self._marks(ring)[first : first + count].copy()
        retired = self._is_retired(ring, marks)
        lap = np.uint64((ring.consumed // slots + 1) & 1)
        complete = retired | (marks & np.uint64(1) == lap)
        end = count if complete.all() else int(np.argmin(complete))
        if not end:
            return 0
        taken = self._taken(ring, ring.slots[first : first + end], retired[:end])
        if self._nanoseconds:
            taken[TIME] = scaled(taken[TIME], self._nanoseconds)
        if self._by_thread is None:
            self._gathering.add(taken)
        else:
            self._by_thread.append((ring.thread, taken))
        return end

    def _pass_hole(self, ring: ThreadRing, produced: int, *, final: bool) -> bool:
        """Retire the record that the reader waits for, if it has waited long enough or the ring is filling up."""
        now = time.monotonic()
        if ring.hole_at != ring.consumed:
            ring.hole_at, ring.hole_since = ring.consumed, now
        slots, marks = len(ring.slots), self._marks(ring)
        is_patient = now - ring.hole_since < PATIENCE and produced - ring.consumed <= slots // 2
        if not final and (is_patient or not self._may_pass(ring)):
            return False
        lap, place = divmod(ring.consumed, slots)
        if int(marks[place]) & 1 != (lap + 1) & 1:
            # if it is finished at this moment, either store wins: the place is as if read, or stays retired
            marks[place] = self._given_up(ring, lap)
            self.abandoned += 1
            ring.consumed += 1
        return True

    def last_told(self) -> dict[int, tuple[int, int]]:
        """Return ``tid`` and ``lost`` of the record that was read last of each ring, by the number of its thread."""
        last = {
            thread: ring.slots[(ring.consumed - 1) % len(ring.slots)]
            for thread, ring in self._rings.items()
            if ring.consumed and ring.slots.dtype.names
        }
        return {thread: (int(each["tid"]), int(each["lost"])) for thread, each in last.items()}

    def drops(self) -> Drops:
        """Return what was lost so far."""
        full = self._rows()[:, FULL // 8]
        return Drops({thread: int(full[thread]) for thread in np.flatnonzero(full).tolist()}, self.abandoned)


def scaled(times: "NDArray[np.uint64]", factor: int) -> "NDArray[np.uint64]":
    """Return ``times * factor >> 32``, as handlers compute it in 128 bits."""
    whole, part = divmod(factor, 1 << 32)
    high, low = times >> np.uint64(32), times & np.uint64(0xFFFFFFFF)
    scaled: NDArray[np.uint64] = high * np.uint64(part) + (low * np.uint64(part) >> np.uint64(32))
    return scaled + times * np.uint64(whole)
