"""Whether fork children may make the system calls by which they come to blocks of their own: there they are timed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

from anyprobe.data.layouts.layout import BLOCK_REFUSED, CLOSED, UNWATCHED
from anyprobe.probes.providers.function.handlers.filter_watch import FilterWatch
from anyprobe.splice.edits import joined

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.edits import Edit
    from anyprobe.splice.processes import ProcessSplicing


class Adopting:
    """Lets fork children make them once it is seen that a program filters its own, which may punish them."""

    def __init__(self, splicing: "ProcessSplicing", objects: "ObjectTable") -> None:
        """Let no child make any yet."""
        self._splicing = splicing
        self._holdings, self._is_open = splicing.holdings, False
        self._filters = FilterWatch(splicing, objects, HeaderWord(self._closed_word), everywhere=True)

    def _closed_word(self) -> int:
        """Return the address of the word that says that children must make no system calls."""
        if self._holdings.banks:
            return self._holdings.banks[0].piece.address + CLOSED
        # threads have no slots after all, and no patch reads the word
        return next(each.near.piece.address for each in self._holdings.code_regions if each.near) + BLOCK_REFUSED

    def edits(self) -> "Sequence[Edit]":
        """Return the edits that watch for filters, to be made in one change with the first timing probes.

        Children that are forked from then on have both, or neither.
        """
        return self._filters.edits() if self._splicing.planning.slots else ()

    def with_edits(self, others: "Sequence[Edit]") -> "Sequence[Edit]":
        """Return edits with those, and have banks from now on serve fork children."""
        self._splicing.memory.adopt_children()
        return joined(others, self.edits())

    def settle(self) -> None:
        """After the change: let children make their system calls, if filters are seen."""
        if self._is_open or not self._holdings.banks or not self._filters.is_placed:
            return
        self._is_open = True
        bank = self._holdings.banks[0]
        word = bank.arena.view(bank.piece.offset + CLOSED, 8)
        if int.from_bytes(word, "little") == UNWATCHED:
            word[:] = bytes(8)

    def end(self) -> None:
        """Nothing is timed any more: take out what watches, and let no child make system calls."""
        if not self._holdings.banks:
            return
        bank = self._holdings.banks[0]
        bank.arena.view(bank.piece.offset + CLOSED, 8)[:] = UNWATCHED.to_bytes(8, "little")
        self._is_open = False
        self._filters.end()


class HeaderWord(Sequence[int]):
    """A word in the header of the first bank, which may be mapped in this change: where something is said to all."""

    def __init__(self, address: Callable[[], int]) -> None:
        """Take note of what returns its address, once memory is mapped."""
        self._address = address

    def __len__(self) -> int:
        """Return 1."""
        return 1

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        """Return its address."""
        return [self._address()][index]
