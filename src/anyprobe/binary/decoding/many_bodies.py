"""Many functions examined together, and their instructions as columns, those of all of them one after the other."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.decoding.instruction_masks import mask_numbers
from anyprobe.binary.decoding.portion import Portion
from anyprobe.binary.decoding.together import Stretch
from anyprobe.core.checkpoints import checkpoint
from anyprobe.isa.decode import lengths_of

if TYPE_CHECKING:
    from anyprobe.binary.decoding.branches import Branches
    from anyprobe.binary.decoding.instructions import Instructions
    from anyprobe.binary.decoding.together import Column

_PORTION = 400_000
"""Instructions that are looked at together."""


def examine_together(functions: "Iterable[Instructions]") -> None:
    """Find the bodies of functions, which ascend. Those that do not decode plainly are left to look for themselves."""
    found: list[Instructions] = []
    lines: list[bytes] = []
    number = 0
    for each in functions:
        if each.is_examined or not each.whole:
            continue
        checkpoint()
        found.append(each)
        lines.append(lengths_of(each.whole, each.start))
        number += len(lines[-1])
        if number >= _PORTION:
            Portion(found, lines).hand_out()
            found, lines, number = [], [], 0
    if found:
        Portion(found, lines).hand_out()


def stretches(functions: "Sequence[Instructions]") -> Iterator[Stretch]:
    """Yield the instructions of some functions in their order, those of as many functions at once as is possible."""
    number = 0
    while number < len(functions):
        first, number = number, number + 1
        together, low = functions[first].examined or (None, 0)
        if together is None:
            yield _alone(functions[first])
            continue
        while number < len(functions) and functions[number].examined == (together, low + number - first):
            number += 1
        yield together.stretch(low, low + number - first)


def _alone(function: "Instructions") -> Stretch:
    """Return the instructions of a function that has looked for them itself."""
    ends = np.array(function.ends, np.int64)
    return Stretch(
        np.array([len(ends)]),
        np.array(function.codes, np.uint16),
        np.array(mask_numbers(function), np.int32),
        ends,
        ends - np.array(function.addresses, np.int64),
        _column(function.jumps),
        _column(function.calls),
    )


def _column(branches: "Branches") -> "Column":
    return np.array(branches.numbers, np.int64), np.array(branches.targets, np.uint64).astype(np.int64)
