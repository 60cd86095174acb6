"""Direct branches, kept small: of a large library there are millions."""

from array import array
from collections.abc import Iterator, Sequence
from typing import overload


class Branches(Sequence[tuple[int, int]]):
    """The numbers of some instructions and where these lead: a twelfth of what as many tuples need."""

    __slots__ = ("numbers", "targets")

    def __init__(self) -> None:
        """Start with none."""
        self.numbers = array("I")
        self.targets = array("Q")

    def add(self, number: int, target: int) -> None:
        """Add one after the others."""
        self.numbers.append(number)
        self.targets.append(target)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.numbers)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (number, target) of each."""
        return zip(self.numbers, self.targets, strict=True)

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, int]]: ...

    def __getitem__(self, at: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        """Return (number, target) of one, or of some."""
        if isinstance(at, slice):
            return list(zip(self.numbers[at], self.targets[at], strict=True))
        return self.numbers[at], self.targets[at]
