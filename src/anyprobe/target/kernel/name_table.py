"""Many names in an order of their own, as one text and numbers: nothing is made of those that are not asked for."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    import numpy as np
else:
    from anyprobe.core.later import np

_WORD: Final = "I"
_WORD_BYTES: Final = 4
_ARRAYS: Final = 3


class NameTable:
    """Names by number, and numbers by name. A name has no end of a line in it, and may be there several times."""

    def __init__(self, content: memoryview) -> None:
        """Take what ``packed`` has made."""
        size = _WORD_BYTES * int.from_bytes(content[:_WORD_BYTES], "little")
        parts = [content[_WORD_BYTES + size * each :][:size].cast(_WORD) for each in range(_ARRAYS)]
        self._starts, self._hashes, self._numbers = parts
        self._text = bytes(content[_WORD_BYTES + size * _ARRAYS :])
        """The names, each with an end of a line before and after it."""

    @staticmethod
    def packed(names: Sequence[bytes]) -> bytes:
        """Return a table of some names."""
        hashes = np.fromiter(map(crc32, names), np.uint32, len(names))
        numbers = np.argsort(hashes, kind="stable").astype(np.uint32)
        sizes = np.fromiter(map(len, names), np.uint32, len(names)) + np.uint32(1)
        starts = np.cumsum(sizes, dtype=np.uint32) - sizes + np.uint32(1)
        head = len(names).to_bytes(_WORD_BYTES, "little")
        parts = (starts, hashes[numbers], numbers)
        return b"".join([head, *(part.tobytes() for part in parts), b"\n%s\n" % b"\n".join(names)])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._starts)

    def name(self, number: int) -> str:
        """Return the name of a number."""
        start = self._starts[number]
        return self._text[start : self._text.index(b"\n", start)].decode()

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of a name, in order."""
        wanted = name.encode()
        number = crc32(wanted)
        first, last = (edge(self._hashes, number) for edge in (bisect_left, bisect_right))
        found = self._numbers[first:last].tolist()
        return [each for each in found if self._text.startswith(wanted + b"\n", self._starts[each])]

    def starting(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the names that start with a text, with their numbers, in order."""
        if not text:
            yield from enumerate(self.names())
            return
        wanted = b"\n" + text.encode()
        at, number = self._text.find(wanted), 0
        while at >= 0:
            end = self._text.index(b"\n", at + 1)
            number = bisect_right(self._starts, at + 1, number) - 1
            yield number, self._text[at + 1 : end].decode()
            at = self._text.find(wanted, end)

    def names(self) -> list[str]:
        """Return all names, by number."""
        return self._text[1:-1].decode().split("\n") if len(self) else []
