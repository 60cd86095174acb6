"""Where the records of BTF begin: they have many sizes, and are numbered in their order.

One pass over all notes every so manyth one, and the functions. Of the kernel's own both are kept; others are found
from there.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from anyprobe.target.kernel import kept_content
from anyprobe.target.kernel.name_table import NameTable
from anyprobe.target.kernel.types import Tag

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

HEAD_WORDS = 3
_FIXED: dict[int, int] = {Tag.INT: 1, Tag.ARRAY: 3, Tag.VAR: 1, Tag.DECL_TAG: 1}
"""Words after a record's head, by kind."""
_EACH: dict[int, int] = {Tag.STRUCT: 3, Tag.UNION: 3, Tag.ENUM: 2, Tag.FUNC_PROTO: 2, Tag.DATASEC: 3, Tag.ENUM64: 3}
"""Words of each of a record's elements, by kind."""
_KIND_AND_COUNT = 0x1F00FFFF
_KIND_BITS = 24
_WORD = 4
_EVERY = 64
"""Records from one that is noted to the next."""
_KIND = f"types-{_EVERY}"
_KINDS, _FUNCTION = 31, int(Tag.FUNC)


class _Sizes(dict[int, int]):
    """The words of a record by its kind and count, as they stand in its second word."""

    def __missing__(self, information: int) -> int:
        kind, count = information >> _KIND_BITS, information & 0xFFFF
        self[information] = size = HEAD_WORDS + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * count
        return size


class FunctionNumbers:
    """The records of functions by name: they count from 0."""

    def __init__(self, content: memoryview) -> None:
        """Take what ``packed`` has made."""
        after = _WORD * (1 + int.from_bytes(content[:_WORD], "little"))
        self._numbers = content[_WORD:after].cast("I")
        self._names = NameTable(content[after:])

    @staticmethod
    def packed(numbers: "array[int]", names: list[bytes]) -> bytes:
        """Return the functions that have some numbers and names."""
        return len(numbers).to_bytes(_WORD, "little") + numbers.tobytes() + NameTable.packed(names)

    @classmethod
    def kept(cls, state: bytes) -> "FunctionNumbers | None":
        """Return those that are kept of types in some state."""
        known = kept_content.load_second(_KIND, state) if state else None
        return None if known is None else cls(known)

    def of(self, name: str) -> list[int]:
        """Return the records of a name."""
        return [self._numbers[each] for each in self._names.numbers(name)]


class Records:
    """The records of the kernel's types, or of a module's; they count from 0 here."""

    def __init__(
        self, content: bytes, names: Callable[["NDArray[np.uint32]"], list[bytes]], state: bytes = b""
    ) -> None:
        """Take the part of BTF that has the types.

        Args:
            content: that part.
            names: what returns the texts at some offsets.
            state: what says that the types are the same, to keep by what is found.
        """
        self._content, self._names, self._state = content, names, state
        self.words = array("I", content)
        self._sizes = _Sizes()

    @cached_property
    def _noted(self) -> tuple["array[int]", int, int]:
        """Where every so manyth record begins, how many there are, and where the last one ends."""
        known = None if not self._state else kept_content.load(_KIND, self._state)
        if known is not None:
            *places, count, at = array("I", bytes(known))
            return array("I", places), count, at
        noted, count, at = self._found[0]
        if self._state:
            kept_content.store(_KIND, self._state, array("I", [*noted, count, at]).tobytes(), self._packed)
        return noted, count, at

    @cached_property
    def functions(self) -> FunctionNumbers:
        """The functions by name."""
        return FunctionNumbers.kept(self._state) or FunctionNumbers(memoryview(self._packed))

    @property
    def _packed(self) -> bytes:
        _, numbers, starts = self._found
        names = self._names(np.frombuffer(self.words, np.uint32)[starts])
        return FunctionNumbers.packed(array("I", numbers.astype(np.uint32).tobytes()), names)

    @cached_property
    def _found(self) -> tuple[tuple["array[int]", int, int], "NDArray[np.int64]", "NDArray[np.int64]"]:
        """What is noted of all records, and the functions' numbers with the words at which they begin."""
        words = np.frombuffer(self.words, np.uint32)
        information = words[1 : max(1, len(words) - HEAD_WORDS + 2)]
        kinds, counts = information >> _KIND_BITS & _KINDS, information & 0xFFFF
        fixed, each = (np.array([table.get(kind, 0) for kind in range(_KINDS + 1)]) for table in (_FIXED, _EACH))
        sizes = HEAD_WORDS + fixed[kinds] + each[kinds] * counts
        after = array("I", (np.arange(len(sizes)) + sizes).astype(np.uint32).tobytes())  # of what may be a record
        starts, at, end = array("I"), 0, len(after)
        append = starts.append
        while at < end:
            append(at)
            at = after[at]
        places = np.frombuffer(starts, np.uint32).astype(np.int64)
        functions = np.flatnonzero(kinds[places] == _FUNCTION)
        return (starts[::_EVERY], len(starts), at), functions, places[functions]

    def __len__(self) -> int:
        """Return how many there are."""
        return self._noted[1]

    @property
    def are_whole(self) -> bool:
        """Whether the last one is all there."""
        return self._noted[2] == len(self.words)

    def _from(self, number: int) -> Iterator[int]:
        """Yield the word at which each record begins, from one that is noted on."""
        words, sizes, at = self.words, self._sizes, self._noted[0][number // _EVERY]
        while True:
            yield at
            at += sizes[words[at + 1] & _KIND_AND_COUNT]

    def start(self, number: int) -> int:
        """Return the word at which a record begins."""
        return next(islice(self._from(number), number % _EVERY, None))

    def kind_at(self, start: int) -> int:
        """Return the kind of the record that begins at a word."""
        return self.words[start + 1] >> _KIND_BITS & _KINDS

    def of(self, tags: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield the records of some kinds: numbers, and the words at which they begin."""
        if len(self):
            for number, start in zip(range(len(self)), self._from(0), strict=False):
                if self.kind_at(start) in tags:
                    yield number, start

    def with_text(self, offset: int, tags: Collection[int]) -> Iterator[int]:
        """Yield the numbers of the records of some kinds whose name is at an offset of the texts."""
        wanted = offset.to_bytes(_WORD, "little")
        at = self._content.find(wanted)
        while at >= 0:
            start = at // _WORD
            if not at % _WORD and start + 1 < len(self.words) and self.kind_at(start) in tags:
                number = self._number(start)
                if number is not None:
                    yield number
            at = self._content.find(wanted, at + 1)

    def _number(self, start: int) -> int | None:
        """Return the number of the record that begins at a word, None if none does."""
        first = (bisect_right(self._noted[0], start) - 1) * _EVERY
        for number, each in zip(range(first, len(self)), self._from(first), strict=False):
            if each >= start:
                return number if each == start else None
        return None

    def rest(self, start: int) -> list[int]:
        """Return the words of a record after its head."""
        return self.words[start + HEAD_WORDS : start + self._sizes[self.words[start + 1] & _KIND_AND_COUNT]].tolist()
