"""What is closed at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Its own context manager."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds."""

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, whatever happened."""
        self.close()
