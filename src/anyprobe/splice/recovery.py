"""Undoing splices from the journal alone: a session's own end, what a dead controller left, fork children.

Nothing here needs the state of the session that made the splices. What the journal says is compared with memory first:
bytes that are the splice's are restored, bytes that are the old ones are left, anything else is reported and left.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from anyprobe.core.address import PAGE, page_floor
from anyprobe.core.errors import (
    AnyprobeError,
    NoSuchProcess,
    SessionConflict,
    StopTimeout,
    TargetError,
    TargetExited,
    UnsupportedTarget,
)
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.splice.arena import (
    close_descriptor,
    drop_pages,
    held_ranges,
    is_ours,
    leaked_descriptors,
    unmap,
)
from anyprobe.splice.asleep import Sleepers
from anyprobe.splice.deadjumps import leave, listed
from anyprobe.splice.installed import find_journals, find_owners, journal_places, processes_with_splices
from anyprobe.splice.journal import FoundJournal, MappingUse, RecordKind, journal_unchanged, mark_ended
from anyprobe.splice.livewrites import in_window
from anyprobe.splice.returnaddresses import restore_returns
from anyprobe.splice.savedpcs import Stacks
from anyprobe.splice.signalactions import has_traps, put_back, trapped
from anyprobe.splice.threadslot import clear_slots
from anyprobe.target import gateway
from anyprobe.target.exclusion import exclusive
from anyprobe.target.process import Process
from anyprobe.target.procfs import Mapping
from anyprobe.target.remote import RemoteCalls
from anyprobe.target.stopping import Stop, WaitingParent
from anyprobe.target.thread import Thread

_TRIES = 3
_PATIENCE = 2.0
_PAUSE = 0.002
_QUIET_TRIES = 20
_SCANS = 50
"""How often processes are looked for: each fork child that is found may have forked meanwhile."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed from one process."""

    pid: int
    splices: int
    foreign: tuple[int, ...]
    """Addresses whose bytes are neither ours nor the original ones; left alone."""
    kept: tuple[str, ...]
    """Mappings not yet quiet; the next ``detach`` removes them."""
    pause_us: int


@dataclass
class _Page:
    before: bytes
    after: bytearray = field(default_factory=bytearray)
    low: int = PAGE
    high: int = 0


def remove(
    process: Process, sessions: frozenset[bytes] | None = None, patches: Callable[[], Sleepers] | None = None
) -> Removal:
    """Restore all text, then unmap everything that is quiet; ``sessions`` limits it to some sessions' journals.

    Where ``patches`` are known, threads asleep in them go back to the system calls they were copied from.

    What fails once (a thread that would not stop in time) is tried again, and for a while what may do at another moment
    (no thread is where it can make calls). A typed error says that it still failed.
    """
    deadline = time.monotonic() + _PATIENCE
    for number in count(1):
        try:
            with exclusive(process), process.translated("removing probes from"):
                return _remove(process, sessions, patches)
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


def _remove(process: Process, sessions: frozenset[bytes] | None, patches: Callable[[], Sleepers] | None) -> Removal:
    restored = _Restoration(process, sessions)
    if not restored.has_work():
        return Removal(process.pid, 0, (), (), 0)
    with suppress(UnsupportedTarget):  # spliced over by another tool; found again once the text is restored
        process.gadgets()
    pause = 0
    kept: tuple[str, ...] = ()
    for attempt in range(_QUIET_TRIES):
        with process.stop() as stop:
            stop.verify()
            kept = restored.run(stop)
        pause = max(pause, stop.pause_us)
        if not kept and not restored.look_for_leaks():
            break
        if patches is not None:
            restored.sleepers = restored.sleepers or patches()
        time.sleep(0.0005 * (attempt + 1))  # threads leave a patch within nanoseconds unless they sleep in one
    if not restored.is_restored:
        raise StopTimeout(f"process {process.pid}: its text cannot be restored now: in the way is {', '.join(kept)}")
    if kept:
        restored.mark_ended()
    return Removal(process.pid, restored.splices, tuple(restored.foreign), kept, pause)


class _Restoration:
    def __init__(self, process: Process, sessions: frozenset[bytes] | None) -> None:
        self._process, self._sessions = process, sessions
        self.splices = 0
        self.foreign: list[int] = []
        self._found: list[FoundJournal] = []
        self._leaks = True
        """Whether there may be descriptors to close. They are looked for in the stop only then: it takes long."""
        with suppress(TargetError, OSError):  # read again in the stop, where a failure counts
            self._found = find_journals(process.mem, process.mappings())
        process.meets_traps |= has_traps(self._found)
        self.look_for_leaks()
        self._restored_pages: set[int] = set()
        self._restored = False
        self.sleepers: Sleepers | None = None

    @property
    def is_restored(self) -> bool:
        """Whether the text is the program's own again."""
        return self._restored

    def look_for_leaks(self) -> bool:
        """Return whether a session has left descriptors open, without stopping anything."""
        with suppress(TargetError, OSError):
            self._leaks = bool(leaked_descriptors(self._process.pid, self._process.mappings()))
        return self._leaks

    def has_work(self) -> bool:
        """Return whether anything of ours is there at all."""
        return self._leaks or any(is_ours(mapping) for mapping in self._process.mappings())

    def mark_ended(self) -> None:
        """Note in the journals that only memory is left: no later session need mind them."""
        for journal in self._meant(self._found):
            with suppress(TargetError, MemoryFault):
                mark_ended(self._process.mem, journal.address)

    def _meant(self, found: Iterable[FoundJournal]) -> list[FoundJournal]:
        """Return the journals of the sessions to be removed."""
        return [j for j in found if self._sessions is None or j.owner.session in self._sessions]

    def run(self, stop: Stop) -> tuple[str, ...]:
        """Do everything that is possible in one stop; return what is not quiet."""
        process = self._process
        mappings = process.mappings()
        found = self._journals(mappings)
        journals = self._meant(found)
        if not self._restored:
            held = tuple(leave(process.mem, listed(journals), stop))
            if held:
                return held
            self._restore(journals, mappings)
            self._restored = True
        if self.sleepers is not None:
            self.sleepers.wake_in_original(process.mem, stop.threads)
        ranges = ranges_of(journals, mappings)
        ranges += _unlisted(found, mappings, thorough=self._sessions is None)
        about_to = _about_to_call(process, stop.threads) or _on_our_stacks(ranges, stop.threads)
        if about_to or (not ranges and not self._leaks):
            return about_to
        busy = busy_code(process.mem, stop.threads, stop.waiting, code_of(ranges, mappings), mappings)
        busy += tuple(f"the trap handler for thread {tid}" for tid in trapped(journals, stop.threads))
        busy = busy or restore_returns(process, stop.threads, journals, mappings)
        if busy:
            return busy
        put_back(process, stop, journals, mappings)
        self._clear_slots(journals, stop.threads, mappings)
        with stop.remote() as remote:
            self._close_leaked(remote, mappings)
            for low, size in droppable(process, sorted(self._restored_pages), mappings):
                drop_pages(remote, low, size)
            for low, high in ranges:
                unmap(remote, low, high)
        return ()

    def _clear_slots(
        self, journals: Sequence[FoundJournal], threads: Sequence[Thread], mappings: Sequence[Mapping]
    ) -> None:
        def mapped(address: int) -> bool:
            return any(m.start <= address < m.end for m in mappings)

        for record in (r for journal in journals for _, r in journal.records if r.kind is RecordKind.BANK):
            slot, blocks = record.extra & 0xFFFFFFFF, record.extra >> 32
            if not mapped(record.address):  # unmapped by a removal that did not come to its end, and cleared before
                continue
            try:
                clear_slots(
                    self._process.mem, region=record.address, stride=record.size, blocks=blocks, slot=slot,
                    live=[thread.registers.fs_base for thread in threads], mapped=mapped,
                )  # fmt: skip
            except MemoryFault as fault:
                # Left behind, a slot would lead a later session's code into memory that is gone.
                raise TargetError(f"the slots of process {self._process.pid} cannot be cleared: {fault}") from fault

    def _close_leaked(self, remote: RemoteCalls, mappings: Sequence[Mapping]) -> None:
        if self._leaks and remote.thread.pid == self._process.pid:
            with self._process.translated("listing the descriptors of"):
                for fd in leaked_descriptors(self._process.pid, mappings):
                    close_descriptor(remote, fd)

    def _journals(self, mappings: Sequence[Mapping]) -> list[FoundJournal]:
        """Return the journals: those read before the stop where they are still what they were."""
        known = {journal.address: journal for journal in self._found}
        same = [known.get(address) for address in find_owners(self._process.mem, mappings)]
        if not all(journal is not None and journal_unchanged(self._process.mem, journal) for journal in same):
            self._found = find_journals(self._process.mem, mappings)
            self._restored = False
            return self._found
        return [journal for journal in same if journal is not None]

    def _restore(self, journals: Sequence[FoundJournal], mappings: Sequence[Mapping]) -> None:
        """Write the old bytes back, heads first come first, one write per page."""
        memory = self._process.mem
        pages: dict[int, _Page] = {}
        windows = windows_of(journals)
        for journal in journals:
            for _, record in journal.records:
                if record.kind is not RecordKind.SPLICE:
                    continue
                page = pages.get(page_floor(record.address))
                if page is None:
                    try:
                        before = memory.read(page_floor(record.address), PAGE)
                    except MemoryFault as fault:
                        if any(m.start <= record.address < m.end for m in mappings):
                            # The splice may still be there: nothing may be forgotten or unmapped.
                            raise TargetError(f"the text of process {self._process.pid} {fault}") from fault
                        continue  # the module was unmapped
                    page = pages[page_floor(record.address)] = _Page(before, bytearray(before))
                offset = record.address - page_floor(record.address)
                now = page.before[offset : offset + len(record.new)]
                ends = windows.get(record.address, [])
                if now == record.new or (ends and in_window(now, record.old, *ends)):
                    page.after[offset : offset + len(record.old)] = record.old
                    page.low, page.high = min(page.low, offset), max(page.high, offset + len(record.old))
                    self.splices += 1
                elif now not in (record.old, *ends) and record.address not in self.foreign:
                    self.foreign.append(record.address)
        for address, page in sorted(pages.items()):
            if page.high:
                memory.write(address + page.low, bytes(page.after[page.low : page.high]))
            self._restored_pages.add(address)


def windows_of(journals: Sequence[FoundJournal]) -> dict[int, list[bytes]]:
    """Return the bytes before and after of sites at which a change without a stop may have left an ``int3``."""
    found: dict[int, list[bytes]] = {}
    for record in (r for journal in journals for _, r in journal.records if r.kind is RecordKind.WINDOW):
        found.setdefault(record.address, []).extend((record.old, record.new))
    return found


def ranges_of(journals: Sequence[FoundJournal], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """Return what is mapped of the journals' memfds; a journal's word alone is not enough to unmap anything."""
    ranges = []
    for journal in journals:
        inode = next(m.inode for m in mappings if m.start == journal.address)
        records = (r for _, r in journal.records if r.kind is RecordKind.MAPPING)
        ranges += held_ranges(mappings, inode, [r.address for r in records if r.extra == MappingUse.GATE])
    return ranges


def _unlisted(found: Sequence[FoundJournal], mappings: Sequence[Mapping], *, thorough: bool) -> list[tuple[int, int]]:
    """Return mappings of ours that belong to no journal.

    A controller that dies between the first mapping and its header leaves that one alone: nothing leads there yet.
    Others cannot come about, but the program could damage what it finds; a ``thorough`` removal takes those too.
    """
    ours = [m for m in mappings if is_ours(m)]
    journals = {journal.address for journal in found}
    known = {m.inode for m in ours if m.start in journals}
    alone = [m.inode for m in ours]
    return [
        (m.start, m.end)
        for m in ours
        if m.inode not in known and (thorough or (m in journal_places([m]) and alone.count(m.inode) == 1))
    ]


def code_of(ranges: Sequence[tuple[int, int]], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """Return the ranges that can be run."""
    executable = {m.end for m in mappings if m.executable and is_ours(m)}
    return sorted((low, high) for low, high in ranges if high in executable)


def _about_to_call(process: Process, threads: Iterable[Thread]) -> tuple[str, ...]:
    """Return the threads in which a controller died before its call was made: they will make it when they run."""
    with suppress(UnsupportedTarget):
        gadgets = process.gadgets()
        back = (gadgets.restorer or gadgets.pop_rax).to_bytes(8, "little")
        return tuple(
            f"a call in thread {thread.tid}"
            for thread in threads
            if thread.registers.rip == gadgets.syscall_ret and process.mem.read(thread.registers.rsp, 8) == back
        )
    return ()


def _on_our_stacks(ranges: Sequence[tuple[int, int]], threads: Iterable[Thread]) -> tuple[str, ...]:
    """Return the deputies that a dead controller has left: they end when they run, and not without their stack."""
    return tuple(
        f"thread {thread.tid}, which is about to end"
        for thread in threads
        if any(low <= thread.registers.rsp < high for low, high in ranges)
    )


def busy_code(
    memory: Memory,
    threads: Iterable[Thread],
    waiting: Iterable[WaitingParent],
    code: Sequence[tuple[int, int]],
    mappings: Sequence[Mapping],
) -> tuple[str, ...]:
    """Return the ranges of code, of those given, that some thread is in or will come back to from a signal handler."""
    import numpy as np

    if not code:
        return ()
    lows = np.array([low for low, _ in code], dtype=np.uint64)
    highs = np.array([high for _, high in code], dtype=np.uint64)
    busy: set[int] = set()
    stacks = Stacks(memory, mappings)
    for found in [*map(stacks.words_behind, waiting), *map(stacks.code_words, threads)]:
        words = np.array(found, dtype=np.uint64)
        words = words[(words >= lows[0]) & (words < highs.max())]
        index = np.searchsorted(lows, words, side="right") - 1
        busy.update(int(i) for i in index[words < highs[index]])
    return tuple(f"{code[i][0]:x}-{code[i][1]:x}" for i in sorted(busy))


def droppable(process: Process, pages: Sequence[int], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """Return (address, size) of runs of restored pages that equal the file's and may be given back to it."""
    runs: list[tuple[int, int]] = []
    for mapping in mappings:
        inside = [page for page in pages if mapping.start <= page < mapping.end]
        if not inside or not mapping.path or mapping.writable or not mapping.private:
            continue
        fd = _mapped_file(process, mapping)
        if fd < 0:
            continue
        try:
            for low, size in _runs(inside):
                try:
                    content = gateway.pread(fd, size, mapping.offset + low - mapping.start)
                except OSError:  # a file that can be opened and not read (a stale handle): the pages stay copies
                    continue
                if content == process.mem.read(low, size):
                    runs.append((low, size))
                else:
                    runs += [
                        (page, PAGE) for page in range(low, low + size, PAGE) if _same(content, low, page, process)
                    ]
        finally:
            gateway.close(fd)
    return runs


def _same(content: bytes, low: int, page: int, process: Process) -> bool:
    return content[page - low : page - low + PAGE] == process.mem.read(page, PAGE)


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Join adjacent pages."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][0] + runs[-1][1] == page:
            runs[-1] = (runs[-1][0], runs[-1][1] + PAGE)
        else:
            runs.append((page, PAGE))
    return runs


def _mapped_file(process: Process, mapping: Mapping) -> int:
    """Return a descriptor of the very file that is mapped, -1 where it cannot be opened."""
    for path in (f"/proc/{process.pid}/map_files/{mapping.start:x}-{mapping.end:x}", process.root + mapping.path):
        with suppress(OSError):
            fd = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
            if gateway.fstat(fd).st_ino == mapping.inode:
                return int(fd)
            gateway.close(fd)
    return -1


def remove_everywhere(
    inodes: frozenset[int],
    sessions: frozenset[bytes] | None = None,
    patches: Callable[[], Sleepers] | None = None,
    *,
    but: int = 0,
) -> tuple[list[Removal], list[str]]:
    """Remove sessions' splices from every process that maps one of their memfds, except process ``but``.

    Return what was done, and for each process in which it failed what stood in the way. Processes that end are no
    matter. Without ``sessions`` everything is removed from them, and from those that share what is found there.
    """
    done: list[Removal] = []
    failed: list[str] = []
    seen = {but}
    for _ in range(_SCANS):
        fresh = [pid for pid in processes_with_splices(inodes) if pid not in seen]
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
