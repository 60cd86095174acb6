"""Undoing splices from the journal alone: a session's own end, what a dead controller left, fork children.

Nothing here needs the state of the session that made the splices. What the journal says is compared with memory first:
bytes that are the splice's are restored, bytes that are the old ones are left, anything else is reported and left.
"""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from anyprobe.core.address import PAGE, page_floor
from anyprobe.core.errors import AnyprobeError, TargetError, TargetExited, UnsupportedTarget
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.splice.arena import MEMFD_NAME, Piece, drop_pages, unmap
from anyprobe.splice.journal import (
    FoundJournal,
    MappingUse,
    Owner,
    RecordKind,
    journal_unchanged,
    read_journal,
    read_owner,
)
from anyprobe.splice.savedpcs import saved_pcs
from anyprobe.splice.threadslot import clear_slots
from anyprobe.target import gateway, procfs
from anyprobe.target.process import Process
from anyprobe.target.procfs import Mapping
from anyprobe.target.remote import RemoteCalls
from anyprobe.target.stopping import Stop
from anyprobe.target.thread import Thread

_MEMFD_PATH = f"/memfd:{MEMFD_NAME.decode()}"
_QUIET_TRIES = 20
_CLOSE = 3


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


def find_journals(memory: Memory, mappings: Iterable[Mapping]) -> list[FoundJournal]:
    """Return all journals in an address space."""
    places = [m for m in mappings if m.path.startswith(_MEMFD_PATH) and m.perms == "r--p"]
    try:
        found = [read_journal(memory, m.start, m.end - m.start) for m in places]
    except MemoryFault as fault:
        raise TargetError(f"a journal cannot be read: {fault}") from fault
    return [journal for journal in found if journal is not None]


def find_owners(memory: Memory, mappings: Iterable[Mapping]) -> list[Owner]:
    """Return who wrote the journals in an address space."""
    places = [m for m in mappings if m.path.startswith(_MEMFD_PATH) and m.perms == "r--p"]
    try:
        found = [read_owner(memory, m.start) for m in places]
    except MemoryFault as fault:
        raise TargetError(f"a journal cannot be read: {fault}") from fault
    return [owner for owner in found if owner is not None]


def owner_alive(owner: Owner) -> bool:
    """Return whether the controller that wrote a journal still runs."""
    with suppress(OSError):
        stat = procfs.read_stat(owner.pid)
        return stat.start_time == owner.start_time and not stat.ended
    return False


def processes_with_splices(inodes: frozenset[int] | None = None) -> list[int]:
    """Return the processes that map a memfd of ours: any, or those with one of the given inodes (fork children too)."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with suppress(OSError):
            content = procfs.read_file(f"/proc/{name}/maps")
            if MEMFD_NAME not in content:
                continue
            # a controller maps the whole memfd readable and writable, and nothing else of it
            mapped = [m for m in procfs.parse_maps(content) if m.path.startswith(_MEMFD_PATH)]
            ours = [m for m in mapped if m.perms in ("r--p", "r-xs")]
            if any(inodes is None or m.inode in inodes for m in ours):
                found.append(int(name))
    return found


def remove(process: Process, sessions: frozenset[bytes] | None = None) -> Removal:
    """Restore all text, then unmap everything that is quiet; ``sessions`` limits it to some sessions' journals."""
    restored = _Restoration(process, sessions)
    with suppress(UnsupportedTarget):  # spliced over by another tool; found again once the text is restored
        process.gadgets()
    pause = 0
    kept: tuple[str, ...] = ()
    for attempt in range(_QUIET_TRIES):
        with process.stop() as stop:
            stop.verify()
            kept = restored.run(stop)
        pause = max(pause, stop.pause_us)
        if not kept:
            break
        time.sleep(0.0005 * (attempt + 1))  # threads leave a patch within nanoseconds unless they sleep in one
    return Removal(process.pid, restored.splices, tuple(restored.foreign), kept, pause)


class _Restoration:
    def __init__(self, process: Process, sessions: frozenset[bytes] | None) -> None:
        self._process, self._sessions = process, sessions
        self.splices = 0
        self.foreign: list[int] = []
        self._found: list[FoundJournal] = []
        with suppress(TargetError):  # read again in the stop, where a failure counts
            self._found = find_journals(process.mem, process.mappings())
        self._restored_pages: set[int] = set()
        self._restored = False

    def run(self, stop: Stop) -> tuple[str, ...]:
        """Do everything that is possible in one stop; return what is not quiet."""
        process = self._process
        mappings = process.mappings()
        found = self._journals(mappings)
        journals = [j for j in found if self._sessions is None or j.owner.session in self._sessions]
        others = [j for j in found if j not in journals]
        if not self._restored:
            self._restore(journals, mappings)
            self._restored = True
        pieces = _pieces(journals, mappings)
        fds = _leaked_descriptors(process.pid) if self._sessions is None else []
        if not others and self._sessions is None:
            pieces += _unlisted(mappings, pieces)
        if not pieces and not fds:
            return ()
        waiting = [parent.pc for parent in stop.waiting]
        busy = _busy(process.mem, stop.threads, waiting, pieces, mappings)
        if busy:
            return busy
        for journal in journals:
            for record in (r for _, r in journal.records if r.kind is RecordKind.BANK):
                slot, blocks = record.extra & 0xFFFFFFFF, record.extra >> 32
                with suppress(MemoryFault):
                    clear_slots(
                        process.mem, region=record.address, stride=record.size, blocks=blocks, slot=slot,
                        live=[thread.registers.fs_base for thread in stop.threads],
                    )  # fmt: skip
        with stop.remote() as remote:
            for fd in fds:
                remote.syscall(_CLOSE, fd)
            for low, size in _droppable(process, sorted(self._restored_pages), mappings):
                drop_pages(remote, low, size)
            self._unmap(remote, pieces)
        return ()

    def _journals(self, mappings: Sequence[Mapping]) -> list[FoundJournal]:
        """Return the journals: those read before the stop where they are still what they were."""
        places = [m for m in mappings if m.path.startswith(_MEMFD_PATH) and m.perms == "r--p"]
        known = {journal.address: journal for journal in self._found}
        try:
            same = [known.get(m.start) for m in places if read_owner(self._process.mem, m.start) is not None]
        except MemoryFault as fault:
            # An unread journal may list splices that lead into what the others would have unmapped.
            raise TargetError(f"a journal cannot be read: {fault}") from fault
        if not all(journal is not None and journal_unchanged(self._process.mem, journal) for journal in same):
            self._found = find_journals(self._process.mem, mappings)
            self._restored = False
            return self._found
        return [journal for journal in same if journal is not None]

    @staticmethod
    def _unmap(remote: RemoteCalls, pieces: list[Piece]) -> None:
        """Unmap everything, journals last, so that what a death leaves stays listed."""
        for piece in sorted(pieces, key=lambda piece: piece.use is MappingUse.JOURNAL):
            unmap(remote, piece)

    def _restore(self, journals: Sequence[FoundJournal], mappings: Sequence[Mapping]) -> None:
        """Write the old bytes back, heads first come first, one write per page."""
        memory = self._process.mem
        pages: dict[int, _Page] = {}
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
                if now == record.new:
                    page.after[offset : offset + len(record.old)] = record.old
                    page.low, page.high = min(page.low, offset), max(page.high, offset + len(record.old))
                    self.splices += 1
                elif now != record.old and record.address not in self.foreign:
                    self.foreign.append(record.address)
        for address, page in sorted(pages.items()):
            if page.high:
                memory.write(address + page.low, bytes(page.after[page.low : page.high]))
            self._restored_pages.add(address)


def _pieces(journals: Sequence[FoundJournal], mappings: Sequence[Mapping]) -> list[Piece]:
    """Return the journals' mappings that are really there; a journal's word alone is not enough to unmap anything."""
    pieces = []
    for journal in journals:
        for _, record in journal.records:
            if record.kind is not RecordKind.MAPPING:
                continue
            use = MappingUse(record.extra)
            for mapping in mappings:
                inside = mapping.start <= record.address and record.address + record.size <= mapping.end
                ours = mapping.path.startswith(_MEMFD_PATH)
                if use is MappingUse.GATE:  # anonymous: the very mapping, which merges with no other
                    whole = (mapping.start, mapping.end) == (record.address, record.address + record.size)
                    ours = not mapping.path and mapping.perms == "rw-p" and whole
                if ours and inside:
                    pieces.append(Piece(use, record.address, record.size))
    return pieces


def _unlisted(mappings: Iterable[Mapping], listed: Sequence[Piece]) -> list[Piece]:
    """Return mappings of ours that no journal lists: a controller died between the first mapping and its journal."""
    known = {piece.address for piece in listed}
    return [
        Piece(MappingUse.JOURNAL, m.start, m.end - m.start)
        for m in mappings
        if m.path.startswith(_MEMFD_PATH) and not any(m.start <= address < m.end for address in known)
    ]


def _leaked_descriptors(pid: int) -> list[int]:
    """Return descriptors of our memfd that a dead controller left open in the target."""
    found = []
    with suppress(OSError):
        for name in gateway.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if gateway.readlink(f"/proc/{pid}/fd/{name}").startswith(_MEMFD_PATH):
                    found.append(int(name))
    return found


def _busy(
    memory: Memory,
    threads: Iterable[Thread],
    waiting: Sequence[int],
    pieces: Sequence[Piece],
    mappings: Sequence[Mapping],
) -> tuple[str, ...]:
    """Return the code pieces that some thread is in, or will come back to from a signal handler."""
    import numpy as np

    code = sorted((p.address, p.end) for p in pieces if p.use in (MappingUse.CODE, MappingUse.SPRINGBOARD))
    if not code:
        return ()
    lows = np.array([low for low, _ in code], dtype=np.uint64)
    highs = np.array([high for _, high in code], dtype=np.uint64)
    busy: set[int] = set()
    for found in [waiting, *([t.registers.rip, *saved_pcs(memory, t, mappings).tolist()] for t in threads)]:
        words = np.array(found, dtype=np.uint64)
        words = words[(words >= lows[0]) & (words < highs.max())]
        index = np.searchsorted(lows, words, side="right") - 1
        busy.update(int(i) for i in index[words < highs[index]])
    return tuple(f"{code[i][0]:x}-{code[i][1]:x}" for i in sorted(busy))


def _droppable(process: Process, pages: Sequence[int], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
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
                content = gateway.pread(fd, size, mapping.offset + low - mapping.start)
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


def remove_everywhere(inodes: frozenset[int], sessions: frozenset[bytes]) -> list[Removal]:
    """Remove sessions' splices from every process that maps one of their memfds; processes that end are no matter."""
    done = []
    for pid in processes_with_splices(inodes):
        with suppress(TargetExited):
            try:
                process = Process.open(pid)
            except AnyprobeError:
                continue
            try:
                done.append(remove(process, sessions))
            finally:
                process.close()
    return done
