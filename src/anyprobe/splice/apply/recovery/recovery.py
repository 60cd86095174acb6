"""Undoing splices from the journal alone: a session's own end, what a dead controller left, fork children.

Nothing here needs the state of the session that made the splices. What the journal says is compared with memory first:
bytes that are the splice's are restored, bytes that are the old ones are left, anything else is reported and left.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from anyprobe.core.errors import (
    AnyprobeError,
    NoSuchProcess,
    SessionConflict,
    StopTimeout,
    TargetError,
    TargetExited,
    UnsupportedTarget,
)
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.installed import find_journals, find_owners, processes_with_splices
from anyprobe.journal.memfds import is_ours
from anyprobe.journal.records import FoundJournal, RecordKind, journal_unchanged, mark_ended
from anyprobe.splice.apply.blocked_syscalls import Sleepers
from anyprobe.splice.apply.dead_jumps import leave, listed
from anyprobe.splice.apply.recovery.occupants import (
    about_to_call,
    busy_code,
    code_of,
    on_our_stacks,
    pages_of_threads,
    ranges_of,
    unlisted,
)
from anyprobe.splice.apply.recovery.restoring import TextRestoration
from anyprobe.splice.apply.suspended_contexts import may_park, parked_pcs
from anyprobe.splice.memory.file_pages import copied_pages, droppable, never_written
from anyprobe.splice.memory.memfd import close_descriptor, drop_pages, leaked_descriptors, unmap
from anyprobe.splice.userspace.signal_actions import has_traps, put_back, trapped, unreached
from anyprobe.splice.userspace.thread_slot import clear_slots
from anyprobe.target.base import ProcessQuiescence, ProcessTarget, StoppedThread, SystemCalls
from anyprobe.target.process.process import Process
from anyprobe.target.system.procfs import Mapping

if TYPE_CHECKING:
    from anyprobe.splice.apply.recovery.saved_copies import Saved

_TRIES = 3
_PATIENCE = 2.0
_PAUSE = 0.002
_QUIET_PAUSES = (*(0.0005 * number for number in range(1, 21)), *6 * (0.04,))
"""Threads leave a patch within nanoseconds unless they sleep in one, or share few processors with many others."""
_PATIENT = 20
"""In so many stops, splices at signal handlers stay as long as a thread is in a patch: a fault there is to be shown as
the program's. It may be asleep in one, so that is not for ever."""
_SLICE = 0.003
"""For how long, in seconds, a stop goes on giving memory back before the next one sees to the rest."""
_AT_ONCE = 32
"""Pages compared with their file at a time."""
_BREATH = 0.002
"""How long the program runs between two such stops."""
_SCANS = 50
"""How often processes are looked for: each fork child that is found may have forked meanwhile."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed from one process."""

    pid: int
    splices: int
    foreign: tuple[int, ...]
    """Addresses whose bytes are neither anyprobe's nor the original ones; left alone."""
    kept: tuple[str, ...]
    """Mappings not yet quiet; the next ``detach`` removes them."""
    pause_us: int


def _replaces_returns(journals: Iterable[FoundJournal]) -> bool:
    return any(journal.of(RecordKind.RETURNS) for journal in journals)


def remove(
    process: ProcessTarget,
    sessions: frozenset[bytes] | None = None,
    patches: Callable[[], Sleepers] | None = None,
    saved: "Sequence[Saved]" = (),
    let_go: Callable[[], object] = lambda: None,
) -> Removal:
    """Restore all text, then unmap everything that is quiet; ``sessions`` limits it to some sessions' journals.

    ``saved``: splices that the program has overwritten. What they lead to stays mapped as long as it holds copies.

    Where ``patches`` are known, threads asleep in them go back to the system calls they were copied from. ``let_go`` is
    called when the text is the program's own again: threads may wait in patches for that.

    What fails once (a thread that would not stop in time) is tried again, and for a while what may do at another moment
    (no thread is where it can make calls). A typed error says that it still failed.
    """
    deadline = time.monotonic() + _PATIENCE
    for number in count(1):
        try:
            with process.exclusive(), process.translated("removing probes from"):
                return _remove(process, sessions, patches, saved, let_go)
        except (TargetError, MemoryFault) as error:
            final = isinstance(error, SessionConflict) or (isinstance(error, TargetExited) and process.ended())
            waiting = isinstance(error, StopTimeout) and time.monotonic() < deadline
            if not final and (number < _TRIES or waiting):
                time.sleep(_PAUSE)
                continue
            if isinstance(error, MemoryFault):
                raise TargetError(f"removing probes from process {process.pid} failed: {error}") from error
            raise
    raise AssertionError


def restore_text(process: ProcessTarget, sessions: frozenset[bytes]) -> int:
    """Take all splices out of the text of a process in one stop; return how many there were.

    Threads may be in patches: their faults are shown to the program as they are. The memory stays until ``remove``.
    """
    with process.exclusive(), process.translated("removing probes from"):
        restored = _Restoration(process, sessions, ())
        restored.hurried = True
        with process.stop() as stop:
            stop.verify()
            held = restored.run(stop)
        if not restored.is_restored:
            raise StopTimeout(f"process {process.pid}: its text cannot be restored now: {', '.join(held)}")
        return restored.splices


def _remove(
    process: ProcessTarget,
    sessions: frozenset[bytes] | None,
    patches: Callable[[], Sleepers] | None,
    saved: "Sequence[Saved]",
    let_go: Callable[[], object],
) -> Removal:
    restored = _Restoration(process, sessions, saved)
    # where everything is to go, a thread may still have a dead controller's first call to make: only a stop shows that
    if sessions is not None and not restored.has_work():
        return Removal(process.pid, 0, (), (), 0)
    with suppress(UnsupportedTarget):  # spliced over by another tool; found again once the text is restored
        process.gadgets()
    pause = 0
    kept: tuple[str, ...] = ()
    for number, breath in enumerate(_QUIET_PAUSES):
        restored.hurried = number >= _PATIENT
        while True:
            with process.stop() as stop:
                stop.verify()
                kept = restored.run(stop)
            pause = max(pause, stop.pause_us)
            if not restored.unfinished:
                break
            time.sleep(_BREATH)
        if restored.is_restored:
            let_go()
        if restored.awaits_program or (not kept and not restored.look_for_leaks()):
            break
        if patches is not None:
            restored.sleepers = restored.sleepers or patches()
        time.sleep(breath)
    if not restored.is_restored:
        raise StopTimeout(f"process {process.pid}: its text cannot be restored now: in the way is {', '.join(kept)}")
    if kept:
        restored.mark_ended()
    return Removal(process.pid, restored.splices, restored.foreign, kept, pause)


class _Restoration:
    def __init__(self, process: ProcessTarget, sessions: frozenset[bytes] | None, saved: "Sequence[Saved]") -> None:
        self._process, self._sessions, self._saved = process, sessions, saved
        self._found: list[FoundJournal] = []
        self._pages: list[int] = []
        """Restored pages that have yet to be given back to their files."""
        self._ranges: list[tuple[int, int]] = []
        """What has yet to be unmapped."""
        self.unfinished = False
        """Whether the stop was over before all was given back."""
        self._leaks = True
        """Whether there may be descriptors to close. They are looked for in the stop only then: it takes long."""
        with suppress(TargetError, OSError):  # read again in the stop, where a failure counts
            self._found = find_journals(process.mem, process.mappings())
        process.meets_traps |= has_traps(self._found)
        with suppress(TargetError):
            may_park(process, process.mappings())
        self._copies: list[int] = []
        """Pages of text that are copies already, of probes that were taken out before too."""
        with suppress(TargetError, OSError):
            self._copies = copied_pages(process, process.mappings())
        self.look_for_leaks()
        self._begun = self._restored = False
        self.hurried = False
        """Whether the program's signal handlers may see true pcs."""
        self._prepare()
        self.sleepers: Sleepers | None = None
        self.awaits_program = False
        """Whether only the program can end what keeps the memory in use."""

    def _prepare(self) -> None:
        """Derive from the journals what takes time and can be known before anything is stopped."""
        meant = self._meant(self._found)
        memory, process = self._process.mem, self._process
        self._text, self._at_handlers = (
            TextRestoration(memory, meant, lambda page: bool(never_written(process, (page,))), at_handlers=which)
            for which in (False, True)
        )
        self._dead_jumps = listed(meant)
        if _replaces_returns(meant):  # not while everything is stopped
            import anyprobe.splice.apply.recovery.return_addresses  # noqa: F401

    def _restore_returns(
        self, threads: Iterable[StoppedThread], journals: Sequence[FoundJournal], mappings: Sequence[Mapping]
    ) -> tuple[str, ...]:
        """Give the program its return addresses back; return what stands in the way."""
        if not _replaces_returns(journals):
            return ()
        from anyprobe.splice.apply.recovery.return_addresses import restore_returns

        return restore_returns(self._process, threads, journals, mappings)

    def _held_copies(self, mappings: Sequence[Mapping]) -> Sequence[int]:
        """Return the splices of which the program holds copies, as far as is known."""
        if not self._saved:
            return ()
        from anyprobe.splice.apply.recovery.saved_copies import held_copies

        return held_copies(self._process, self._saved, mappings)

    @property
    def splices(self) -> int:
        """How many splices were taken out."""
        return self._text.splices + self._at_handlers.splices

    @property
    def foreign(self) -> tuple[int, ...]:
        """Where bytes were found that neither the program nor any session has written."""
        return self._text.foreign + self._at_handlers.foreign

    @property
    def is_restored(self) -> bool:
        """Whether the text is the program's own again."""
        return self._restored

    def look_for_leaks(self) -> bool:
        """Return whether a session has left descriptors open, without stopping anything."""
        with suppress(TargetError, OSError):
            self._leaks = bool(leaked_descriptors(self._process, self._process.pid, self._process.mappings()))
        return self._leaks

    def has_work(self) -> bool:
        """Return whether anything of anyprobe's is there at all."""
        return self._leaks or any(is_ours(mapping) for mapping in self._process.mappings())

    def mark_ended(self) -> None:
        """Note in the journals that only memory is left: no later session need mind them."""
        for journal in self._meant(self._found):
            with suppress(TargetError, MemoryFault):
                mark_ended(self._process.mem, journal.address)

    def _meant(self, found: Iterable[FoundJournal]) -> list[FoundJournal]:
        """Return the journals of the sessions to be removed."""
        return [j for j in found if self._sessions is None or j.owner.session in self._sessions]

    def run(self, stop: ProcessQuiescence) -> tuple[str, ...]:
        """Do what is possible in one stop; return what is not quiet.

        Once all was quiet it stays so, as no text leads to our code: later stops only go on giving memory back.
        """
        process = self._process
        mappings = process.mappings()
        if self.unfinished:
            self._give_back(stop, mappings)
            return ()
        found = self._journals(mappings)
        journals = self._meant(found)
        if not self._restored:
            held = tuple(leave(process.mem, self._dead_jumps, stop))
            if held:
                return held
            if not self._begun:
                if any(journal.of(RecordKind.SEMAPHORE) for journal in journals):
                    from anyprobe.splice.apply.recovery.semaphores import release

                    release(process.mem, journals, mappings)
                    self._found = find_journals(process.mem, mappings)  # they are others now
                self._text.write(mappings)
                self._begun = True
                # elsewhere the program's own instructions are back, and a thread that is there runs them
                self._dead_jumps = listed(journals, at_handlers=True)
            if self.hurried:
                self._finish_text(mappings)
        if any(journal.of(RecordKind.COPY) for journal in journals):
            from anyprobe.splice.apply.recovery.copies import leave_copies

            leave_copies(process.mem, stop.threads, journals, mappings)
        if self.sleepers is not None:
            self.sleepers.wake_in_original(process.mem, stop.threads)
        ranges = ranges_of(journals, mappings)
        ranges += unlisted(found, mappings, thorough=self._sessions is None)
        about_to = about_to_call(process, stop.threads) or on_our_stacks(ranges, stop.threads)
        if not about_to and not ranges:
            self._finish_text(mappings)
        if about_to or (not ranges and not self._leaks):
            return about_to
        busy = self._make_quiet(stop, journals, ranges, mappings)
        if not busy:
            self._ranges = [*pages_of_threads(process.mem, journals, mappings), *ranges]  # the banks say which
            self._give_back(stop, mappings)
        return busy

    def _make_quiet(
        self,
        stop: ProcessQuiescence,
        journals: Sequence[FoundJournal],
        ranges: Sequence[tuple[int, int]],
        mappings: Sequence[Mapping],
    ) -> tuple[str, ...]:
        """Take out what leads to our code besides the text; return who is in it or will come back to it."""
        process = self._process
        parked = parked_pcs(process, mappings, stop.threads)
        busy = busy_code(process.mem, stop.threads, stop.waiting, code_of(ranges, mappings), mappings, parked)
        busy += tuple(f"the trap handler for thread {tid}" for tid in trapped(journals, stop.threads))
        busy += unreached(stop, journals, mappings)
        if not busy:
            self._finish_text(mappings)
        busy = busy or self._restore_returns(stop.threads, journals, mappings)
        if busy:
            return busy
        # The program may have saved a jump as its original bytes, and write it back when it takes its hook out: only
        # another removal, which finds other bytes, may unmap what the jump leads to.
        awaited = {*self.foreign, *self._held_copies(mappings)}
        if awaited:
            self.awaits_program = True
            return tuple(f"the patch for {at:#x}, whose bytes the program may have saved," for at in sorted(awaited))
        put_back(process, stop, journals, mappings)
        self._clear_slots(journals, stop.threads, mappings)
        return ()

    def _finish_text(self, mappings: Sequence[Mapping]) -> None:
        """Take the splices at signal handlers out, too: no thread is in a patch, or they have been waited for."""
        if not self._restored:
            self._at_handlers.write(mappings)
            self._pages = sorted({*self._text.pages, *self._at_handlers.pages, *self._copies})
            self._restored = True

    def _give_back(self, stop: ProcessQuiescence, mappings: Sequence[Mapping]) -> None:
        """Give memory back until a while has passed."""
        end = time.monotonic() + _SLICE
        with stop.remote() as remote:
            self._close_leaked(remote, mappings)
            while self._pages:
                pages, self._pages = self._pages[:_AT_ONCE], self._pages[_AT_ONCE:]
                for low, size in droppable(self._process, pages, mappings):
                    drop_pages(remote, low, size)
                if time.monotonic() > end:
                    self.unfinished = True
                    return
            while self._ranges:
                unmap(remote, *self._ranges[0])
                del self._ranges[0]
                if time.monotonic() > end:
                    break
        self.unfinished = bool(self._ranges)

    def _clear_slots(
        self, journals: Sequence[FoundJournal], threads: Sequence[StoppedThread], mappings: Sequence[Mapping]
    ) -> None:
        def mapped(address: int) -> bool:
            return any(m.start <= address < m.end for m in mappings)

        for record in (r for journal in journals for r in journal.of(RecordKind.BANK)):
            slot, blocks = record.extra & 0xFFFFFFFF, record.extra >> 32
            if not mapped(record.address):  # unmapped by a removal that did not come to its end, and cleared before
                continue
            try:
                clear_slots(
                    self._process.mem, region=record.address, stride=record.size, blocks=blocks, slot=slot,
                    live=[thread.registers.fs_base for thread in threads], mapped=mapped,
                )  # fmt: skip
            except MemoryFault as fault:
                # Left after, a slot would lead a later session's code into memory that is gone.
                raise TargetError(f"the slots of process {self._process.pid} cannot be cleared: {fault}") from fault

    def _close_leaked(self, remote: SystemCalls, mappings: Sequence[Mapping]) -> None:
        if self._leaks and remote.thread.pid == self._process.pid:
            with self._process.translated("listing the descriptors of"):
                for fd in leaked_descriptors(self._process, self._process.pid, mappings):
                    close_descriptor(remote, fd)

    def _journals(self, mappings: Sequence[Mapping]) -> list[FoundJournal]:
        """Return the journals: those read before the stop where they are still what they were."""
        known = {journal.address: journal for journal in self._found}
        same = [known.get(address) for address in find_owners(self._process.mem, mappings)]
        if not all(journal is not None and journal_unchanged(self._process.mem, journal) for journal in same):
            self._found = find_journals(self._process.mem, mappings)
            self._begun = self._restored = False
            self._prepare()
            return self._found
        return [journal for journal in same if journal is not None]


def remove_everywhere(
    inodes: frozenset[int],
    sessions: frozenset[bytes] | None = None,
    patches: Callable[[], Sleepers] | None = None,
    *,
    but: int = 0,
    since: int = 0,
) -> tuple[list[Removal], list[str]]:
    """Remove sessions' splices from every process that maps one of their memfds, except process ``but``.

    Return what was done, and for each process in which it failed what stood in the way. Processes that end are no
    matter. Without ``sessions`` everything is removed from them, and from those that share what is found there.
    ``since``: those that started before this time are known to have none.
    """
    done: list[Removal] = []
    failed: list[str] = []
    seen = {but}
    for _ in range(_SCANS):
        fresh = [pid for pid in processes_with_splices(inodes, since) if pid not in seen]
        if not fresh:
            break
        for pid in fresh:
            seen.add(pid)
            try:
                process = Process.open(pid)
            except (NoSuchProcess, TargetExited):
                continue
            except AnyprobeError as error:
                failed.append(f"process {pid} {_still_probed(error)}")
                continue
            try:
                if sessions is None:
                    inodes |= {m.inode for m in process.mappings() if is_ours(m)}
                done.append(remove(process, sessions, patches))
            except TargetExited:
                continue
            except AnyprobeError as error:
                failed.append(f"process {pid} {_still_probed(error)}")
            finally:
                process.close()
    return done, failed


def _still_probed(error: Exception) -> str:
    return f"still has probes: {error}"
