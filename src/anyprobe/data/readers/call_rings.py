"""Rings of recorded calls: eight bytes for each end of a call, from one thread to one reader.

Each thread has a ring of words of its own, and threads without one share a ring of whole records (``rings``). The
lowest bit of a word is that of the lap, as in whole records; then come which end of the call it is, the number of the
function, the lower 24 bits of the time and the lower 20 of the stack pointer. The other bits are those of the last
*context* before it, a word of its own; an *identity* before that says which thread has written, and how many events its
ring has dropped by then. A word whose function has no number has the address in the word before it.

A thread writes a word so: it reads the position, sees that there is room, and that its time and its stack pointer have
the upper bits that the row says (CONTEXT); makes the word; takes the position by one ``cmpxchg``, which fails if a
signal handler has taken one since; and stores the word. So words are in the order of time, and between the look at the
context and the taking no other one comes. To write a context it first makes the row's one invalid, by a number that is
its own (the complement of the position), and makes it valid by a ``cmpxchg`` that expects that number: a handler that
has written a context in between has the last word, in the ring and in the row, even if it ended by ``siglongjmp``.

Each event takes at most one place that it does not fill. A hole of a context is not given up as long as the row has its
number: until then nothing comes after it, and it may still become valid.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anyprobe.data.aggregates.records import TIME, Field, RecordType
from anyprobe.data.readers.rings import CALL_FIELDS, PRODUCED, RingLayout, RingReader, ThreadRing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.data.aggregates.records import Records
else:
    from anyprobe.core.later import np

CALLS = RecordType("call", tuple(Field(name, "i32" if name == "tid" else "u32", 4) for name in CALL_FIELDS))
LIMIT = 8
"""Row: the position from which on there was no room when the thread last looked."""
CONTEXT = 32
"""Row: the upper bits of the time and, in the lowest bits, of the stack pointer; or that a context is needed."""
OWNER = 40
"""Row: the thread of the last identity."""
TIME_BITS, FRAME_BITS, NUMBER_BITS = 24, 20, 17
NUMBER_AT, TIME_AT, FRAME_AT = 3, 20, 44
MOST_NUMBERS = (1 << NUMBER_BITS) - 1
IS_CONTEXT, IS_IDENTITY, IS_FUNCTION = 0x06, 0x0E, 0x16
"""The lowest byte of words that are no events, without the lap."""
GIVEN_UP = 0xFE
"""The lowest byte of a place that is not used again, from this one on; above is the lap in which that was decided."""
WINDOW_AT, OWNER_AT, COUNT_AT = 8, 8, 32
"""Where contexts have the upper bits of the stack pointer, and identities the thread and the number of lost events."""


@dataclass(frozen=True, slots=True)
class CallLayout(RingLayout):
    """Where everything is: rings of words, then the ring of records that is shared."""

    words: int = 1 << 14
    """Words of each ring, a power of two."""
    numbers: dict[int, int] = field(default_factory=dict, compare=False)
    """The number of each function, by its address: from 1 on, in the order in which they are given."""

    @classmethod
    def of_bytes(cls, ring_bytes: int, *, threads: int = 1024) -> "CallLayout":
        """Return a layout whose rings have at most so many bytes each."""
        slots = RingLayout.of_size(CALLS, ring_bytes).slots
        return cls(CALLS, slots, threads=threads, words=1 << max(ring_bytes.bit_length() - 4, 9))

    def reader_class(self) -> type[RingReader]:
        """Return what reads such rings."""
        return CallReader

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring of one thread."""
        return 8 * self.words

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.shared_offset + (self.slots * self.record.bytes + 4095 & ~4095)


@dataclass(slots=True)
class _Known:
    """What the words of a ring that were read last say of those to come."""

    context: int = -1
    identity: int = 0
    function: int = -1
    """The function that the very last word was of, if it was one that names a function."""


class CallReader(RingReader):
    """The only reader of recorded calls in one process: what it returns are whole records."""

    layout: CallLayout

    def __init__(self, *args: object, **options: object) -> None:
        """Read a region, as ``RingReader``."""
        super().__init__(*args, **options)  # type: ignore[arg-type] # they are the same
        self._known: dict[int, _Known] = {}
        self._addresses = np.zeros(1, np.uint32)

    def _memory(self, thread: int, offset: int) -> "NDArray[np.generic]":
        if not thread:
            return super()._memory(thread, offset)
        return np.frombuffer(self._region, np.uint64, count=self.layout.words, offset=offset)

    def _marks(self, ring: ThreadRing) -> "NDArray[np.uint64]":
        return ring.slots if ring.thread else super()._marks(ring)

    def _given_up(self, ring: ThreadRing, lap: int) -> int:
        return lap << 8 | GIVEN_UP if ring.thread else super()._given_up(ring, lap)

    def _may_pass(self, ring: ThreadRing) -> bool:
        """Return whether a place of which a hole is cannot become a valid context any more."""
        return not ring.thread or int(self._rows()[ring.thread, CONTEXT // 8]) != ring.consumed ^ (1 << 64) - 1

    def _is_retired(self, ring: ThreadRing, marks: "NDArray[np.uint64]") -> "NDArray[np.bool_]":
        if not ring.thread:
            return super()._is_retired(ring, marks)
        retired: NDArray[np.bool_] = (marks & np.uint64(0xFF)) >= np.uint64(GIVEN_UP)
        return retired

    def _taken(self, ring: ThreadRing, batch: "NDArray[np.generic]", retired: "NDArray[np.bool_]") -> "Records":
        """Return the records that some words are."""
        if not ring.thread:
            return super()._taken(ring, batch, retired)
        known = self._known.setdefault(ring.thread, _Known())
        words = batch.astype(np.uint64)
        low = words & np.uint64(0xFE)
        low[retired] = 0xFF
        contexts, place = _last(words, low == IS_CONTEXT, known.context)
        identities, of = _last(words, low == IS_IDENTITY, known.identity)
        events = np.flatnonzero((words & np.uint64(6) != 6) & ~retired)
        functions = np.zeros(len(words) + 1, np.int64)
        functions[0] = known.function
        functions[1:] = np.where(low == IS_FUNCTION, (words >> np.uint64(32)).astype(np.int64), -1)
        known.context, known.identity, known.function = int(contexts[-1]), int(identities[-1]), int(functions[-1])
        found, before = words[events], contexts[place[events]]
        numbers = (found >> np.uint64(NUMBER_AT) & np.uint64(MOST_NUMBERS)).astype(np.int64)
        addresses = np.where(numbers > 0, self._named(numbers), functions[events])
        is_whole = (addresses >= 0) & (before >= 0)
        self.abandoned += len(events) - int(is_whole.sum())
        identity = identities[of[events]]
        return self._records(found[is_whole], before[is_whole], identity[is_whole], addresses[is_whole])

    def _records(
        self, found: "NDArray[np.uint64]", contexts: "NDArray[np.int64]", identities: "NDArray[np.int64]",
        addresses: "NDArray[np.int64]",
    ) -> "Records":  # fmt: skip
        """Return events as records."""
        made: Records = np.empty(len(found), self.layout.record.dtype)
        window = contexts >> WINDOW_AT & 0xFFF
        part = (found >> np.uint64(TIME_AT)).astype(np.int64) & (1 << TIME_BITS) - 1
        made[TIME] = (contexts & -1 << TIME_BITS) + (part ^ window)
        made["tid"], made["lost"] = _identity(identities)
        made["func"] = addresses
        frames = window << FRAME_BITS | found.view(np.int64) >> FRAME_AT & (1 << FRAME_BITS) - 4
        made["frame"] = (frames | found.view(np.int64) >> 1 & 3).astype(np.uint32)
        return made

    def _named(self, numbers: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """Return the addresses of functions by their numbers, -1 of those that have none."""
        if len(self._addresses) <= len(self.layout.numbers):
            self._addresses = np.array([each & 0xFFFFFFFF for each in (0, *self.layout.numbers.copy())], np.uint32)
        addresses = self._addresses.take(numbers, mode="clip").astype(np.int64)
        addresses[numbers >= len(self._addresses)] = -1
        return addresses

    @property
    def words_taken(self) -> int:
        """How many words threads have taken in rings of their own."""
        return int(self._rows()[1:, PRODUCED // 8].sum())

    def last_told(self) -> dict[int, tuple[int, int]]:
        """Return the thread of the last event of each ring, and how many events the ring had dropped before it."""
        own = {thread: _identity(each.identity) for thread, each in self._known.items()}
        return super().last_told() | own


def _identity(word: Any) -> Any:  # noqa: ANN401 - a number or many
    """Return which thread identities are of, and how many events its ring had dropped."""
    return word >> OWNER_AT & 0xFFFFFF, word >> COUNT_AT & 0xFFFFFFFF


def _last(
    words: "NDArray[np.uint64]", chosen: "NDArray[np.bool_]", before: int
) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Return the words that are chosen after an earlier one, and which of these is the last one up to each word."""
    found = np.concatenate(([before], words[chosen].astype(np.int64)))
    return found, np.cumsum(chosen)
