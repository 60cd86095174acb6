"""Memory for the timed calls of Go functions: records that goroutines share, and the table of their open calls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.data.layouts.goroutines import SHARDS, TABLE_BYTES
from anyprobe.data.layouts.layout import NEXT_BLOCK, BankLayout
from anyprobe.journal.records import MappingUse
from anyprobe.splice.memory.arena import Arena, Piece
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.regions.banks import TIMING, Hook, demand, settle_in_slot_bank
from anyprobe.splice.regions.code_region import GoroutineBank

if TYPE_CHECKING:
    from anyprobe.splice.edits import Module
    from anyprobe.splice.regions.holdings import Holdings

_LEAST_RECORDS = 16
_OPEN = 1
"""What an open gate holds: no block pointer is compared with it."""


class GoroutineMemory:
    """What one change needs for timed calls of Go functions."""

    def __init__(self, holdings: "Holdings", *, nested: bool, nodes: int) -> None:
        """Need nothing yet. ``nested``: it is to be known which calls have made which; ``nodes``: of the call tree."""
        self._holdings, self._nested, self._nodes = holdings, nested, nodes if nested else 0
        self.layout: BankLayout | None = None
        """Layout of the bank that is missing, if one is."""
        self._number_at = 0
        self._pieces: tuple[Piece, Piece] | None = None

    def want(self, slotless: "Iterable[tuple[Module, Sequence[Hook]]]") -> None:
        """See what the hooks of modules without thread slots need; of these only Go's can be timed."""
        hooks: list[Hook] = []
        for module, own in slotless:
            timed = [hook for hook in own if hook.kind in TIMING]
            known = module.code.text.go_functions
            if timed and known is not None:
                self._number_at = known.number_at or 0
                hooks += timed
        need, banks = demand(hooks).records, self._holdings.goroutine_banks
        if need and (not banks or banks[-1].layout.records_left() < need):
            records = max(_LEAST_RECORDS, need * (1 + self._nested))
            self.layout = BankLayout(1, records, nested=self._nested, nodes=self._nodes, threads=SHARDS)

    def place(self, space: AddressSpace, offset: int) -> Sequence[Piece]:
        """Return where the missing memory is to be; ``offset`` is where its memfd part begins."""
        assert self.layout is not None
        pieces = []
        for size in (self.layout.size, TABLE_BYTES):
            place = space.quiet_gap(size)
            if place is None:
                raise TargetError("no free address space for the calls of goroutines")
            space.reserve(place, place + size)
            pieces.append(Piece(MappingUse.DATA, place, size, offset))
            offset += size
        self._pieces = pieces[0], pieces[1]
        return pieces

    def adopt(self, arena: Arena, mapped: Mapping[int, Piece]) -> None:
        """Make a bank of what is mapped: all of its blocks are in use from the beginning."""
        if self.layout is None or self._pieces is None:
            return
        records, table = (mapped[each.address] for each in self._pieces)
        arena.view(records.offset + NEXT_BLOCK, 8)[:] = (SHARDS - 1).to_bytes(8, "little")
        number = self._holdings.bank_number()
        bank = GoroutineBank(arena, records, self.layout, 0, _OPEN, number, table=table, number_at=self._number_at)
        self._holdings.goroutine_banks.append(bank)

    def settle(self, hooks: Sequence[Hook]) -> list[Hook]:
        """Give the timing hooks among some without a place one; return the others."""
        timed = [hook for hook in hooks if hook.kind in TIMING]
        if timed:
            settle_in_slot_bank(timed, self._holdings.goroutine_banks[-1])
        return [hook for hook in hooks if hook.kind not in TIMING]
