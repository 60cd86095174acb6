"""Springboards: jumps at places that punned jumps can reach, leading on to far patches.

One physical page can stand at many addresses: pages mapped in one go share memfd pages where their offsets are free,
which costs no memory. Each page is a mapping of its own, and the kernel allows a process ``vm.max_map_count`` of them:
what comes on top of that fails, in the program, too. So half of what is left stays the program's.
"""

import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from anyprobe.core.address import PAGE
from anyprobe.core.errors import InternalError
from anyprobe.journal.records import MappingUse
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.space import HEAP_ROOM, AddressSpace
from anyprobe.splice.plan.drafts import AnySplice
from anyprobe.splice.plan.splices import Pun

_FAR_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip+0]
SPRINGBOARD_BYTES = len(_FAR_JUMP) + 8
_LINE = 64
"""Bytes of a cache line: a store within one is atomic."""
_WINDOWS = 64
"""How many places of a large range are tried."""


@dataclass(slots=True)
class _Physical:
    """A memfd page: which bytes are taken, and where it lies once it is mapped."""

    used: bytearray
    arena: Arena | None = None
    offset: int = 0


@dataclass
class Springboards:
    """All springboard pages of one target."""

    space: AddressSpace
    _pages: dict[int, _Physical] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _fresh: dict[int, _Physical] = field(default_factory=dict)
    _unwritten: set[int] = field(default_factory=set)
    """Taken by plans, and nothing written there yet."""
    _plans_on: Counter[int] = field(default_factory=Counter)
    """How many of those lie on a page."""
    room: int = sys.maxsize
    """How many pages may be mapped in the present change."""
    heap_room: int = HEAP_ROOM
    """Bytes above the heap that stay free for it to grow."""

    def look(self, space: AddressSpace, mappings: int, most: int) -> None:
        """See the address space as it is now; ``most``: how many mappings it may have, of which there are some."""
        self.space, self.room = space, max(most - mappings, 0) // 2

    def can_reach(self, base: int, count: int) -> bool:
        """Return whether a springboard may stand at some address in ``[base, base + count)``."""
        found = next(self._places(base, count), None)
        return found is not None and (found[0] in self._pages or len(self._fresh) < self.room)

    def choose(self, base: int, count: int) -> int | None:
        """Take an address in ``[base, base + count)`` for a springboard; pages already in use first."""
        for page, address in self._places(base, count):
            physical = self._pages.get(page) or self._new_page(page)
            offset = address - page
            physical.used[offset : offset + SPRINGBOARD_BYTES] = b"\1" * SPRINGBOARD_BYTES
            self._unwritten.add(address)
            self._plans_on[page] += 1
            return address
        return None

    def give_back(self, address: int) -> None:
        """Let others have a place that was chosen, unless something has been written there."""
        if address not in self._unwritten:
            return
        page, offset = address & -PAGE, address & (PAGE - 1)
        self._unwritten.remove(address)
        self._plans_on[page] -= 1
        physical = self._pages.get(page)
        if physical is None:
            return
        physical.used[offset : offset + SPRINGBOARD_BYTES] = bytes(SPRINGBOARD_BYTES)
        if page in self._fresh and not self._plans_on[page]:
            self._forget(page)

    def is_written(self, address: int) -> bool:
        """Return whether a springboard stands at an address, one that may be in use."""
        physical = self._pages.get(address & -PAGE)
        return physical is not None and bool(physical.used[address & (PAGE - 1)]) and address not in self._unwritten

    def reserve_fresh(self) -> None:
        """Keep everything else off the pages that are not mapped yet."""
        self.space.reserve_all((page, page + PAGE) for page in self._fresh)

    def pages(self) -> list[int]:
        """Return the pages in use."""
        return list(self._order)

    def is_fresh(self, page: int) -> bool:
        """Return whether a page was chosen that is not mapped yet."""
        return page in self._fresh

    def has_fresh(self) -> bool:
        """Return whether pages were chosen that are not mapped yet."""
        return bool(self._fresh)

    def fresh_pieces(self, offset: int) -> list[Piece]:
        """Return the pieces to map for pages chosen since the last call of ``mapped``, from memfd ``offset`` on."""
        shared: list[int] = []
        """What is taken of each memfd page, as a number."""
        pieces = []
        for page, physical in self._fresh.items():
            taken = int.from_bytes(physical.used)
            number = next((n for n, other in enumerate(shared) if not other & taken), len(shared))
            if number == len(shared):
                shared.append(0)
            shared[number] |= taken
            physical.offset = offset + PAGE * number
            pieces.append(Piece(MappingUse.SPRINGBOARD, page, PAGE, physical.offset))
        return pieces

    def mapped(self, arena: Arena) -> None:
        """Note that the fresh pages are mapped, by ``arena``."""
        shift, shared = arena.pieces[0].size, dict[int, _Physical]()
        for page, own in self._fresh.items():
            one = shared.setdefault(own.offset, _Physical(bytearray(PAGE), arena, own.offset + shift))
            one.used[:] = (int.from_bytes(one.used) | int.from_bytes(own.used)).to_bytes(PAGE)
            self._pages[page] = one
        self._fresh = {}

    def forget_fresh(self) -> None:
        """Forget pages that could not be mapped."""
        self.reserve_fresh()
        for page in list(self._fresh):
            self._forget(page)

    def _forget(self, page: int) -> None:
        del self._pages[page], self._fresh[page]
        del self._order[bisect_left(self._order, page)]

    def write(self, address: int, target: int) -> None:
        """Write the springboard at ``address``."""
        if address in self._unwritten:
            self._unwritten.remove(address)
            self._plans_on[address & -PAGE] -= 1
        physical = self._pages[address & -PAGE]
        assert physical.arena is not None
        start = physical.offset + (address & (PAGE - 1))
        with physical.arena.view(start, SPRINGBOARD_BYTES) as view:
            if bytes(view[: len(_FAR_JUMP)]) != _FAR_JUMP:
                view[:] = _FAR_JUMP + target.to_bytes(8, "little")
                return
            with view[len(_FAR_JUMP) :] as rest, rest.cast("Q") as word:
                word[0] = target  # it was used before: a thread on its way reads the old target or the new one

    @staticmethod
    def is_rewritable(address: int) -> bool:
        """Return whether the target of the springboard at an address can be changed by one atomic store."""
        return (address + len(_FAR_JUMP)) % _LINE <= _LINE - 8

    def _new_page(self, page: int) -> _Physical:
        """Add a page; which memfd page it shares is decided when it is mapped, so that plans can come and go."""
        physical = self._pages[page] = self._fresh[page] = _Physical(bytearray(PAGE))
        insort(self._order, page)
        return physical

    def _places(self, base: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield (page, address) that fit: on pages in use, then on pages that may be mapped."""
        end = base + count
        first = bisect_left(self._order, base & -PAGE)
        for page in self._order[first : bisect_left(self._order, end)]:
            address = self._free_address(self._pages[page].used, page, base, end)
            if address is not None:
                yield page, address
        last_page = (end - 1) & -PAGE
        step = max(PAGE, ((last_page - (base & -PAGE)) // _WINDOWS) & -PAGE)
        for page in self.space.free_pages(base & -PAGE, last_page + PAGE, step):
            low = max(base, page)
            if page not in self._pages and low + SPRINGBOARD_BYTES <= page + PAGE and low < end:
                yield page, low

    @staticmethod
    def _free_address(used: bytearray, page: int, base: int, end: int) -> int | None:
        low, high = max(base, page) - page, min(end, page + PAGE - SPRINGBOARD_BYTES + 1) - page
        gap = bytes(SPRINGBOARD_BYTES)
        at = used.find(gap, low, high + SPRINGBOARD_BYTES - 1)
        return None if at < 0 or at >= high else page + at


@dataclass(frozen=True, slots=True)
class PunPlaces:
    """The springboards as plans of one module see them: each takes its places, and may give them back."""

    springboards: Springboards
    bias: int

    def reachable(self, pun: Pun) -> bool:
        """Return whether a place is left for the springboard of a punned jump."""
        return self.springboards.can_reach(pun.base + self.bias, 256**pun.free)

    def take(self, splice: AnySplice) -> int:
        """Take a place for the springboard of a punned jump, the same as before if it had one, and return it."""
        pun, before = splice.pun, splice.springboard
        if pun is None or (before and self.springboards.is_written(before)):
            return before
        base, count = (before, 1) if before else (pun.base + self.bias, 256**pun.free)
        place = self.springboards.choose(base, count)
        if place is None:
            raise InternalError(f"no place is left for the springboard of the jump at {splice.head:#x}")
        return place

    def link_time(self, splice: AnySplice) -> int | None:
        """Return the link-time address of a splice's springboard, if it has its place."""
        return splice.springboard - self.bias if splice.springboard else None

    def give_back(self, splice: AnySplice) -> None:
        """Let others have the place of a springboard that was never written."""
        if splice.springboard:
            self.springboards.give_back(splice.springboard)
