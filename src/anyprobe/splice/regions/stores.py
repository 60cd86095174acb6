"""Memory that handlers write and the controller reads: aggregations, maps, rings, instances of calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyprobe.core.address import PAGE, page_ceil
from anyprobe.core.errors import TargetError
from anyprobe.journal.records import MappingUse, journal_size
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.memfd import map_arena
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.regions.access import Access

_JOURNAL_RECORDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A region of the target's memory that the controller sees, too; zeros at first."""

    arena: Arena
    piece: Piece

    @property
    def address(self) -> int:
        """Where it is in the target."""
        return self.piece.address

    def view(self) -> memoryview:
        """Return its bytes."""
        return self.arena.view(self.piece.offset, self.piece.size)

    def extents(self) -> Iterator[tuple[int, int]]:
        """Yield which of its pages hold data."""
        return self.arena.data_extents(self.piece.offset, self.piece.size)

    def allocate(self, offset: int, size: int) -> None:
        """Give a part of it memory before it is written."""
        self.arena.allocate(self.piece.offset + offset, size)


def map_stores(access: Access, sizes: Sequence[int]) -> list[Store]:
    """Map regions of some sizes, in one stop; only what is written takes memory."""
    if not sizes:
        return []
    process, holdings = access.process, access.holdings
    with process.exclusive():
        space = AddressSpace(process.mappings(), process.heap_start)
        pieces: list[Piece] = []
        offset = 0
        for size in map(page_ceil, sizes):
            place = space.quiet_gap(size)
            if place is None:
                raise TargetError("no free address space for what handlers collect")
            space.reserve(place, place + size)
            pieces.append(Piece(MappingUse.DATA, place, size, offset))
            offset += size
        anchor = pieces[0].address
        journal_at = space.gap_near(anchor, anchor + PAGE, journal_size(_JOURNAL_RECORDS + len(pieces) + 8))
        if journal_at is None:
            raise TargetError("no room for the journal in the target's address space")
        with access.stop("prepare") as stop, stop.remote() as remote:
            arena = map_arena(process, remote, holdings.owner, pieces, journal_at=journal_at, records=_JOURNAL_RECORDS)
            holdings.add_aside(arena)
    mapped = {piece.address: piece for piece in arena.pieces}
    return [Store(arena, mapped[piece.address]) for piece in pieces]
