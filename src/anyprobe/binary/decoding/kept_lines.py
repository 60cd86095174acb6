"""Decoded instructions of many functions, of which only the last ones are kept: iced's take 64 bytes each."""

from collections import deque
from threading import Lock
from typing import Protocol

MOST = 1_000_000
"""Instructions that are kept: all of most modules; of larger ones those of the functions that were decoded last."""


class Decoded(Protocol):
    """A function whose instructions can be decoded again."""

    def drop_instructions(self) -> None:
        """Keep them no longer."""
        ...


class KeptLines:
    """Who has decoded instructions: the one that has had them longest drops them where there are too many."""

    def __init__(self) -> None:
        """Start with none."""
        self._held: deque[tuple[Decoded, int]] = deque()
        self._number = 0
        self._noting = Lock()

    def note(self, function: Decoded, number: int) -> None:
        """Take note that a function has decoded so many."""
        with self._noting:
            self._held.append((function, number))
            self._number += number
            while self._number > MOST and len(self._held) > 1:
                other, fewer = self._held.popleft()
                self._number -= fewer
                if other is not function:
                    other.drop_instructions()
