"""Threads of the target in which calls are made while it runs; how long the thread that makes them stands still."""

from collections.abc import Iterator
from contextlib import contextmanager

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import StopTimeout
from anyprobe.journal.records import MappingUse, journal_size
from anyprobe.splice.memory.arena import Piece
from anyprobe.splice.memory.memfd import map_arena
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.springboards import Springboards
from anyprobe.splice.regions.access import Access
from anyprobe.target.base import SystemCalls
from anyprobe.target.process.helper_thread import ROOM
from anyprobe.target.process.urgency import urgent

_RECORDS = 4


class HelperThreads:
    """Makes helper threads for one session; their stack is mapped with the first."""

    def __init__(self, access: Access, springboards: Springboards) -> None:
        """Nothing is mapped yet; where springboards are planned, no stack may be."""
        self._access, self._process, self._springboards = access, access.process, springboards
        self.stack = 0
        """Top of the memory in which helper threads have their stack."""

    @contextmanager
    def helper_thread(self, what: str) -> Iterator[SystemCalls]:
        """Make system calls in a thread made for them; how long its maker stands still counts as a pause."""
        process = self._process
        self.prepare_stack(what)
        process.gadgets()
        with urgent(), process.helper_thread(self.stack) as calls:
            self._access.pause_us[what] += process.borrowed_us
            yield calls

    @contextmanager
    def calls(self, what: str) -> Iterator[SystemCalls]:
        """Make system calls in a borrowed thread; the time that it stands still counts as a pause."""
        try:
            with urgent(), self._process.borrow() as remote:
                yield remote
        finally:
            self._access.pause_us[what] += self._process.borrowed_us

    def prepare_stack(self, what: str) -> None:
        """Map a stack for helper threads if there is none; the first has to use that of the thread that makes it."""
        process, holdings = self._process, self._access.holdings
        if self.stack:
            return
        self._access.touch()
        space = AddressSpace(process.mappings(), process.heap_start)
        space.reserve_all((page, page + PAGE) for page in self._springboards.pages())
        journal_bytes = journal_size(_RECORDS + 1 + 8)
        size = page_ceil(ROOM) + PAGE
        place = space.quiet_gap(journal_bytes + size + PAGE)
        if place is None:
            raise StopTimeout("no room for a stack in the target's address space")
        pieces = [Piece(MappingUse.DATA, place + journal_bytes + PAGE, size)]
        try:
            with urgent(), process.waiting_helper_thread() as calls:
                arena = map_arena(process, calls, holdings.owner, pieces, journal_at=place, records=_RECORDS)
        finally:
            self._access.pause_us[what] += process.borrowed_us
        holdings.add_aside(arena)
        self._springboards.space.reserve(place, pieces[0].end)
        self.stack = pieces[0].end

    @contextmanager
    def mapping(self, *, pointers: bool) -> Iterator[tuple[SystemCalls, list[int]]]:
        """Give a thread to map memory in, and all thread ``pointers``; ``StopTimeout`` where that needs a stop."""
        process = self._process
        process.verify()
        self._access.check_sessions(process.mappings())
        found = process.thread_pointers() if pointers else []
        if found is None:
            raise StopTimeout(f"not all threads of process {process.pid} are known to be the C library's")
        with self.helper_thread("arm") as calls:
            yield calls, found
