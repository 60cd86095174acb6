"""What the instructions of many functions do, found once for all that are of one shape."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.cfg import FunctionCode
from anyprobe.binary.instructionmasks import shape_number
from anyprobe.binary.survey import instruction_ends
from anyprobe.isa.effects import shape_of

if TYPE_CHECKING:
    from iced_x86 import Instruction
    from numpy.typing import NDArray

    from anyprobe.binary.fixpoint import Ints

_PORTION = 1_000_000
"""Instructions that are looked at together."""
_LONGEST = 7
"""Bytes of a shape that fit into a number beside their count. What is longer, as hardly any is, is looked at alone."""

_SPREAD_BITS, _SPREADING = 17, 0x9E3779B97F4A7C15
"""The size of a table, and what to multiply by so that the highest bits of all numbers differ (Fibonacci hashing)."""


class _Instructions:
    """The instructions of functions, one behind the other."""

    def __init__(self, functions: Sequence[FunctionCode], addresses: "Ints") -> None:
        self._all: list[Instruction] = list(chain.from_iterable(each.iced for each in functions))
        sizes = [len(each.addresses) for each in functions]
        contents = [each.content for each in functions]
        begins = np.cumsum([0, *map(len, contents)])[:-1] - np.array([each.start for each in functions], np.int64)
        self.codes: Ints = np.frombuffer(b"".join(each.codes for each in functions), np.uint16).astype(np.int64)
        self.lengths: Ints = instruction_ends(functions, addresses) - addresses
        self._content = b"".join(contents) + bytes(_LONGEST)
        self._places: Ints = addresses + np.repeat(begins, sizes)
        """Where the bytes of each begin in the content."""

    def column(self, name: str) -> "Ints":
        """Return an attribute of each."""
        return np.fromiter(map(attrgetter(name), self._all), np.int64, len(self._all))

    def at(self, number: int) -> "tuple[Instruction, bytes]":
        """Return one, and its bytes."""
        one, place = self._all[number], int(self._places[number])
        return one, self._content[place : place + one.len]

    def packed(self, lengths: "Ints") -> "Ints":
        """Return so many of the first bytes of each as a number, with their count above."""
        content = np.frombuffer(self._content, np.uint8)
        found = lengths << 8 * _LONGEST
        for step in range(_LONGEST):
            found |= np.where(step < lengths, content[self._places + step], 0).astype(np.int64) << 8 * step
        return found


def module_mask_numbers(functions: Sequence[FunctionCode], addresses: "Ints") -> "NDArray[np.int32]":
    """Return what each instruction of some functions does, as numbers in ``instructionmasks.MASKS``.

    Not all are looked at together: of a large library iced's instructions alone would take a gigabyte.
    """
    found = np.empty(len(addresses), np.int32)
    for first, behind, low, high in _portions(functions):
        found[low:high] = _mask_numbers(_Instructions(functions[first:behind], addresses[low:high]))
    return found


def _portions(functions: Sequence[FunctionCode]) -> "Iterator[tuple[int, int, int, int]]":
    """Yield which functions to look at together, and which of all instructions are theirs."""
    first = low = high = 0
    for number, each in enumerate(functions, 1):
        high += len(each.addresses)
        if high - low >= _PORTION or number == len(functions):
            yield first, number, low, high
            first, low = number, high


def _mask_numbers(found: _Instructions) -> "Ints":
    kinds = found.codes << 4 | found.column("memory_displ_size")
    lengths = found.lengths - _by_example(kinds, lambda number: _tail(*found.at(number)))
    short = lengths <= _LONGEST
    shapes = found.packed(np.where(short, lengths, 0))
    longer = np.flatnonzero(~short)
    shapes[longer] = -1 - longer  # nobody else's
    return _by_example(shapes, lambda number: shape_number(*found.at(number)))


def _tail(one: "Instruction", raw: bytes) -> int:
    return len(raw) - len(shape_of(one, raw))


def _by_example(kinds: "Ints", ask: "Callable[[int], int]") -> "Ints":
    """Return for each item what is said of one item of its kind.

    The kinds are spread over a table; a kind that shares its place there with another is tried again elsewhere. To sort
    them takes several times as long.
    """
    said = np.empty(len(kinds), np.int64)
    left, factor = np.arange(len(kinds)), _SPREADING
    table = np.zeros(1 << _SPREAD_BITS, np.int64)
    while len(left):
        places = (kinds[left].view(np.uint64) * np.uint64(factor) >> np.uint64(64 - _SPREAD_BITS)).astype(np.int64)
        table[places] = left
        examples = table[places]
        same = kinds[examples] == kinds[left]
        asked = np.zeros(len(kinds), np.bool_)
        asked[examples] = True
        chosen = np.flatnonzero(asked)
        said[chosen] = [ask(number) for number in chosen.tolist()]
        said[left[same]] = said[examples[same]]
        left, factor = left[~same], factor * _SPREADING % (1 << 64)
    return said
