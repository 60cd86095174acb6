"""What one session has mapped in its target, under whose name, and which of its records list which splices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anyprobe.data.layouts.layout import BLOCK_TOP, DARK
from anyprobe.journal.records import Journal, Owner, Record
from anyprobe.splice.emitted import EmittedSplice
from anyprobe.splice.memory.arena import Arena

if TYPE_CHECKING:
    from anyprobe.splice.regions.code_region import CodeRegion, GoroutineBank, SlotBank


class SpliceRecords:
    """Which journal lists which splice by which record: what is known of a splice only once it is applied."""

    def __init__(self) -> None:
        """Nothing is listed yet."""
        self._numbers: dict[Journal, dict[EmittedSplice, int]] = {}

    def add(self, journal: Journal, splices: Sequence[EmittedSplice], records: Sequence[Record]) -> None:
        """Have a journal list splices, with one record each."""
        numbers = self._numbers.setdefault(journal, {})
        numbers.update(zip(splices, journal.add(records), strict=True))

    def know(self, journal: Journal, numbers: Mapping[EmittedSplice, int]) -> None:
        """Take note of splices that a journal lists already, by the numbers of their records."""
        self._numbers.setdefault(journal, {}).update(numbers)

    def forget(self) -> None:
        """Know of no splice any more: what the journals list stays as it is."""
        self._numbers = {}

    def clear(self, splices: Iterable[EmittedSplice]) -> None:
        """Have the journals list splices no more, those of them that are listed."""
        splices = list(splices)
        for journal, numbers in self._numbers.items():
            listed = [splice for splice in splices if splice in numbers]
            if listed:
                journal.clear([numbers[splice] for splice in listed])
                for splice in listed:
                    del numbers[splice]


class Holdings:
    """The arenas of a session, and the code memory and banks of counters that lie in them."""

    def __init__(self, owner: Owner) -> None:
        """Begin with nothing; ``owner`` is what the journals will say."""
        self.owner = owner
        self.arenas: list[Arena] = []
        """Splices are journalled in the last one, if it has room."""
        self.code_regions: list[CodeRegion] = []
        self.banks: list[SlotBank] = []
        self.goroutine_banks: list[GoroutineBank] = []
        self.fresh_since = 0
        """When the target's address space was new, in the kernel's ticks: no older process has it; 0: not known."""
        self._clock: tuple[Arena, int, int] | None = None
        self.is_nowhere = False
        """Whether no process has any of it in its memory, and so none ever will."""
        self.beside = frozenset[bytes]()
        """The sessions whose splices the target has inherited, and may keep."""
        self.slots_beside = frozenset[int]()
        """The words of threads that these use."""
        self.first_number = 0
        """The number after which threads are counted: handlers may be another session's, which has numbered others."""
        self.records = SpliceRecords()
        """What the journals say of splices."""

    def bank_number(self) -> int:
        """Return which word of every gate page the next bank has as its gate."""
        return len(self.banks) + len(self.goroutine_banks)

    def clock_word(self) -> "tuple[Arena, int, int] | None":
        """Return where it is said that the time stamp counter may not be read: arena, offset in it, address.

        It is in the header of the first bank if there is one when memory is first mapped, else in that of the first
        counters near code; None before that.
        """
        if self._clock is None:
            near = next((each.near for each in self.code_regions if each.near), None)
            bank, at = (self.banks[0], DARK) if self.banks else (near, BLOCK_TOP)  # nothing is timed by the near block
            if bank is not None:
                self._clock = bank.arena, bank.piece.offset + at, bank.piece.address + at
        return self._clock

    def note_clock_word(self) -> None:
        """Have all banks look at that word, those that have just been mapped too."""
        word = self.clock_word()
        if word is not None:
            for bank in (*self.banks, *self.goroutine_banks):
                bank.dark = word[2]
            for region in self.code_regions:
                if region.near is not None:
                    region.near.dark = word[2]

    def add(self, arena: Arena) -> None:
        """Take note of an arena whose journal is to list splices."""
        self.arenas.append(arena)

    def add_aside(self, arena: Arena) -> None:
        """Take note of an arena whose journal lists splices only when no other has room."""
        self.arenas.insert(0, arena)

    def journals(self) -> Iterator[Journal]:
        """Yield the journals, the one for splices first."""
        return (arena.journal for arena in reversed(self.arenas))

    def journal(self, records: int = 1) -> Journal | None:
        """Return the first journal with room for so many more records."""
        return next((each for each in self.journals() if each.room() >= records), None)

    def inodes(self) -> frozenset[int]:
        """Return the inodes by which the memory is known in whatever process maps it."""
        return frozenset(arena.inode for arena in self.arenas if arena.inode)

    def covers(self, address: int) -> bool:
        """Return whether an address lies in what is mapped."""
        return any(piece.address <= address < piece.end for arena in self.arenas for piece in arena.pieces)

    def close(self) -> None:
        """Drop the controller's side of all memory."""
        for arena in self.arenas:
            arena.close()
