"""Threads of the target in which calls are made while it runs; how long whoever makes them stands still."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import StopTimeout
from anyprobe.splice.journal.records import MappingUse, journal_size
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.target.process.thread_pointers import thread_pointers
from anyprobe.target.process.urgency import urgent
from anyprobe.target.remote.calls import RemoteCalls
from anyprobe.target.remote.helper_thread import ROOM, with_waiting_deputy

if TYPE_CHECKING:
    from anyprobe.splice.engine import Engine

_RECORDS = 4


class Deputies:
    """Makes deputies for one engine; their stack is mapped with the first."""

    def __init__(self, engine: "Engine") -> None:
        """Nothing is mapped yet."""
        self._engine = engine
        self.stack = 0
        """Top of the memory in which deputies have their stack."""

    @contextmanager
    def deputy(self, what: str) -> Iterator[RemoteCalls]:
        """Make system calls in a thread made for them; how long its maker stands still counts as a pause."""
        process = self._engine.process
        self.prepare_stack(what)
        process.gadgets()
        with urgent(), process.deputy(self.stack) as calls:
            self._engine.pause_us[what] += process.borrowed_us
            yield calls

    @contextmanager
    def calls(self, what: str) -> Iterator[RemoteCalls]:
        """Make system calls in a borrowed thread; the time that it stands still counts as a pause."""
        begin = 0
        try:
            with urgent(), self._engine.process.borrow() as remote:
                begin = time.monotonic_ns()
                yield remote
        finally:
            self._engine.pause_us[what] += (time.monotonic_ns() - begin) // 1000 if begin else 0

    def prepare_stack(self, what: str) -> None:
        """See that there is a stack for deputies; the first of them has to use that of the thread that makes it."""
        engine = self._engine
        process = engine.process
        if self.stack:
            return
        engine.touched = True
        process.gadgets()
        space = AddressSpace(process.mappings(), process.heap_start)
        space.reserve_all((page, page + PAGE) for page in engine.springboards.pages())
        journal_bytes = journal_size(_RECORDS + 1 + 8)
        size = page_ceil(ROOM) + PAGE
        place = space.quiet_gap(journal_bytes + size + PAGE)
        if place is None:
            raise StopTimeout("no room for a stack in the target's address space")
        pieces = [Piece(MappingUse.DATA, place + journal_bytes + PAGE, size)]
        with self.calls(what) as remote, with_waiting_deputy(process, remote) as calls:
            arena = Arena.create(process, calls, engine.owner, pieces, journal_at=place, records=_RECORDS)
        engine.arenas.insert(0, arena)  # the last one is where splices are journalled
        engine.springboards.space.reserve(place, pieces[0].end)
        self.stack = pieces[0].end

    @contextmanager
    def mapping(self, *, pointers: bool) -> Iterator[tuple[RemoteCalls, list[int]]]:
        """Give a thread to map memory in, and all thread ``pointers``; ``StopTimeout`` where that needs a stop."""
        process = self._engine.process
        process.verify()
        self._engine.check_sessions(process.mappings())
        found = thread_pointers(process) if pointers else []
        if found is None:
            raise StopTimeout(f"not all threads of process {process.pid} are known to be the C library's")
        with self.deputy("arm") as calls:
            yield calls, found
