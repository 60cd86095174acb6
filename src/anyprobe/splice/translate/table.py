"""The tables by which the signal view finds what to do: in code memory, which the program cannot write.

One table lies after the code of each code region. It grows from both ends: entries, one for each patch, sorted by
address since patches are written one after the other, and from the end downwards what many of them share: positions
and recipes. Entries become valid by one store of their number, so a reader on another thread sees all of one or none.

An index leads to the tables, and says where springboards are. It is replaced as a whole: its address is one word.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.translate.routine import LARGEST_JUMPS
from anyprobe.splice.translate.steps import STEP_BYTES, Positions, Recipe

_HEADER = 32
_COUNT, _SIZE, _ROOT = 0, 8, 16
_ENTRY = struct.Struct("<QIi")
_INDEX_ENTRY = struct.Struct("<QQ")
_STEP = struct.Struct("<BBHi")
_POSITION = struct.Struct("<HI")
_BANK = struct.Struct("<qQQ")
_REACH = 1 << 16
Rows = Sequence[tuple[int, bytes]]
"""Positions by their offsets."""


@dataclass(eq=False)
class ViewTable:
    """The table of one code region, as its writer sees it."""

    arena: Arena
    piece: Piece
    """The code memory whose end the table takes."""
    address: int
    _heap: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)
    _last: int = field(default=0, init=False)
    _kept: int = field(default=0, init=False)
    """Room for so many entries is not given away."""
    _recipes: dict[Recipe, int] = field(default_factory=dict, init=False)
    _positions: dict[bytes, int] = field(default_factory=dict, init=False)
    _banks: dict[tuple[int, int, int], int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Begin an empty table."""
        self._heap = self.size
        self._write(_SIZE, struct.pack("<Q", self.address - self.piece.address))

    @property
    def size(self) -> int:
        """Bytes of the table."""
        return self.piece.end - self.address

    @property
    def free(self) -> int:
        """Bytes that are not used."""
        return self._heap - _HEADER - self._count * _ENTRY.size

    @property
    def root(self) -> int:
        """Where the address of the index is, if this is the session's first table."""
        return self.address + _ROOT

    @property
    def code(self) -> range:
        """The code that it describes."""
        return range(self.piece.address, self.address)

    def expect(self, entries: int) -> None:
        """Keep room for entries that are about to be added."""
        self._kept = self._count + entries

    def bank(self, slot: int, gate: int, shared: int) -> int:
        """Return where a bank is described, relative to the table."""
        key = (slot, gate, shared)
        if key not in self._banks:
            self._banks[key] = self._take(_BANK.pack(*key)) or 0
        return self._banks[key]

    def rows(self, found: Positions) -> "Rows | None":
        """Write the recipes of some positions and return both as they are in the table; ``None``: there is no room."""
        made = []
        for offset, recipe in found.items():
            at = self._recipe(recipe)
            if not at or offset >= _REACH:
                return None
            made.append((offset, _POSITION.pack(offset, at)))
        return made

    def positions(self, found: Positions, shared: "Rows" = ()) -> int:
        """Return where some code's positions, and those that it shares, are written; 0 where there is no room."""
        own = self.rows(found)
        if own is None:
            return 0
        rows = sorted((*shared, *own))
        packed = struct.pack("<H", len(rows)) + b"".join([row for _, row in rows])
        known = self._positions.get(packed)
        if known is None:
            known = self._positions[packed] = self._take(packed) or 0
        return known

    def _recipe(self, recipe: Recipe) -> int:
        known = self._recipes.get(recipe)
        if known is None:
            content = b"".join(_STEP.pack(step.op, step.a, step.c, step.b) for step in recipe)
            assert len(content) == STEP_BYTES * len(recipe)
            known = self._recipes[recipe] = self._take(content) or 0
        return known

    def add(self, entries: Sequence[tuple[int, int, int]]) -> set[int]:
        """Add (address, positions, site) of code after all code that was added before, in order of address.

        Return the addresses of those for which there is no room.
        """
        fresh = [entry for entry in entries if entry[1] and entry[0] > self._last]
        room = max(self.free // _ENTRY.size, 0)
        fresh, left_out = fresh[:room], {address for address, _, _ in fresh[room:]}
        if not fresh:
            return left_out
        packed = b"".join(_ENTRY.pack(at, positions, site - at) for at, positions, site in fresh)
        self._write(_HEADER + self._count * _ENTRY.size, packed)
        self._count += len(fresh)
        self._last = fresh[-1][0]
        self._write(_COUNT, struct.pack("<Q", self._count))
        return left_out

    def index(self, entries: Sequence[tuple[int, int]]) -> int:
        """Write an index and return its address, 0 where there is no room.

        Its entries: (address, table's address or size of a piece that jumps on), sorted.
        """
        content = struct.pack("<QQ", len(entries), 0) + b"".join(_INDEX_ENTRY.pack(*entry) for entry in entries)
        at = self._take(content)
        return 0 if at is None else self.address + at

    def point_to(self, index: int) -> None:
        """Make an index valid, wherever it is: this is the session's first table."""
        with self.arena.view(self._offset(_ROOT), 8) as view, view.cast("Q") as word:
            word[0] = index  # one aligned store: signal handlers may be reading it

    def _take(self, content: bytes) -> int | None:
        """Write bytes into the heap and return where; ``None`` where there is no room."""
        at = (self._heap - len(content)) & -8
        if at < _HEADER + max(self._count, self._kept) * _ENTRY.size:
            return None
        self._heap = at
        self._write(at, content)
        return at

    def _offset(self, at: int) -> int:
        return self.piece.offset + self.address - self.piece.address + at

    def _write(self, at: int, content: bytes) -> None:
        if len(content) == 8:
            with self.arena.view(self._offset(at), 8) as view, view.cast("Q") as word:
                word[0] = int.from_bytes(content, "little")
            return
        self.arena.write(self.piece, self.address + at, content)


__all__ = ["LARGEST_JUMPS", "ViewTable"]
