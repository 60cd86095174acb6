"""Where displaced instructions have gone: made when it is asked for, which is seldom, of patches by the thousand."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

from anyprobe.isa.decode import Insn


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
    """(original address, address in the patch) of instructions that are copied as they are; made when asked for."""

    __slots__ = ("_at", "_bias", "_front", "_insns")

    def __init__(self, insns: Sequence[Insn], bias: int, at: int, front: int = 0) -> None:
        """Take where the copies begin; ``front``: where the action in front of the first one does, if that counts.

        Without it what follows the last copy is among the places, too.
        """
        self._insns, self._bias, self._at, self._front = insns, bias, at, front

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self._insns) + (not self._front)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the places."""
        first, last = self._insns[0], self._insns[-1]
        shift = self._at - first.address
        yield first.address + self._bias, self._front or self._at
        for insn in self._insns[1:]:
            yield insn.address + self._bias, insn.address + shift
        if not self._front:
            yield last.end + self._bias, last.end + shift
