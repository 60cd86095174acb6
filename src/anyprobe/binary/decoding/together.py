"""What is known of functions whose instructions are kept together, as columns."""

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from anyprobe.binary.decoding.body import Body

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Column = tuple[Ints, Ints]
    """Numbers of instructions, ascending, and a value of each."""


class Stretch(NamedTuple):
    """Columns of the instructions of some functions, one after the other."""

    sizes: "NDArray[Any]"
    """The number of instructions of each function."""
    codes: "NDArray[np.uint16]"
    """What iced calls each instruction."""
    masks: "NDArray[np.int32]"
    """What each does, by number in ``instruction_masks.MASKS``."""
    ends: "Ints"
    lengths: "NDArray[Any]"
    jumps: "Column"
    """Numbers of the direct jumps, and where they lead."""
    calls: "Column"
    """Where direct calls lead, as ``jumps``."""


class Together(Protocol):
    """The instructions of some functions, of which each is asked for by its place among them."""

    def body(self, place: int) -> Body:
        """Return the instructions of a function."""
        ...

    def mask_numbers(self, place: int) -> "array[int]":
        """Return what each instruction of a function does, by number in ``instruction_masks.MASKS``."""
        ...

    def has_indirect_jumps(self, place: int) -> bool:
        """Return whether a function has indirect jumps."""
        ...

    def stretch(self, low: int, high: int) -> Stretch:
        """Return the instructions of the functions from one to before another."""
        ...


class Examined(Protocol):
    """A function that is told where its instructions are."""

    @property
    def start(self) -> int:
        """Where it begins."""
        ...

    @property
    def whole(self) -> bytes:
        """Its bytes, padding included."""
        ...

    def take(self, together: Together, place: int, end: int) -> None:
        """Take note of where its instructions are, and where the last one ends."""
        ...
