"""Memory that a target sees in pieces and the controller as a whole, with a journal that lists the pieces."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.core.errors import InternalError
from anyprobe.journal.records import Journal, MappingUse, Record, RecordKind
from anyprobe.target.base import SharedMemory


@dataclass(frozen=True, slots=True)
class Piece:
    """One mapping of the target. ``offset`` is its place in the memfd; pieces may share pages of it."""

    use: MappingUse
    address: int
    size: int
    offset: int = 0
    spare: int = 0
    """Bytes of the memfd after it that are not mapped, but may be later."""

    @property
    def end(self) -> int:
        """End of the mapping."""
        return self.address + self.size

    def record(self) -> Record:
        """Return the journal's record of the mapping."""
        return Record(RecordKind.MAPPING, self.address, self.size, self.use)


class Arena:
    """Shared memory, its pieces in the target, and its journal."""

    def __init__(self, memory: SharedMemory, pieces: tuple[Piece, ...], journal: Journal) -> None:
        """Adopt what is mapped, or about to be."""
        self._memory, self.pieces, self.journal = memory, pieces, journal
        self.inode = memory.inode
        """By which its mappings in any process are recognised; 0 where there are none to be seen."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of it, shared with the target."""
        return self._memory.view(offset, size)

    def data_extents(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield which pages were ever written, as ranges relative to ``offset``; swapped-out ones too."""
        return self._memory.extents(offset, size)

    @property
    def descriptor(self) -> int:
        """The file, which another process may be given to read what is in it; -1 where there is none."""
        return self._memory.descriptor

    def allocate(self, offset: int, size: int) -> None:
        """Give bytes of it their memory now, if there is enough, so that their first user need not wait."""
        self._memory.allocate(offset, size)

    def give_back(self, offset: int, size: int) -> bool:
        """Give the memory of whole pages back, which are zeros from then on; return whether that could be."""
        return self._memory.give_back(offset, size)

    def write(self, piece: Piece, address: int, content: bytes) -> None:
        """Write into a piece by its address in the target; raise ``InternalError`` if that is not inside of it."""
        if not piece.address <= address <= address + len(content) <= piece.end:
            raise InternalError(f"{len(content)} bytes at {address:#x} are not in {piece}")
        self._memory.store(piece.offset + address - piece.address, content)

    def close(self) -> None:
        """Drop the controller's side."""
        self._memory.close()
