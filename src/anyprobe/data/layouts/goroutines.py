"""Open calls of Go functions, as generated code and reader share them: one chain of calls for each goroutine.

A *head* belongs to an address of a ``runtime.g`` for good: Go's runtime never gives one back, and uses it again for
another goroutine, which its number tells. Heads are found by hashing, and none is ever freed, so that the first free
one ends a search. A *call* belongs to the chain of a head for good, too, open or not: a chain is as long as its
goroutines have been deep. Both are zeros at first, and only the goroutine itself changes them: on whatever thread it
runs, it runs on one at a time.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from anyprobe.core.arrays import places_in, unique

HEADS = 1 << 21
"""A power of two."""
SPAN_SHIFT, PLACE_SHIFT, PLACE_BITS = 13, 5, 8
"""Where the head of a goroutine is looked for: Go has ``runtime.g`` by turns in spans of memory (``1 << SPAN_SHIFT``
bytes), which are hashed, and each of a span has a head of its own in ``1 << PLACE_BITS``, by bits from ``PLACE_SHIFT``
on. So goroutines that were made together have heads in few pages."""
GOLDEN_32 = -0x61C88647
"""Odd, and near to the golden section of 2**32."""
HEAD_PROBES = 1024
"""How many heads are looked at for one goroutine; as many follow the last one that hashes lead to."""
HEAD_BYTES = 64
HEAD_GOROUTINE = 0
"""Head: the address of the goroutine's ``runtime.g``, 0 while unused."""
HEAD_NUMBER, TAKEN_BIT = 8, 63
"""Head: the goroutine's number, with this bit once the head is taken."""
HEAD_TOP = 16
"""Head: the call that was opened last of those that are open, 0: there is none."""
HEAD_FIRST = 24
"""Head: the first call of the chain, 0: it has none yet."""
HEAD_SAVED = 32
"""Head: four registers, while generated code runs."""

CALLS = 1 << 24
CALL_BYTES = 64
CALLS_TAKEN = 0
"""How many calls belong to chains, in place of the first call; may exceed the number of calls."""
CALL_DISTANCE = 0
"""Call: how far the stack pointer at its entry is below the top of the goroutine's stack, 0 if the call is not open."""
CALL_RECORD, CALL_JUMPED = 8, 12
"""Call: the offset of its record, 32 bits; and 0, ``JUMPED`` right after a jump to another function, ``ARRIVED`` once
that has been entered."""
JUMPED, ARRIVED = 1, 2
CALL_START = 16
CALL_BELOW, CALL_ABOVE = 24, 32
"""Call: its neighbours in the chain, which were opened before and after it; 0: there is none."""
CALL_WITHIN = 40
"""Call: how many ticks the calls took that it has made, of those that are timed."""
CALL_OUTERMOST = 48
"""Call: not 0 where an open call below it is of the same function."""
CALL_NODE = 56
"""Call: the number of its node in the call tree."""

CALLS_AT = (HEADS + HEAD_PROBES) * HEAD_BYTES
"""Where the calls are, after the heads."""
TABLE_BYTES = CALLS_AT + (CALLS + 1) * CALL_BYTES + 4095 & ~4095
INSTANCES, INSTANCE_BYTES = 1 << 22, 128
"""How many calls can have a handler's data at once, and the bytes of one."""
INSTANCES_TABLE_BYTES = CALLS_AT + (INSTANCES + 1) * INSTANCE_BYTES + 4095 & ~4095
SHARDS = 16
"""Blocks in which the calls of goroutines are recorded, by the place of their heads; a power of two."""


def open_calls(table: memoryview, extents: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return how many calls are open, by the offset of their record; ``extents``: the pages of the table with data."""
    found: Counter[int] = Counter()
    words = np.frombuffer(table, np.uint64)
    for start, end in extents:
        low, high = max(start, CALLS_AT + CALL_BYTES), min(end, TABLE_BYTES)
        if low < high:
            calls = words[low // 8 : high // 8].reshape(-1, CALL_BYTES // 8)
            records = calls[calls[:, CALL_DISTANCE // 8] != 0, CALL_RECORD // 8] & np.uint64(0xFFFF_FFFF)
            known = unique(records)
            numbers = np.bincount(places_in(known, records), minlength=len(known))
            found.update(dict(zip(known.tolist(), numbers.tolist(), strict=True)))
    return dict(found)
