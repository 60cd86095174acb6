"""The registrations: what is registered in a target, in its journals, for other processes that ask.

Splices are not probes: several probes share one, a return probe has many, a disabled one none. So each registered probe
has a word of its own at every place of it: the address, the letter of its kind as in the kernel's list, its own state.
Nothing is undone from these words, and a target whose controller died between arming and listing only lacks a line.
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.records import FoundJournal, Journal, Record, RecordKind

if TYPE_CHECKING:
    from anyprobe.target.base import Target
    from anyprobe.target.system.procfs import Mapping


class Installed(Protocol):
    """A session's target and journals, as far as they are still its own."""

    @property
    def process(self) -> "Target":
        """The target."""
        ...

    def journals(self) -> Iterator[Journal]:
        """Yield the journals, the first choice first."""
        ...

    def check_sessions(self, mappings: "Sequence[Mapping]") -> None:
        """Raise if the target is another session's, or this one's no more."""
        ...


WORDS = 7
"""In one record."""
_PAIR = struct.Struct("<QQ")
_LETTERS = ("", "k", "r", "j")
_KINDS = {letter: kind for kind, letter in enumerate(_LETTERS)}
_KIND_SHIFT, _DISABLED, _GONE = 56, 1 << 60, 1 << 61
_ADDRESS = (1 << _KIND_SHIFT) - 1


class Entry(NamedTuple):
    """A probe at one place of it."""

    address: int
    letter: str
    """``k``, ``r`` or ``j``, as in the kernel's list."""
    disabled: bool = False
    gone: bool = False

    @property
    def word(self) -> int:
        """Return what the journal has of it."""
        address, letter, disabled, gone = self
        return address | _KINDS[letter] << _KIND_SHIFT | _DISABLED * disabled | _GONE * gone

    @classmethod
    def of(cls, word: int) -> Self | None:
        """Return what a word means; the program may have damaged it."""
        kind = word >> _KIND_SHIFT & 0xF
        if not 0 < kind < len(_LETTERS):
            return None
        return cls(word & _ADDRESS, _LETTERS[kind], bool(word & _DISABLED), bool(word & _GONE))


def listed(journal: FoundJournal) -> list[Entry]:
    """Return what a journal says is registered."""
    found = []
    for record in journal.of(RecordKind.PROBES):
        words = (record.address, record.size, record.extra, *_pair(record.old), *_pair(record.new))
        found += [entry for entry in map(Entry.of, words) if entry is not None]
    return found


def records_for(words: int) -> int:
    """Return how many records hold so many words."""
    return -(-words // WORDS)


Words = Callable[[], Sequence[Entry]]


class Registrations:
    """What one session has registered, and where in its journals that is written."""

    def __init__(self, installed: Installed, is_over: Callable[[], bool]) -> None:
        """Begin without any; ``is_over`` tells whether the session was removed by another."""
        self._installed, self._is_over = installed, is_over
        self._sources: dict[Hashable, Words] = {}
        self._slots: dict[Hashable, list[int]] = {}
        """Which words are whose."""
        self._changed: dict[Hashable, None] = {}
        self._words: list[int] = []
        self._free: list[int] = []
        self._sheets: list[tuple[Journal, int]] = []
        """Where in which journal each seven words are."""

    def enter(self, key: Hashable, words: Words) -> None:
        """Have something listed from the next ``write`` on; ``words`` is asked then, and whenever it has changed."""
        self._sources[key] = words
        self._changed[key] = None

    def leave(self, keys: Iterable[Hashable]) -> None:
        """Have things listed no more."""
        for key in keys:
            if self._sources.pop(key, None) is not None:
                self._changed[key] = None

    def note(self, keys: Iterable[Hashable]) -> None:
        """Note that the state of some things may have changed."""
        self._changed.update(dict.fromkeys(key for key in keys if key in self._sources))

    def note_all(self) -> None:
        """Note that anything may have changed."""
        self.note(list(self._sources))

    def backlog(self) -> int:
        """Return how many words wait to be written."""
        return sum(len(self._sources[key]()) for key in self._changed if key in self._sources)

    def write(self) -> None:
        """Bring the journals up to date. What cannot be written now is tried again the next time."""
        installed = self._installed
        if not self._changed or self._is_over() or next(installed.journals(), None) is None:
            return
        # the probes themselves are in place, or out: nothing that fails here takes that back
        with suppress(TargetError, MemoryFault, OSError), collection_paused(), installed.process.exclusive():
            installed.check_sessions(installed.process.mappings())
            self._write()

    def _write(self) -> None:
        dirty: set[int] = set()
        for key in self._changed:
            slots = self._slots.pop(key, [])
            for slot in slots:
                self._words[slot] = 0
            self._free += reversed(slots)
            dirty.update(slot // WORDS for slot in slots)
        left: dict[Hashable, None] = {}
        for key in self._changed:
            words = [entry.word for entry in self._sources[key]()] if key in self._sources else []
            if words and not self._has_room(len(words)):
                left[key] = None  # until there is another journal
                continue
            slots = [self._free.pop() for _ in words]
            for slot, word in zip(slots, words, strict=True):
                self._words[slot] = word
            dirty.update(slot // WORDS for slot in slots)
            if slots:
                self._slots[key] = slots
        self._changed = left
        self._flush(dirty)

    def _has_room(self, words: int) -> bool:
        """See that there are so many free words; return whether there are."""
        missing = records_for(words - len(self._free))
        if missing <= 0:
            return True
        journal = next((each for each in self._installed.journals() if each.room() >= missing), None)
        if journal is None:
            return False
        first = len(self._words)
        indices = journal.add([Record(RecordKind.PROBES, 0, old=bytes(16), new=bytes(16))] * missing)
        self._sheets += [(journal, index) for index in indices]
        self._words += [0] * (missing * WORDS)
        self._free[:0] = range(len(self._words) - 1, first - 1, -1)
        return True

    def _flush(self, sheets: Iterable[int]) -> None:
        entries: dict[Journal, list[tuple[int, Record]]] = {}
        for sheet in sheets:
            journal, index = self._sheets[sheet]
            entries.setdefault(journal, []).append((index, self._record(sheet)))
        for journal, each in entries.items():
            journal.rewrite(each)

    def _record(self, sheet: int) -> Record:
        a, b, c, *rest = self._words[sheet * WORDS : (sheet + 1) * WORDS]
        return Record(RecordKind.PROBES, a, b, c, _PAIR.pack(*rest[:2]), _PAIR.pack(*rest[2:]))


def _pair(raw: bytes) -> tuple[int, int]:
    return _PAIR.unpack(raw) if len(raw) == _PAIR.size else (0, 0)
