"""The traps of one session: the handler in the target, and the table that leads from sites to patches.

What a trap needs comes before it, so that every prefix of the writes is a correct program: the handler with an empty
table, the journal's record of the action that it replaces, the action, the table, the ``int3``. A table is never
changed: a new one is written after it and its address stored with one write, while everything of the target is
stopped; fork children, which share the tables and are not stopped, find all their sites in the new one too. Sites stay
in the table for good: a late hit continues in its patch, which goes on working and comes back to restored code.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import StopTimeout, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.records import MappingUse, journal_size
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.memfd import map_arena
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.splices import TRAP, Strategy
from anyprobe.splice.regions.access import Access
from anyprobe.splice.userspace.signal_actions import (
    blocking_thread,
    current_action,
    exchange_action,
    record_of,
    set_action,
    unsettled_now,
)

if TYPE_CHECKING:
    from anyprobe.splice.emitted import EmittedSplice, FunctionChange
    from anyprobe.splice.userspace.trap_handler import SignalAction, TrapHandler
    from anyprobe.target.base import ProcessQuiescence, SystemCalls

Calls = Callable[[int], "AbstractContextManager[SystemCalls]"]
"""Gives a thread of a process to make system calls in."""

_LEAST_BYTES = 1 << 16
_TABLES = 8
"""For how many tables of the present size room is made at once."""
_RECORDS = 8
_TRIES = 12
"""How often everything is stopped to find no thread with SIGTRAP blocked: libc blocks all signals for moments."""
_PATIENCE = 2.0
"""Seconds to go on looking for a moment in which a thread can make system calls."""
_CALM_PATIENCE = 0.02
"""Seconds to wait before the first stop for threads to unblock SIGTRAP, to come to traps that they have met, and for
vfork children to be gone; before each further one so much more, as a busy machine may leave them no processor."""


def _trap_splices(change: "FunctionChange") -> "list[EmittedSplice]":
    return [s for s in change.added if s.planned.strategy is Strategy.TRAP and not s.is_springboard]


class Traps:
    """Installs the handler with the first trap and keeps the table."""

    def __init__(self, access: Access) -> None:
        """Do nothing yet."""
        self._access = access
        self._handler: TrapHandler | None = None
        self._old: SignalAction | None = None
        self._home: tuple[Arena, Piece] | None = None
        """Where the handler is, and the pointer to the table."""
        self._room: tuple[Arena, Piece] | None = None
        """Where tables are written."""
        self._cursor = 0
        self._table = 0
        self._entries: dict[int, int] = {}
        self._before: tuple[int, dict[int, int]] | None = None

    def prepare(self, changes: "Sequence[FunctionChange]") -> Refusal | None:
        """See that the handler is installed and has room for the sites of the changes, or return why it cannot be."""
        sites = [splice.address for change in changes for splice in _trap_splices(change)]
        if not sites:
            return None
        self._wait_for_calm()
        need = self._need(len(sites))
        if self._handler is None:
            with self._calm_stop("arm", lambda stop: blocking_thread(stop, sites[0], range(0))) as (stop, refusal):
                return refusal or self._install(stop.remote, sites[0], need)
        if not self._has_room(need):
            with self._access.stop("arm") as stop:
                self._enlarge(stop.remote, sites[0], need)
        return None

    def prepare_live(self, calls: Calls, near: int, sites: int) -> Refusal | None:
        """See that the handler is installed and has room for so many sites, the program running on."""
        need = self._need(sites)
        if self._handler is None:
            return self._install(calls, near, need)
        if not self._has_room(need):
            self._enlarge(calls, near, need)
        return None

    def forget(self) -> None:
        """Forget the handler, which is there no more."""
        self._handler = self._home = self._room = None

    def is_ready_for(self, sites: int) -> bool:
        """Return whether the handler is installed and has room for so many more sites."""
        return self._handler is not None and self._has_room(self._need(sites))

    def _need(self, sites: int) -> int:
        from anyprobe.splice.userspace.trap_handler import table_size

        return table_size(len(self._entries) + sites) + PAGE

    def _has_room(self, need: int) -> bool:
        return self._room is not None and self._cursor + need <= self._room[1].end

    def _enlarge(self, calls: Calls, near: int, need: int) -> None:
        self._room = self._map(calls, near, _TABLES * need)
        self._cursor = self._room[1].address

    @property
    def code(self) -> range:
        """Where the handler is."""
        return range(0) if self._handler is None else range(self._handler.address, self._handler.end)

    @property
    def serves_program(self) -> bool:
        """Whether a SIGTRAP that is not anyprobe's is handled, or ignored, by the program."""
        from anyprobe.splice.userspace.trap_handler import SIG_DFL

        return self._old is not None and self._old.handler != SIG_DFL

    def replaced(self, action: "SignalAction", site: int) -> Refusal | None:
        """Return a refusal if ``action``, which SIGTRAP has now, is not anyprobe's."""
        if self._handler is not None and action.handler == self._handler.entry:
            return None
        return Refusal(Reason.TRAP_UNSAFE, site, "the program has set a SIGTRAP handler of its own since")

    def objection(self, change: "FunctionChange") -> Refusal | None:
        """Return why one change may not be, the handler being installed."""
        if not self.serves_program:  # a SIGTRAP from elsewhere is its end, trap or no trap
            return None
        for splice in _trap_splices(change):
            if splice.planned.ambiguous:
                detail = "the program uses SIGTRAP itself, and what comes after this byte can be reached without it"
                return Refusal(Reason.TRAP_UNSAFE, splice.address, detail)
        return None

    def check(self, stop: "ProcessQuiescence", changes: "Sequence[FunctionChange]") -> Refusal | None:
        """Return why no trap may be placed now, everything being stopped."""
        sites = [splice.address for change in changes for splice in _trap_splices(change)]
        if not sites or self._handler is None:
            return None
        refusal = blocking_thread(stop, sites[0], range(self._handler.address, self._handler.end))
        if refusal is not None:
            return refusal
        with stop.remote(stop.process.pid) as remote:
            action = current_action(stop.process, remote)
        return self.replaced(action, sites[0])

    @contextmanager
    def calm_stop(
        self, what: str, changes: "Sequence[FunctionChange]", struck: "Callable[[ProcessQuiescence], Refusal | None]"
    ) -> "Iterator[ProcessQuiescence]":
        """Stop everything at a moment when the traps of the changes may be placed, if such a moment comes soon.

        ``struck``: what says that a thread has met an earlier trap where something is to be changed.
        """
        with self._calm_stop(what, lambda stop: struck(stop) or self.check(stop, changes)) as (stop, _):
            yield stop

    @contextmanager
    def _calm_stop(
        self, what: str, objection: "Callable[[ProcessQuiescence], Refusal | None]"
    ) -> "Iterator[tuple[ProcessQuiescence, Refusal | None]]":
        deadline = time.monotonic() + _PATIENCE
        for number in count(1):
            with self._access.stop(what) as stop:
                try:
                    refusal = objection(stop)
                except StopTimeout:  # no thread is where it can make calls, as when all are about to handle traps
                    if time.monotonic() > deadline:
                        raise
                else:
                    if refusal is None or number >= _TRIES:
                        yield stop, refusal
                        return
            self._wait_for_calm((number + 1) * _CALM_PATIENCE)

    def publish(self, changes: "Sequence[FunctionChange]") -> None:
        """Make the sites of changes known to the handler. Precondition: all is stopped."""
        self.publish_entries({each.address: _entry(each) for change in changes for each in _trap_splices(change)})

    def publish_entries(self, added: Mapping[int, int]) -> None:
        """Make sites known to the handler, by address with what the table says of them; it may run meanwhile."""
        from anyprobe.splice.userspace.trap_handler import pack_table

        self._before = None
        if not added:
            return
        assert self._room is not None
        entries = {**self._entries, **added}
        table = pack_table(entries)
        arena, piece = self._room
        arena.write(piece, self._cursor, table)
        self._before = self._table, self._entries
        self._entries = entries
        self._point_to(self._cursor)
        self._cursor += len(table)

    def withdraw(self) -> None:
        """After writes that failed and were undone: back to the table before."""
        if self._before is not None:
            table, self._entries = self._before
            self._point_to(table)
            self._before = None

    def _point_to(self, table: int) -> None:
        assert self._home is not None
        arena, piece = self._home
        with arena.view(piece.offset, 8) as view, view.cast("Q") as word:
            word[0] = table  # one aligned store: fork children may be reading it
        self._table = table

    def _wait_for_calm(self, patience: float = _CALM_PATIENCE) -> None:
        process = self._access.process
        deadline = time.monotonic() + patience
        pause = 0.0005
        with suppress(StopTimeout):  # the stop looks again
            # a thread that is stopped again before it has run does not come to its trap
            while (process.relatives.find() or unsettled_now(process)) and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(2 * pause, 0.01)

    def _install(self, calls: Calls, site: int, need: int) -> Refusal | None:
        """Map the handler and set it; return what stands in the way."""
        from anyprobe.splice.userspace.trap_handler import SA_RESETHAND

        process = self._access.process
        with calls(process.pid) as remote:
            old = current_action(process, remote)
        if old.is_handler and old.flags & SA_RESETHAND:
            detail = "the program's own SIGTRAP handler is for one signal only (SA_RESETHAND)"
            return Refusal(Reason.TRAP_UNSAFE, site, detail)
        arena, piece = self._map(calls, site, _TABLES * need)
        handler = self._write_handler(arena, piece, old)
        arena.journal.add([record_of(handler.entry, old)])
        with calls(process.pid) as remote:
            replaced = exchange_action(process, remote, handler.action(old))
            if replaced != old:  # the program ran on while memory was mapped
                set_action(remote, replaced)
                return Refusal(Reason.TRAP_UNSAFE, site, "the program has just set another action for SIGTRAP")
        self._old = old
        process.meets_traps = True
        self._handler, self._home, self._room = handler, (arena, piece), (arena, piece)
        self._cursor = self._table = handler.end  # the empty table
        return None

    @staticmethod
    def _write_handler(arena: Arena, piece: Piece, old: "SignalAction") -> "TrapHandler":
        from anyprobe.splice.userspace.trap_handler import assemble_handler

        handler = assemble_handler(piece.address)
        arena.write(piece, piece.address, handler.content)
        address, content = handler.old_action(old)
        arena.write(piece, address, content)
        return handler

    def _map(self, calls: Calls, near: int, size: int) -> tuple[Arena, Piece]:
        """Map memory for tables, with a journal of its own."""
        process, holdings = self._access.process, self._access.holdings
        size = page_ceil(max(_LEAST_BYTES, size))
        space = AddressSpace(process.mappings(), process.heap_start)
        journal_bytes = journal_size(_RECORDS + 1 + 8)
        place = space.gap_near(near, near + len(TRAP), size + PAGE + journal_bytes)
        if place is None:
            raise TargetError("no room for the trap handler in the target's address space")
        with calls(process.pid) as remote:
            arena = map_arena(
                process, remote, holdings.owner, [Piece(MappingUse.CODE, place, size)],
                journal_at=place + size + PAGE, records=_RECORDS,
            )  # fmt: skip
        holdings.add_aside(arena)
        return arena, next(piece for piece in arena.pieces if piece.address == place)


def _entry(splice: "EmittedSplice") -> int:
    """Return what the table says of a site: the patch's address and the flag."""
    from anyprobe.splice.userspace.trap_handler import AMBIGUOUS

    assert splice.patch is not None
    return splice.patch.address | (AMBIGUOUS if splice.planned.ambiguous else 0)
