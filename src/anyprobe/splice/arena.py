"""One memfd of ours mapped piecewise into the target and, whole and writable, into the controller.

W^X holds in the target: code pieces are read+execute there, data pieces read+write. The journal comes first and lists
every other piece before it is mapped, so that a controller killed in the middle leaves nothing unlisted. The memfd is
a file descriptor of the target only while everything is stopped.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from anyprobe.core.address import page_ceil
from anyprobe.core.errors import RemoteCallFailed
from anyprobe.splice.journal import Journal, MappingUse, Owner, Record, RecordKind, journal_size
from anyprobe.target import gateway
from anyprobe.target.process import Process
from anyprobe.target.remote import RemoteCalls

MEMFD_NAME = b"anyprobe"
_SYS_MMAP, _SYS_MUNMAP, _SYS_CLOSE, _SYS_MADVISE, _SYS_MEMFD_CREATE = 9, 11, 3, 28, 319
_READ, _WRITE, _EXEC = 1, 2, 4
_SHARED, _PRIVATE, _ANONYMOUS, _NORESERVE, _FIXED_NOREPLACE = 1, 2, 0x20, 0x4000, 0x100000
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10
_MADV_DONTDUMP, _MADV_WIPEONFORK = 16, 18
_EINVAL = 22

_FORM = {
    MappingUse.JOURNAL: (_READ, _PRIVATE),
    MappingUse.CODE: (_READ | _EXEC, _SHARED),
    MappingUse.SPRINGBOARD: (_READ | _EXEC, _SHARED),
    MappingUse.DATA: (_READ | _WRITE, _SHARED | _NORESERVE),
    MappingUse.COUNTERS: (_READ | _WRITE, _SHARED | _NORESERVE),
    MappingUse.GATE: (_READ | _WRITE, _PRIVATE | _ANONYMOUS),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One mapping of the target. ``offset`` is its place in the memfd; pieces may share pages of it."""

    use: MappingUse
    address: int
    size: int
    offset: int = 0

    @property
    def end(self) -> int:
        """End of the mapping."""
        return self.address + self.size

    def record(self) -> Record:
        """Return the journal's record of the mapping."""
        return Record(RecordKind.MAPPING, self.address, self.size, self.use)


class Arena:
    """A memfd, its pieces in the target, and its journal."""

    def __init__(self, fd: int, size: int, pieces: tuple[Piece, ...], journal: Journal) -> None:
        """Adopt what ``create`` made."""
        self._fd, self.size, self.pieces, self.journal = fd, size, pieces, journal
        self._memory = gateway.mmap_shared(fd, size)

    @property
    def inode(self) -> int:
        """Inode number of the memfd, by which its mappings in any process are recognised."""
        return int(os.fstat(self._fd).st_ino)

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of the memfd, shared with the target."""
        return memoryview(self._memory)[offset : offset + size]

    def write(self, piece: Piece, address: int, content: bytes) -> None:
        """Write into a piece by its address in the target."""
        start = piece.offset + address - piece.address
        self._memory[start : start + len(content)] = content

    def close(self) -> None:
        """Drop the controller's side."""
        with suppress(BufferError):  # counter views that a caller still holds keep the memory alive
            self._memory.close()
        with suppress(OSError):
            gateway.close(self._fd)

    @classmethod
    def create(
        cls,
        process: Process,
        remote: RemoteCalls,
        owner: Owner,
        pieces: Sequence[Piece],
        *,
        journal_at: int,
        records: int,
    ) -> "Arena":
        """Map all pieces; on any failure unmap what was mapped and raise.

        Piece offsets are relative to the end of the journal. Preconditions: everything that shares the address space is
        stopped; the addresses are free.
        """
        journal_bytes = journal_size(records + len(pieces) + 8)
        placed = [Piece(MappingUse.JOURNAL, journal_at, journal_bytes)]
        placed += [replace(p, offset=0 if p.use is MappingUse.GATE else p.offset + journal_bytes) for p in pieces]
        size = page_ceil(max(p.offset + p.size for p in placed))
        remote_fd = _memfd(remote)
        mapped: list[Piece] = []
        fd = -1
        try:
            # a vfork child shares the memory but has descriptors of its own
            fd = gateway.open_file(f"/proc/{remote.thread.pid}/fd/{remote_fd}", os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(fd, size)
            journal = _map_pieces(process, remote, remote_fd, placed, owner, mapped)
            remote.syscall(_SYS_CLOSE, remote_fd)
            return cls(fd, size, tuple(placed), journal)
        except BaseException:
            _undo(remote, remote_fd, mapped)
            if fd >= 0:
                gateway.close(fd)
            raise


def unmap(remote: RemoteCalls, piece: Piece) -> None:
    """Unmap one piece from the target."""
    remote.syscall(_SYS_MUNMAP, piece.address, piece.size)


def drop_pages(remote: RemoteCalls, address: int, size: int) -> None:
    """Give private pages that equal the file's back to the file (``MADV_DONTNEED``)."""
    remote.syscall(_SYS_MADVISE, address, size, 4)


def _undo(remote: RemoteCalls, remote_fd: int, mapped: list[Piece]) -> None:
    with suppress(Exception):
        for piece in reversed(mapped):
            unmap(remote, piece)
        remote.syscall(_SYS_CLOSE, remote_fd)


def _memfd(remote: RemoteCalls) -> int:
    name = remote.place(MEMFD_NAME + b"\0")
    try:
        return remote.syscall(_SYS_MEMFD_CREATE, name, _MFD_CLOEXEC | _MFD_EXEC)
    except RemoteCallFailed as failure:
        if failure.errno != _EINVAL:
            raise
        return remote.syscall(_SYS_MEMFD_CREATE, name, _MFD_CLOEXEC)  # before Linux 6.3


def _map_pieces(
    process: Process, remote: RemoteCalls, remote_fd: int, placed: list[Piece], owner: Owner, mapped: list[Piece]
) -> Journal:
    first = placed[0]
    _map(remote, first, remote_fd)
    mapped.append(first)
    journal = Journal(process.mem, first.address, first.size)
    journal.begin(owner)
    journal.add([piece.record() for piece in placed])
    for piece in placed[1:]:
        _map(remote, piece, remote_fd)
        mapped.append(piece)
        if piece.use is MappingUse.GATE:
            remote.syscall(_SYS_MADVISE, piece.address, piece.size, _MADV_WIPEONFORK)
        elif piece.use in (MappingUse.DATA, MappingUse.COUNTERS):
            remote.syscall(_SYS_MADVISE, piece.address, piece.size, _MADV_DONTDUMP)
    return journal


def _map(remote: RemoteCalls, piece: Piece, remote_fd: int) -> None:
    protection, flags = _FORM[piece.use]
    fd = -1 if flags & _ANONYMOUS else remote_fd
    address = remote.syscall(
        _SYS_MMAP, piece.address, piece.size, protection, flags | _FIXED_NOREPLACE, fd & (1 << 64) - 1, piece.offset
    )
    if address != piece.address:  # before Linux 4.17 the flag is a hint only
        remote.syscall(_SYS_MUNMAP, address, piece.size)
        raise RemoteCallFailed("mmap", 17, f"{piece.address:#x} was taken meanwhile")
