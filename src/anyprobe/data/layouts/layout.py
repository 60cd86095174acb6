"""The byte layouts shared by generated code, the target and the reader, in one table.

A *bank* is one shared memory region: a header page, the shared block (atomic operations), then one block per thread.
All blocks have the same shape; an *offset* handed out by ``BankLayout`` is valid in each of them. Of a bank with timing
records there are spare copies of header and blocks in the file, after the region: each fork child maps one of them
over what it has inherited.

Sums over all blocks are exact: a block is written by one thread only, the shared block by ``lock``-prefixed
instructions only.
"""

from dataclasses import dataclass, field

from anyprobe.core.errors import InternalError
from anyprobe.data.layouts.histogram import BUCKETS

MAXACTIVE = 1024
"""Calls of timed functions that a thread can be in at once, unless the user says otherwise."""
HEADER_BYTES = 4096
"""The header page before the blocks."""
NEXT_BLOCK = 0x40
"""Header: number of blocks handed out, changed by ``lock xadd``; may exceed the number of blocks."""
FORKED, COPY = 0x48, 0x58
"""Header: in a fork child's own one the child's process id, and the number of its copy, from 1."""
CROWDED = 0x60
"""Header: not 0 where fork children have found no block left, and count in the parent's."""
CLOSED, UNWATCHED = 0x50, 2
"""Header of a session's first bank: not 0 where fork children must not make system calls to get blocks of their own;
``UNWATCHED``: not yet, until it is seen that a program is about to filter them."""
DARK = 0x68
"""Header of a session's first bank: not 0 once a thread has forbidden itself to read the time stamp counter."""
NOWHERE, NO_LOCK = 0x70, 0xFFFF_FFFF
"""Header: in the stead of a page of a thread's perf event; its lock is one that a page never has."""
BLOCK_HINTS = 0x800
"""Header: by the hash of a thread pointer, the number, from 1, of the block that a thread had there last, or 0."""
HINT_BITS = 9
"""How many bits the hash has; there are ``1 << HINT_BITS`` hints of four bytes."""

SLOTS = range(0x200, 0x280, 8)
"""From the thread pointer, the words one of which is a session's: glibc keeps them for compatibility only."""
TID_OFFSET = 0x2D0
"""From the thread pointer, where glibc (2.2 to 2.41) has a thread's number; in a fork child's first thread the child's
own. It is checked in the target before it is relied on."""

BLOCK_OWNER = 0
"""Block: thread pointer (fs base) of the thread that owns it, 0 while unused."""
CHILD_BIT = 63
"""The bit of a block's owner that says that it is a fork child, by the number of the thread that came first."""
BLOCK_TOP = 8
"""Block: number of entries on the thread's instance stack."""
BLOCK_PURGING = 16
"""Block: non-zero (32 bits) while the instance stack is being compacted."""
BLOCK_TID = 20
"""Block: the thread (32 bits) whose calls it has, where threads are told apart, or 0."""
ANY_THREAD = 0xFFFF_FFFF
"""In its place where there was no block left for another thread: calls of several threads."""
BLOCK_GUARD = 24
"""Block: the stack pointer of the handler that the thread is in, 0 while it is in none."""
BLOCK_COST, COST_BITS = 32, 8
"""Block: what timing probes have cost the thread so far, in parts of a tick of which there are ``1 << COST_BITS``."""
BLOCK_REFUSED = 40
"""Block: hits in a row (32 bits) that ran no handler, since the thread was in one."""
BLOCK_NUMBER = 44
"""Block: the thread's number (32 bits), counted from 1, once it has been worked out."""
BLOCK_UNWOUND = 48
"""Block: how often an exception, or ``longjmp``, has begun to leave calls of the thread behind."""
BLOCK_LEAVING = 56
"""Block: the stack pointer where that began last, 0 once it is known which calls were left behind; or with ``GONE``."""
BLOCK_ENTERED, BLOCK_LEFT = 64, 72
"""Block: what an entry and an exit cost just now, in parts of a tick: whatever runs beside a thread slows its probes
down, too."""
BLOCK_PACE = 80
"""Block: by how much the trial that tells this takes more ticks than it did beforehand, smoothed, in parts of one."""
BLOCK_TRIALS, BLOCK_TRIED = 88, 96
"""Block: how many trials there were, and their ticks."""
BLOCK_SLOW, BLOCK_KEPT = 104, 112
"""Block: when code began that takes longer the more calls are open, so that its own time is added to the cost; and room
for words that this needs meanwhile: the second one has ``BLOCK_KEPT`` + 8."""
BLOCK_ENDED = 128
"""Block: when the last call has ended, if the time is taken once more when it is recorded."""
BLOCK_PAGE, BLOCK_LOCK, BLOCK_PAGE_OF = 136, 144, 148
"""Block, where times are those on processors: the page of the thread's perf event, or ``NOWHERE``; its lock (32 bits)
when it was looked at last; and the id of the thread (32 bits)."""
BLOCK_OFF = 152
"""Block: how far the time stamp counter is ahead of the time that the thread has been on processors, in ticks."""
BLOCK_HEAD_BYTES = 192

INSTANCE_BYTES = 64
INSTANCE_SP = 0
"""Instance: stack pointer at the function's entry; 0 in a free or half-written one."""
INSTANCE_T0 = 8
"""Instance: the time at the function's entry, less what probes had cost the thread by then."""
INSTANCE_RECORD = 16
"""Instance: offset of the timing record it belongs to, with the bit ``JUMPED`` once the call has left by a jump."""
INSTANCE_UNWOUND = 24
"""Instance: the block's ``BLOCK_UNWOUND`` when the call left by a jump; where calls are nested, at its entry, too."""
INSTANCE_WITHIN = 32
"""Instance of nested calls: how many ticks the calls took that it has made, of those that are timed."""
INSTANCE_CHARGED = 40
"""Instance of nested calls: how much of its own time is in what its callers know of theirs already."""
INSTANCE_LATER = 40
"""In its place where calls are not nested, while instances are dropped: how far from the first one another one is."""
INSTANCE_CALLER = 48
"""Instance of nested calls: where its caller's instance ends in the stack (32 bits); 0: no timed function called it."""
INSTANCE_NODE = 52
"""Instance in a call tree: the number of its node (32 bits)."""
INSTANCE_COST = 56
"""Instance: the block's ``BLOCK_COST`` at the function's entry."""
SP, START, RECORD, UNWOUND, WITHIN, CHARGED, CALLER, NODE, COST = (
    BLOCK_HEAD_BYTES + field
    for field in (
        INSTANCE_SP,
        INSTANCE_T0,
        INSTANCE_RECORD,
        INSTANCE_UNWOUND,
        INSTANCE_WITHIN,
        INSTANCE_CHARGED,
        INSTANCE_CALLER,
        INSTANCE_NODE,
        INSTANCE_COST,
    )
)
"""Where an instance's fields are, counted from the block and the instance's offset in the stack."""
TOMBSTONE = 1
"""Stack pointer of an instance freed from the middle of the stack."""
RESUMED = 2
"""Stack pointer of the instance of a switch that is over: the thread is on its stack, in the call that has made it."""
SWITCHES, UNNAMED = 0, 1
"""Records of nested calls that are no function's: of switches from one stack to another, calls that return when their
stack is gone on with; and of what runs on another stack, in no timed function, while a call waits on the one before."""
_NO_FUNCTIONS = 2
SWITCH_SINCE, SWITCH_ROOTS, SWITCH_COUNTS = 0, 16, 24
"""In the first one's record: when the thread has come to its stack, what ``RECORD_ROOTS`` of all records together was
then, which this record's own one is; and 1 if what is in no timed call is to be known. One more than that are
``INSTANCE_WITHIN`` and ``INSTANCE_CHARGED`` of a switch of which it is known where it went."""
SWITCHED, SWITCH_TID = 32, 40
"""How often the thread has changed its stack, and which thread that was."""
MAY_STAY, BY_JUMP = 1, 2
"""In the argument where a thread may have changed its stack: it may instead have left calls behind on the same one; it
goes on by a jump, and may have taken the return address from the stack."""
FRESH_LOW, FRESH_BYTES = 16, 256
"""How far ``rbx`` is above the stack pointer when a context of ``makecontext`` begins: its arguments lie between."""
JUMPED = 1
"""In an instance's record: the function has ended in a jump to another one, and its call ends where that returns to."""
PASSED_ON = 2
"""In the argument at a jump of a Go function, besides ``JUMPED``: another function has jumped to it, perhaps."""
CERTAIN, UNSEEN = 2, 4
"""In the argument at a return point, besides ``JUMPED``: nothing but the function itself is called there; what leaves
calls behind is not seen in this program."""

UNWIND_CAUGHT, UNWIND_LEAVES, UNWIND_CONTEXT, UNWIND_GONE = 0, 1, 2, 3
"""What is told of calls left behind: the program goes on; they are from here on; or they are, unless glibc goes on from
a coroutine whose function has returned; or the process ends or is another program, but one that shares its memory, with
which this thread has been called by it, goes on."""
GONE = 1
"""The bit of ``BLOCK_LEAVING`` in that last case."""
CHILD_STACK_SHIFT = 16
"""A child that shares the memory has made all of its calls on so many bytes, as a power of two, before it is gone."""

RECORD_SUM = 0
RECORD_NOT_MIN = 8
"""Timing record: the largest complement of a duration, so that zeroed memory is a valid start."""
RECORD_MAX = 16
RECORD_COUNT = 24
RECORD_TAIL = 32
RECORD_INNER_COST = 40
"""Timing record of nested calls: what probes have cost in calls that do not count in ``RECORD_OUTERMOST``."""
RECORD_MISSED = 48
RECORD_INNER_COUNT = 56
"""How many these are."""
RECORD_LEARNING = 144
"""Timing record: calls that left by a jump and whose return point was not known yet."""
RECORD_SELF = 64
"""Timing record of nested calls: ticks in the function itself, not in timed functions that it calls."""
RECORD_OUTERMOST = 72
"""The same: ticks while the thread was in any call of the function, those in several of them once."""
RECORD_ROOTS = 80
"""The same: ticks of calls that no timed function has made, or none of which the time is known."""
RECORD_OPEN = 88
"""The same: where the function's outermost call is in the stack, as ``INSTANCE_CALLER`` says it; may be outdated."""
RECORD_LEFT = 96
"""Timing record: calls that an exception, or ``longjmp``, has left behind, as far as that is seen."""
RECORD_MADE = 104
"""Timing record of nested calls: how many calls that are timed those of the function have made."""
RECORD_JUMPED = 112
"""Timing record: how many of the thread's open calls have left by a jump, or more."""
RECORD_COST = 120
"""Timing record: what probes have cost in its calls, in the parts of a tick that ``BLOCK_COST`` has."""
RECORD_REPLACED = 128
"""Timing record: not 0 if return addresses of calls are replaced."""
RECORD_UNMATCHED = 136
RECORD_OFF = 152
"""Timing record of nested calls, where times are those on processors: ticks in the function itself that were not."""
RECORD_BUCKETS = 160
"""Timing record: the histogram's first ``NEAR_BUCKETS``, 32 bits each, up to 2**31 calls: records of many functions are
to lie on few pages, as processors know the addresses of some dozens. Longer calls, and more of them, are counted in the
record's *far* buckets."""
NODES = 4096
"""Nodes of a call tree: a power of two, and less than ``NO_CALLER``."""
NODE_BYTES, NODE_COUNT, NODE_SUM, NODE_SELF, NODE_OFF = 32, 0, 8, 16, 24
"""What a block has of each node: calls, their ticks, those in the function itself, and ``RECORD_OFF`` of these. Node 0:
what is in no other."""
NO_CALLER, UNSURE_CALLER = 0xFFFF, 0xFFFE
"""What a node's key has in place of its caller's node: no timed function called it; it is not known which did."""
STACK_SHIFT = 23
"""No stack is taken to be larger than this power of two: what lies further apart is on two."""
MAIN_STACK_SHIFT, MAIN_STACK = 34, 0x1FFF
"""The first thread's stack is in the uppermost 16 GB, where Linux maps nothing else if addresses are randomised."""
PLACE_BYTES = 4
"""What a block of nested calls has for each instance, from 1 on, while instances are dropped: where it moves to."""
NODE_KEY_SHIFT = 16
"""A node's key is its caller's node, and above that the offset of its function's record."""
NODE_PROBES = 32
CALL_MISSED, CALL_LEARNING, CALL_UNSEEN = 8, 16, 24
"""What a place at which calls leave has after its hits, if handlers follow these to their callers: calls that are
missed; those whose caller was not known yet; those whose caller cannot be spliced."""
CALL_COUNTERS = 4
RETURN_BYTES = 16
"""Entry of the table of replaced return addresses: the true address, then whose it was; written once."""
CHILDREN = 2048
"""Copies of header and blocks for fork children, of a bank with timing records, where these do not take too much."""
CHILDREN_BYTES_LIMIT, MOST_CHILDREN_BYTES = 1 << 40, 1 << 52
"""Bytes of the file that they may take, of which next to none are ever written; and so that there are
``LEAST_CHILDREN``."""
LEAST_CHILDREN = 512
CHILD_BYTES = 8
"""Entry of the table of these copies: which process has it, with the bit ``CHILD_BIT``, or 0."""
CALLERS = 4096
"""Pairs of a return point and a timed function that are not known yet and one bank can note, a power of two."""
CALLER_BYTES = 16
"""Entry of a table of return points: the address, then the offset of the timing record, then the state (32 bits)."""
CALLER_RECORD, CALLER_STATE = 8, 12
CALLER_NEW, CALLER_WATCHED, CALLER_REFUSED, CALLER_SINCE = 0, 1, 2, 3
"""States of a return point: nothing is spliced there yet; calls end there; it cannot be spliced. From ``CALLER_SINCE``
on: calls end there in processes whose text is of this change or a later one, as a word says that fork copies, too."""
GOLDEN = 0x9E37_79B9_7F4A_7C15
"""Near to the golden section of 2**64: the upper bits of products tell where to look in tables of hashes."""
GOLDEN_32 = -0x61C88647
"""Near to the golden section of 2**32, as a signed number."""
CALLER_PROBES = 32
"""How many entries of a table are looked at for a pair."""
RECORD_BYTES = 960
"""One function's timing record: the fields above in TSC ticks, then the first buckets of its log-linear histogram.

An odd number of cache lines: so the same fields of several functions are not all in the same places of caches."""
NEAR_BUCKETS = (RECORD_BYTES - RECORD_BUCKETS) // 4
FAR_TIMES = -(-8 * BUCKETS // RECORD_BYTES)
FAR_BYTES = FAR_TIMES * RECORD_BYTES
"""One record's far buckets, a word for each of all: so many times what the record takes."""

STRIDE_LIMIT = 1 << 31
"""Bytes that a block has less than: offsets and sizes are operands of instructions, which have 32 bits and a sign."""
BANK_BYTES_LIMIT = 2 << 30
"""Address space that one bank may take in the target where that is scarce, or memory, as ``mlockall`` uses all."""
BANK_BYTES_AT_ALL = 1 << 40
"""What it may take elsewhere, where memory is only used as it is touched, so that there are blocks for ``THREADS``
threads, and for twice as many as the program has."""
THREADS, MOST_THREADS = 1024, 1 << 15
"""For how many threads at one time a bank has blocks at most, and where that is known to be too few."""
THREADS_APART = 8192
"""For how many where threads are told apart: each one that comes later needs a block of its own, too."""
LEAST_THREADS = 16
"""For how many it has some, whatever they take."""


def room_for(threads: int, *, apart: bool = False, is_scarce: bool = False) -> int:
    """Return for how many threads there are to be blocks in a program that has so many now.

    ``apart``: threads are told apart. ``is_scarce``: all of the blocks take memory, whether they are used or not.
    """
    least = LEAST_THREADS if is_scarce else THREADS_APART if apart else THREADS
    return min(max(least, 1 << (2 * threads - 1).bit_length()), MOST_THREADS)


@dataclass(slots=True)
class BankLayout:
    """How a block of one bank is divided.

    ``counters`` and ``records`` are capacities; ``maxactive`` is the number of instances a thread can have at once.
    """

    counters: int
    records: int = 0
    maxactive: int = 0
    returns: int = 0
    """Entries of the table of replaced return addresses, a power of two; 0 where none is ever replaced."""
    callers: int = 0
    """Entries of the table in which threads note return points, a power of two; 0 where calls end at exits only."""
    left_out: int = 0
    """The first blocks, which are handed out to no thread that comes by, and are not read: for threads left out."""
    adopting: bool = False
    """Whether fork children have header and blocks of their own."""
    nested: bool = False
    """Whether it is known of timed calls which other timed ones they have made."""
    nodes: int = 0
    """Nodes of the call tree, a power of two; 0: there is none."""
    threads: int = THREADS
    """For how many threads at one time there are to be blocks, if these do not take too much: a power of two."""
    by_thread: bool = False
    """Whether a block has the timed calls of one thread alone: later ones with its thread pointer have other blocks."""
    on_processors: bool = False
    """Whether timed calls are measured by the time that their threads are on processors."""
    least: int = 0
    """For how many threads there are to be blocks even if these take much, up to ``BANK_BYTES_AT_ALL``."""
    _next_counter: int = field(default=0, init=False)
    _next_record: int = field(default=0, init=False)

    @property
    def notes_calls(self) -> bool:
        """Whether calls are noted for handlers that run where their callers go on, by the routines of handlers alone.

        Those of timed calls may move what is noted.
        """
        return self.callers > 0 and self.maxactive > 0 and not self.records

    @property
    def instances_offset(self) -> int:
        """Offset of the instance stack in a block."""
        return BLOCK_HEAD_BYTES

    @property
    def counters_offset(self) -> int:
        """Offset of the counters in a block."""
        return self.instances_offset + self.maxactive * INSTANCE_BYTES

    @property
    def records_offset(self) -> int:
        """Offset of the timing records in a block."""
        return self.counters_offset + self.counters * 8

    @property
    def far_offset(self) -> int:
        """Offset of the far buckets of all timing records in a block."""
        return self.records_offset + (self.records + _NO_FUNCTIONS * self.nested) * RECORD_BYTES

    def far_of(self, record: int) -> int:
        """Return the offset of the far buckets of a timing record."""
        return self.far_offset + (record - self.records_offset) * FAR_TIMES

    @property
    def tree_offset(self) -> int:
        """Offset of what a block has of the nodes of the call tree."""
        return self.records_offset + (self.records + _NO_FUNCTIONS * self.nested) * (RECORD_BYTES + FAR_BYTES)

    def offset_of(self, record: int) -> int:
        """Return the offset of ``SWITCHES`` or ``UNNAMED``: where calls are nested they follow all other records."""
        return self.records_offset + (self.records + record) * RECORD_BYTES

    @property
    def futile_offset(self) -> int:
        """Offset of the stack pointer of the call for which nothing could be dropped, 0 once it is counted as missed.

        So that it is not tried anew, for ever, where a signal comes in each time and the call begins once more.
        """
        return self.tree_offset + self.nodes * NODE_BYTES

    @property
    def outer_offset(self) -> int:
        """Offset of what ``BLOCK_LEAVING`` was when calls began to be left behind elsewhere, if calls are nested.

        By a signal handler, as a rule, that has come in between. 0: there is no such.
        """
        return self.futile_offset + 8

    @property
    def places_offset(self) -> int:
        """Offset of the words that say where instances move to while some are dropped, if calls are nested."""
        return self.outer_offset + 8

    @property
    def stride(self) -> int:
        """Bytes of a block, whole pages so that two threads never share a cache line."""
        more = 8 + PLACE_BYTES * (self.maxactive + 1) if self.nested else 0
        return (self.futile_offset + (8 if self.records else 0) + more + 4095) & ~4095

    @property
    def blocks(self) -> int:
        """Number of blocks for threads (the shared block is extra)."""
        sure = min(self.least, BANK_BYTES_AT_ALL // self.stride - 1)
        return max(LEAST_THREADS, sure, min(self.threads, BANK_BYTES_LIMIT // self.stride - 1))

    @property
    def shared_offset(self) -> int:
        """Offset of the shared block in the region."""
        return HEADER_BYTES

    @property
    def blocks_offset(self) -> int:
        """Offset of the first thread's block in the region."""
        return HEADER_BYTES + self.stride

    @property
    def returns_offset(self) -> int:
        """Offset of the table of replaced return addresses in the region."""
        return self.blocks_offset + self.blocks * self.stride

    @property
    def callers_offset(self) -> int:
        """Offset of the table in which threads note return points that are not known."""
        return self.returns_offset + (self.returns * RETURN_BYTES + 4095 & ~4095)

    @property
    def known_callers(self) -> int:
        """Entries of the table of known return points, which anyprobe alone writes."""
        return 4 * self.callers

    @property
    def known_callers_offset(self) -> int:
        """Offset of the table of known return points in the region."""
        return self.callers_offset + (self.callers * CALLER_BYTES + 4095 & ~4095)

    @property
    def nodes_offset(self) -> int:
        """Offset of the keys of the call tree's nodes, which all threads and fork children share."""
        return self.known_callers_offset + (self.known_callers * CALLER_BYTES + 4095 & ~4095)

    @property
    def children_offset(self) -> int:
        """Offset of the table that says which fork child has which copy of header and blocks."""
        return self.nodes_offset + (self.nodes * 8 + 4095 & ~4095)

    @property
    def children(self) -> int:
        """Number of copies of header and blocks for fork children."""
        few = min(LEAST_CHILDREN, MOST_CHILDREN_BYTES // self.child_bytes)
        return min(CHILDREN, max(few, CHILDREN_BYTES_LIMIT // self.child_bytes)) if self.adopting else 0

    @property
    def child_bytes(self) -> int:
        """Bytes of a copy of header and blocks."""
        return self.returns_offset

    @property
    def size(self) -> int:
        """Bytes of the whole region."""
        return self.children_offset + (self.children * CHILD_BYTES + 4095 & ~4095)

    @property
    def file_bytes(self) -> int:
        """Bytes of the region and, after it, of the copies for fork children, which are not mapped."""
        return self.size + self.children * self.child_bytes

    def child_offset(self, number: int) -> int:
        """Return where a fork child's copy of header and blocks is, from the region on."""
        return self.size + number * self.child_bytes

    @property
    def records_there(self) -> range:
        """The block offsets of the timing records that have been handed out."""
        start = self.records_offset
        return range(start, start + RECORD_BYTES * self._next_record, RECORD_BYTES)

    def counters_left(self) -> int:
        """Return how many counters can still be handed out."""
        return self.counters - self._next_counter

    def records_left(self) -> int:
        """Return how many timing records can still be handed out."""
        return self.records - self._next_record

    def new_counter(self) -> int:
        """Hand out the block offset of a counter."""
        index = self._next_counter
        if index >= self.counters:
            raise InternalError("no counter is left in this bank")
        self._next_counter += 1
        return self.counters_offset + 8 * index

    def new_record(self) -> int:
        """Hand out the block offset of a timing record."""
        index = self._next_record
        if index >= self.records:
            raise InternalError("no timing record is left in this bank")
        self._next_record += 1
        return self.records_offset + RECORD_BYTES * index
