"""Where displaced instructions have gone: made when it is asked for, which is seldom, of patches by the thousand."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

from anyprobe.isa.lines import copies_of, count_of


class Places(Sequence[tuple[int, int]]):
    """(original address, address in the patch) of instructions."""

    __slots__ = ()

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the places of all."""

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, int]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        """Return a place by its number."""
        return tuple(self)[index]


class CopiedPlaces(Places):
    """(original address, address in the patch) of the instructions of a line with a shape; made when asked for."""

    __slots__ = ("_address", "_at", "_front", "_shape")

    def __init__(self, shape: int, address: int, at: int, front: int = 0) -> None:
        """Take where the line is and where the copies begin.

        ``front``: where the action before the first copy begins, if that counts. Without it what follows the last
        copy is among the places, too.
        """
        self._shape, self._address, self._at, self._front = shape, address, at, front

    def __len__(self) -> int:
        """Return the number of places."""
        return count_of(self._shape) + (not self._front)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the places."""
        places = copies_of(self._shape, self._address, self._at)
        if self._front:
            yield self._address, self._front
            places = islice(places, 1, len(self))
        yield from places
