"""Arenas of processes: a memfd mapped piecewise into the target and, whole and writable, into the controller.

W^X holds in the target: code pieces are read+execute there, data pieces read+write. The journal comes first and lists
every other piece before it is mapped, so that a controller killed in the middle leaves nothing unlisted. The memfd is
a file descriptor of the target only while everything is stopped.
"""

import errno
import mmap
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import AnyprobeError, RemoteCallFailed
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.memfds import MEMFD_NAME, MEMFD_PATH, is_ours, written_extents
from anyprobe.journal.records import Journal, MappingUse, Owner, journal_size
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.target.base import ProcessFacts, SystemCalls
from anyprobe.target.remote.batch import BatchedCall, batch_code, capacity
from anyprobe.target.system import gateway, procfs
from anyprobe.target.system.procfs import Mapping

_EXECUTABLE = frozenset({MappingUse.CODE, MappingUse.SPRINGBOARD})
_SYS_MMAP, _SYS_MUNMAP, _SYS_CLOSE, _SYS_MADVISE, _SYS_MEMFD_CREATE = 9, 11, 3, 28, 319
_SYS_MREMAP, _SYS_MUNLOCK = 25, 150
_READ, _WRITE, _EXEC = 1, 2, 4
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NORESERVE, _FIXED_NOREPLACE = 1, 2, 0x10, 0x20, 0x4000, 0x100000
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10
_MADV_DONTDUMP, _MADV_WIPEONFORK = 16, 18
_EINVAL = 22

_PART_BYTES = 1 << 40
"""How much is mapped at a time of spare parts."""

_FORM = {
    MappingUse.JOURNAL: (_READ, _PRIVATE),
    MappingUse.CODE: (_READ | _EXEC, _SHARED),
    MappingUse.SPRINGBOARD: (_READ | _EXEC, _SHARED),
    MappingUse.DATA: (_READ | _WRITE, _SHARED | _NORESERVE),
    MappingUse.COUNTERS: (_READ | _WRITE, _SHARED | _NORESERVE),
}


def has_room() -> bool:
    """Return whether a file may be as large, and be mapped here, as copies for fork children make it."""
    limits = (resource.getrlimit(each)[0] for each in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS))
    return all(limit == resource.RLIM_INFINITY for limit in limits)


class Memfd:
    """A memfd as the controller has it mapped: an implementation of ``SharedMemory``."""

    def __init__(self, fd: int, size: int, spare: Iterable[tuple[int, int]] = ()) -> None:
        """Map a descriptor of the controller's, which this closes in the end.

        ``spare``: parts that are mapped when they are looked at, which few of them ever are. They may be larger than
        all that the controller can have mapped of several programs.
        """
        self.descriptor = fd
        self.inode = int(os.fstat(fd).st_ino)
        self._windows: list[tuple[int, int, mmap.mmap]] = []
        """What is mapped: from where to where in the file."""
        self._spare = sorted(spare)
        at = 0
        for start, end in (*self._spare, (size, size)):
            if start > at:
                self._map(at, start)
            at = end

    def _map(self, start: int, end: int) -> mmap.mmap:
        memory = gateway.mmap_shared(self.descriptor, end - start, start)
        self._windows.append((start, end, memory))
        return memory

    def _window(self, offset: int, size: int) -> tuple[mmap.mmap, int]:
        """Return the mapping that has some bytes, and where it begins in the file.

        All that is looked at of a spare part is of one size, of which its place there is a multiple. Several are mapped
        at a time, as each mapping takes a descriptor.
        """
        for start, end, memory in self._windows:
            if start <= offset and offset + size <= end:
                return memory, start
        if self.descriptor < 0:
            raise ValueError("the memory is closed")
        low, high = next((low, high) for low, high in self._spare if low <= offset < high)
        part = size * max(1, _PART_BYTES // size)
        start = low + (offset - low) // part * part
        return self._map(start, min(start + part, high)), start

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of it."""
        memory, start = self._window(offset, size)
        return memoryview(memory)[offset - start : offset - start + size]

    def store(self, offset: int, content: bytes) -> None:
        """Write bytes of it."""
        memory, start = self._window(offset, len(content))
        memory[offset - start : offset - start + len(content)] = content

    def extents(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield which of some pages were ever written, relative to ``offset``; all, where it is closed."""
        yield from written_extents(self.descriptor, offset, size) if self.descriptor >= 0 else ((0, size),)

    def allocate(self, offset: int, size: int) -> None:
        """Give bytes of it their memory now, if there is enough."""
        with suppress(OSError):
            os.posix_fallocate(self.descriptor, offset, size)

    def give_back(self, offset: int, size: int) -> bool:
        """Give the memory of whole pages back, which are zeros from then on; return whether that could be."""
        memory, start = self._window(offset, size)
        try:
            memory.madvise(mmap.MADV_REMOVE, offset - start, size)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Unmap and close it."""
        windows, self._windows = self._windows, []
        for _, _, memory in windows:
            with suppress(BufferError):  # counter views that a caller still holds keep the memory alive
                memory.close()
        fd, self.descriptor = self.descriptor, -1
        with suppress(OSError):
            gateway.close(fd)


def map_arena(
    process: ProcessFacts,
    remote: SystemCalls,
    owner: Owner,
    pieces: Sequence[Piece],
    *,
    journal_at: int,
    records: int,
) -> Arena:
    """Map all pieces; on any failure unmap what was mapped and raise.

    Piece offsets are relative to the end of the journal; a gate is followed by the piece that lies after it.
    Preconditions: everything that shares the address space is stopped; the addresses are free.
    """
    journal_bytes = journal_size(records + len(pieces) + 8)
    placed = [Piece(MappingUse.JOURNAL, journal_at, journal_bytes)]
    placed += [replace(p, offset=p.offset + journal_bytes) for p in pieces]
    size = page_ceil(max(p.offset + p.size + p.spare for p in placed))
    fd = -1
    try:
        remote_fd = _memfd(remote)
        fd = remote.open_descriptor(remote_fd)
        os.ftruncate(fd, size)
        journal = Journal(process.mem, journal_at, journal_bytes)
        spare = [(p.offset + p.size, p.offset + p.size + p.spare) for p in placed if p.spare]
        arena = Arena(Memfd(fd, size, spare), tuple(placed), journal)
        _map(arena, remote, remote_fd, owner)
    except BaseException:
        _undo(process, remote, fd, placed)
        if fd >= 0:
            gateway.close(fd)
        raise
    return arena


def _map(arena: Arena, remote: SystemCalls, remote_fd: int, owner: Owner) -> None:
    """Map the journal, write down what is to follow, and map that.

    The first executable piece is mapped by a call of its own, and holds the code that makes the others.
    """
    calls = _mapping_calls(arena.pieces, remote_fd, is_locked=procfs.locks_memory(remote.thread.pid))
    _make(remote, calls[arena.pieces[0]])
    arena.journal.begin(owner)
    arena.journal.add([piece.record() for piece in arena.pieces])
    home = max((p for p in arena.pieces if p.use in _EXECUTABLE), key=lambda piece: piece.size, default=None)
    if home is not None:
        _make(remote, calls[home][:1])
        calls[home] = calls[home][1:]
    rest = [call for piece in arena.pieces[1:] for call in calls[piece]]
    rest.append(BatchedCall(_SYS_CLOSE, (remote_fd,)))
    if home is None:
        _make(remote, rest)
    else:
        _make_at_once(arena, remote, rest, home)


def _make_at_once(arena: Arena, remote: SystemCalls, calls: Sequence[BatchedCall], home: Piece) -> None:
    each = capacity(home.size)
    for first in range(0, len(calls), each):
        batch = calls[first : first + each]
        code = batch_code(batch)
        arena.write(home, home.address, code)
        remote.run(batch, home.address)
        arena.write(home, home.address, bytes(len(code)))


def held_ranges(mappings: Iterable[Mapping], inode: int, gates: Iterable[int]) -> list[tuple[int, int]]:
    """Return what is mapped of one memfd, the journal last; ``gates`` are where its gate pages may be.

    A gate is anonymous: nothing in ``maps`` says whose it is. But it replaced the first page of the mapping after it,
    and the two are unmapped by one call. So while that mapping is there, the page before it is anyprobe's, and only
    then.
    """
    gates = frozenset(gates)
    found = sorted((m for m in mappings if m.inode == inode and is_ours(m)), key=lambda m: m.offset == 0)
    return [(m.start - PAGE if m.start - PAGE in gates else m.start, m.end) for m in found]


def leaked_descriptors(process: ProcessFacts, pid: int, mappings: Iterable[Mapping]) -> list[int]:
    """Return the descriptors that a session opened in a process and did not close; raise ``OSError``.

    ``pid``: the process itself, or another one in its memory.

    The target may be a controller itself, which needs the descriptors of the memfds that it maps.
    """
    own = {m.inode for m in mappings if m.path == MEMFD_PATH and not is_ours(m)}
    descriptors = process.descriptors(pid)
    return [fd for fd, path, inode in descriptors if path.removesuffix(" (deleted)") == MEMFD_PATH and inode not in own]


def unmap(remote: SystemCalls, low: int, high: int) -> None:
    """Unmap an anyprobe range from the target."""
    remote.syscall(_SYS_MUNMAP, low, high - low)


def close_descriptor(remote: SystemCalls, fd: int) -> None:
    """Close a descriptor of the target."""
    remote.syscall(_SYS_CLOSE, fd)


def drop_pages(remote: SystemCalls, address: int, size: int) -> None:
    """Give private pages that equal the file's back to the file (``MADV_DONTNEED``); locked ones stay copies."""
    try:
        remote.syscall(_SYS_MADVISE, address, size, 4)
    except RemoteCallFailed as error:
        if error.errno != errno.EINVAL:
            raise


def _undo(process: ProcessFacts, remote: SystemCalls, fd: int, placed: Sequence[Piece]) -> None:
    """Unmap and close what is there, which no failed call says; what fails twice stays listed in the journal."""
    gates = [piece.address for piece in placed if piece.use is MappingUse.GATE]
    for _ in range(2):
        with suppress(AnyprobeError, MemoryFault, OSError):
            remote.settle()
            mappings = process.mappings()
            if fd >= 0:  # nothing is mapped before the controller has opened the memfd
                for low, high in held_ranges(mappings, os.fstat(fd).st_ino, gates):
                    unmap(remote, low, high)
            for leaked in leaked_descriptors(process, remote.thread.pid, mappings):
                close_descriptor(remote, leaked)
            return


def _memfd(remote: SystemCalls) -> int:
    name = remote.place(MEMFD_NAME + b"\0")
    try:
        return remote.syscall(_SYS_MEMFD_CREATE, name, _MFD_CLOEXEC | _MFD_EXEC)
    except RemoteCallFailed as failure:
        if failure.errno != _EINVAL:
            raise
        return remote.syscall(_SYS_MEMFD_CREATE, name, _MFD_CLOEXEC)  # before Linux 6.3


def _mapping_calls(placed: Sequence[Piece], remote_fd: int, *, is_locked: bool) -> dict[Piece, list[BatchedCall]]:
    """Return the calls that make each mapping; ``is_locked``: what the process maps is in memory at once."""
    calls: dict[Piece, list[BatchedCall]] = {}
    gate: Piece | None = None
    for piece in placed:
        if piece.use is MappingUse.GATE:
            gate, calls[piece] = piece, []
            continue
        if is_locked and piece.use is MappingUse.DATA:
            made = _unlocked(piece, remote_fd)
        else:
            made = [_mmap(piece, remote_fd)] if gate is None else _after_gate(gate, piece, remote_fd)
        gate = None
        if piece.use in (MappingUse.DATA, MappingUse.COUNTERS):
            made.append(BatchedCall(_SYS_MADVISE, (piece.address, piece.size, _MADV_DONTDUMP)))
        calls[piece] = made
    return calls


def _after_gate(gate: Piece, piece: Piece, remote_fd: int) -> list[BatchedCall]:
    """Map a piece with a page of the memfd before it, and the gate over that page: see ``held_ranges``."""
    both = replace(piece, address=gate.address, size=gate.size + piece.size, offset=gate.offset)
    form = (_READ | _WRITE, _PRIVATE | _ANONYMOUS | _FIXED, (1 << 64) - 1, 0)
    return [
        _mmap(both, remote_fd),
        BatchedCall(_SYS_MMAP, (gate.address, gate.size, *form), gate.address),
        BatchedCall(_SYS_MADVISE, (gate.address, gate.size, _MADV_WIPEONFORK)),
    ]


def _unlocked(piece: Piece, remote_fd: int) -> list[BatchedCall]:
    """Map the first page of a piece and have it grow: what grows stays unlocked, and has no memory before it is used.

    Most of the piece never is: it has room for all that threads to come may count.
    """
    at = piece.address
    return [
        _mmap(replace(piece, size=PAGE), remote_fd),
        BatchedCall(_SYS_MUNLOCK, (at, PAGE)),
        BatchedCall(_SYS_MREMAP, (at, PAGE, piece.size, 0), at),
    ]


def _mmap(piece: Piece, remote_fd: int) -> BatchedCall:
    protection, flags = _FORM[piece.use]
    form = (protection, flags | _FIXED_NOREPLACE, remote_fd, piece.offset)
    return BatchedCall(_SYS_MMAP, (piece.address, piece.size, *form), piece.address)


def _make(remote: SystemCalls, calls: Sequence[BatchedCall]) -> None:
    """Make calls one by one. What FIXED_NOREPLACE, a hint before Linux 4.17, let through to another place is undone."""
    for call in calls:
        if remote.syscall(call.number, *call.arguments) != call.expected:
            raise RemoteCallFailed("mmap", errno.EEXIST, f"{call.expected:#x} was taken meanwhile")
