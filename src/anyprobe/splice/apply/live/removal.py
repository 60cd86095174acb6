"""The end of a session while the program runs: everything is taken out and unmapped, one thread visited after another.

Once all splices are gone, a thread that is seen outside of our code gets into it by signals only: traps of the
program's own go through our handler until the old action is back. So it is enough to have seen each thread outside
once before that, and once after, at whatever times. What cannot be done so is left to ``recovery``, which stops
everything and finds in the journals what is still to be done: here nothing is forgotten before it is done.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.address import page_floor
from anyprobe.core.errors import StopTimeout, TargetError, TargetExited
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.installed import find_journals
from anyprobe.journal.records import FoundJournal, Record, RecordKind
from anyprobe.splice.apply.recovery.occupants import busy_code, code_of, on_our_stacks, pages_of_threads, ranges_of
from anyprobe.splice.apply.saved_pcs import Stacks
from anyprobe.splice.apply.suspended_contexts import may_park
from anyprobe.splice.edits import Edit, FunctionState, Module
from anyprobe.splice.memory.file_pages import copied_pages, droppable
from anyprobe.splice.memory.memfd import drop_pages
from anyprobe.splice.regions.access import Access
from anyprobe.splice.userspace.signal_actions import put_back_live, trapped
from anyprobe.splice.userspace.thread_slot import clear_slots
from anyprobe.target.remote.batch import BatchedCall, batch_code, batch_size, capacity

if TYPE_CHECKING:
    from anyprobe.splice.apply.live.changes import LiveArming
    from anyprobe.splice.regions.code_region import CodeRegion
    from anyprobe.target.base import SystemCalls
    from anyprobe.target.system.procfs import Mapping

_SYS_MUNMAP = 11
_PATIENCE = 2.0
_PAUSE = 0.0005
Range = tuple[int, int]


class LiveRemoval:
    """Ends one session in its target."""

    def __init__(
        self, access: Access, modules: Sequence[Module], live: "LiveArming", change: Callable[[Sequence[Edit]], None]
    ) -> None:
        """Nothing is done yet; ``change`` makes edits."""
        self._access, self._modules, self._live, self._change = access, modules, live, change
        self._process = access.process
        self._helper_threads = live.helper_threads
        self._journals: list[FoundJournal] = []
        self._mappings: Sequence[Mapping] = ()

    def run(self) -> None:
        """Do as much as can be done; what is left shows in the memory map."""
        states = [(module, state) for module in self._modules for state in module.functions.values()]
        at_handlers = [each for each in states if any(splice.planned.shows_pcs for splice in each[1].splices)]
        others = [each for each in states if each not in at_handlers]
        self._take_out(others)
        if at_handlers:  # who is in a patch still may be interrupted there, and it is they that know what to show
            with self._process.exclusive():
                self._read()
                if any(state.splices for _, state in others) or not self._is_quiet():
                    return
            self._take_out(at_handlers)
        with self._process.exclusive():
            self._helper_threads.prepare_stack("disarm")
            self._read()
            self._drop_pages()
            if self._has_more_than_code() or not self._is_quiet():
                return
            home = self._home()
            if not self._journals or home is None:
                return
            if any(journal.of(RecordKind.ACTION) for journal in self._journals):
                with self._helper_threads.helper_thread("disarm") as remote:
                    put_back_live(self._process, remote, self._journals, self._mappings)
                if not self._is_quiet():
                    return
            pointers = self._process.thread_pointers() if self._banks() else []
            if pointers is not None:
                self._unmap(pointers, home)

    def _take_out(self, states: Sequence[tuple[Module, FunctionState]]) -> None:
        """Remove all splices of functions, without a stop where that can be."""
        spliced = [(module, state) for module, state in states if state.splices]
        for _, state in spliced:
            self._live.pages |= {page_floor(splice.address) for splice in state.splices}
        self._change([Edit(module, state, removed=list(state.wants)) for module, state in spliced])

    def _drop_pages(self) -> None:
        """Give restored pages back to the file, those too that a stop wrote to.

        Where something else may be mapped by then they stay copies.
        """
        with suppress(OSError):
            self._live.pages |= set(copied_pages(self._process, self._mappings))
        lasting = [module for module in self._modules if self._live.proof.may_vanish(module) is None]
        own = sorted(page for page in self._live.pages if any(each.low <= page < each.high for each in lasting))
        pages = droppable(self._process, own, self._mappings)
        if pages:
            with self._helper_threads.helper_thread("disarm") as remote:
                for low, size in pages:
                    drop_pages(remote, low, size)

    def _read(self) -> None:
        self._mappings = self._process.mappings()
        found = find_journals(self._process.mem, self._mappings)
        self._journals = [each for each in found if each.owner.session == self._access.holdings.owner.session]

    def _has_more_than_code(self) -> bool:
        """Return whether something is left that only a stop can find: splices, return addresses, other processes."""
        kinds = (RecordKind.SPLICE, RecordKind.WINDOW, RecordKind.RETURNS, RecordKind.SEMAPHORE)
        left = any(journal.of(kind) for journal in self._journals for kind in kinds)
        return left or bool(self._process.relatives.find()) or may_park(self._process, self._mappings)

    def _is_quiet(self) -> bool:
        """Visit every thread until each was seen outside of our code."""
        ranges = ranges_of(self._journals, self._mappings)
        code = code_of(ranges, self._mappings)
        seen: set[int] = set()
        deadline = time.monotonic() + _PATIENCE
        while fresh := [tid for tid in self._process.all_threads() if tid not in seen]:
            for tid in fresh:
                with suppress(StopTimeout):
                    if self._is_outside(tid, code, ranges):
                        seen.add(tid)
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
            self._mappings = self._process.mappings()
        return True

    def _is_outside(self, tid: int, code: Sequence[Range], ranges: Sequence[Range]) -> bool:
        """Return whether a thread is certainly not in our code, and will not come back to it from a signal handler."""
        process = self._process
        with process.visit(tid) as thread:
            begin = time.monotonic_ns()
            if thread is None:
                return True
            inside = (
                busy_code(process.mem, [thread], (), code, self._mappings)
                or trapped(self._journals, [thread])
                or on_our_stacks(ranges, [thread])
                or not Stacks(process.mem, self._mappings).are_known(thread)
            )
        pause = (time.monotonic_ns() - begin) // 1000
        self._live.longest_visit_us = max(self._live.longest_visit_us, pause)
        return not inside

    # -- memory

    def _unmap(self, pointers: Sequence[int], home: "CodeRegion") -> None:
        """Clear the threads' slots and unmap, where no thread is in anyprobe's code and no signal leads there."""
        ranges = ranges_of(self._journals, self._mappings)
        late = self._needed_last(home, ranges)
        pages = pages_of_threads(self._process.mem, self._journals, self._mappings)
        soon = [*pages, *(each for each in ranges if each not in late)]
        calls = [BatchedCall(_SYS_MUNMAP, (low, high - low)) for low, high in soon]
        with self._helper_threads.helper_thread("disarm") as remote:
            self._clear_slots(pointers)
            self._run(remote, calls, home)
        with self._helper_threads.calls("disarm") as remote:
            for low, high in late:
                remote.syscall(_SYS_MUNMAP, low, high - low)
        self._live.forget_traps()

    def _home(self) -> "CodeRegion | None":
        """Return where code memory is left over, if there is any: there the calls are made that unmap the rest.

        What is in use must stay as it is: forked children, which are seen to later, run it.
        """
        roomy = [each for each in self._access.holdings.code_regions if each.limit - each.cursor >= batch_size(1)]
        return max(roomy, key=lambda each: each.limit - each.cursor, default=None)

    def _needed_last(self, home: "CodeRegion", ranges: Sequence[Range]) -> list[Range]:
        """Return what must stay until the others are unmapped: their code, the helper's stack, the journals of both."""
        stack = next(
            each
            for each in self._access.holdings.arenas
            if any(p.end == self._helper_threads.stack for p in each.pieces)
        )
        needed = {piece.address for piece in (home.arena.pieces[0], home.code, *stack.pieces)}
        return [(low, high) for low, high in ranges if any(low <= address < high for address in needed)]

    @staticmethod
    def _run(remote: "SystemCalls", calls: Sequence[BatchedCall], home: "CodeRegion") -> None:
        each = capacity(home.limit - home.cursor)
        for first in range(0, len(calls), each):
            batch = calls[first : first + each]
            home.arena.write(home.code, home.cursor, batch_code(batch))
            remote.run(batch, home.cursor)

    def _clear_slots(self, pointers: Sequence[int]) -> None:
        def mapped(address: int) -> bool:
            return any(m.start <= address < m.end for m in self._mappings)

        for record in self._banks():
            clear_slots(
                self._process.mem, region=record.address, stride=record.size, blocks=record.extra >> 32,
                slot=record.extra & 0xFFFFFFFF, live=pointers, mapped=mapped,
            )  # fmt: skip

    def _banks(self) -> list[Record]:
        """Return the records of counters that threads have pointers to."""
        return [r for journal in self._journals for r in journal.of(RecordKind.BANK)]


def end_live(
    access: Access, modules: Sequence[Module], live: "LiveArming", change: Callable[[Sequence[Edit]], None]
) -> None:
    """End a session without a stop, as far as that can be; what is left is for ``recovery``."""
    if access.touched and access.process.held is None:
        live.longest_visit_us = 0
        try:
            LiveRemoval(access, modules, live, change).run()
        except TargetExited:
            raise
        except (TargetError, MemoryFault, OSError):
            return  # the stop sees to the rest, or says what stands in the way
        finally:
            access.pause_us["disarm"] += live.longest_visit_us
