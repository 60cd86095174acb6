"""Functions that were examined together: columns of all their instructions, of which each makes its own when asked."""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Code

from anyprobe.binary.decoding.body import Body, Facts, ends_at
from anyprobe.binary.decoding.branches import Branches
from anyprobe.binary.decoding.instruction_kinds import codes_of, kinds_of, mask_numbers_of
from anyprobe.binary.decoding.together import Stretch
from anyprobe.core.arrays import places_in
from anyprobe.isa.decode import CALLS, FLOWS, JUMPS, Flow, constants, decode_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.decoding.together import Column, Examined, Ints

_FLOWS = np.array(FLOWS, np.uint8)
_IS_JUMP = np.array([flow in JUMPS for flow in Flow])
_IS_CALL = np.array([flow in CALLS for flow in Flow])
_IS_SHORT = np.zeros(len(FLOWS), np.bool_)
_IS_SHORT[[value for name, value in constants(Code).items() if "_REL8_" in name]] = True


class Portion:
    """The instructions of some functions, one after the other; each function's own are made of it when asked for."""

    def __init__(self, functions: "Sequence[Examined]", lines: list[bytes]) -> None:
        """Take the functions and the lengths of their instructions."""
        self._functions = functions
        self._content = b"".join(function.whole for function in functions)
        self._lengths = np.frombuffer(b"".join(lines), np.uint8)
        self._firsts: Ints = np.cumsum([0, *map(len, lines)])
        """The number of the first instruction of each function, and of all."""
        kinds = kinds_of(self._content, self._lengths)
        self._codes, self._masks = codes_of(kinds), mask_numbers_of(kinds)
        self._starts = np.array([function.start for function in functions], np.int64)
        until = np.cumsum(self._lengths, dtype=np.int64)
        ends = self._ends(0, len(functions))
        self._find_branches(until, ends)
        kept = self._without_padding(ends)
        if kept is not None:
            rows = np.flatnonzero(kept)
            self._lengths, self._codes, self._masks = self._lengths[rows], self._codes[rows], self._masks[rows]
            self._firsts = np.append(0, np.cumsum(kept))[self._firsts]
            ends = ends[rows]
            self._find_branches(until[rows], ends)
        flows = _FLOWS[self._codes]
        self._has_indirect = self._any_of(flows == Flow.INDIRECT_JUMP)
        odd = self._any_of(flows == Flow.INVALID)
        odd[self._owners(self._astray(ends))] = True
        self._is_odd: list[bool] = odd.tolist()
        self._content = b""

    def _ends(self, low: int, high: int) -> "Ints":
        """Return where the instructions end of the functions from one to before another."""
        firsts = self._firsts[low : high + 1]
        until = np.cumsum(self._lengths[firsts[0] : firsts[-1]], dtype=np.int64)
        begins = np.append(0, until)[firsts[:-1] - firsts[0]]
        until += np.repeat(self._starts[low:high] - begins, np.diff(firsts))
        return until

    def _find_branches(self, until: "Ints", ends: "Ints") -> None:
        """Find where direct branches lead; ``until`` says where in the content each instruction ends."""
        flows = _FLOWS[self._codes]
        self._jumps = self._targets(np.flatnonzero(_IS_JUMP[flows]), until, ends)
        self._calls = self._targets(np.flatnonzero(flows == Flow.CALL), until, ends)
        self._jumps_of, self._calls_of = (
            np.searchsorted(numbers, self._firsts).tolist() for numbers, _ in (self._jumps, self._calls)
        )

    def _targets(self, numbers: "Ints", until: "Ints", ends: "Ints") -> "Column":
        content, after = np.frombuffer(self._content, np.uint8), until[numbers]
        words = np.ndarray((len(content) - 3,), "<i4", buffer=content, strides=(1,)) if len(content) > 3 else content
        near = words[np.maximum(after - 4, 0)].astype(np.int64)
        short = content.view(np.int8)[after - 1].astype(np.int64)
        return numbers, ends[numbers] + np.where(_IS_SHORT[self._codes[numbers]], short, near)

    def _without_padding(self, ends: "Ints") -> "NDArray[np.bool_] | None":
        """Return which instructions are left without the padding at the ends of functions; ``None``: all of them."""
        stays = np.flatnonzero((_FLOWS[self._codes] != Flow.NEXT) & (self._codes != Code.INT3))
        until = self._firsts[1:]
        last = np.append(-1, stays)[np.searchsorted(stays, until)]
        kept = None
        for place in np.flatnonzero((last < until - 1) & (last >= self._firsts[:-1])).tolist():
            function, number = self._functions[place], int(last[place])
            end = int(ends[number])
            begin = end - int(self._lengths[number])
            one = decode_range(function.whole[begin - function.start : end - function.start], begin)[0]
            targets = self._jumps[1][self._jumps_of[place] : self._jumps_of[place + 1]]
            if ends_at(one, function.whole, function.start, targets.tolist()):
                kept = np.ones(len(self._codes), np.bool_) if kept is None else kept
                kept[number + 1 : until[place]] = False
        return kept

    def _any_of(self, said: "NDArray[np.bool_]") -> "NDArray[np.bool_]":
        """Return of which functions something is said of an instruction."""
        found: NDArray[np.bool_] = np.logical_or.reduceat(said, self._firsts[:-1])
        return found

    def _owners(self, numbers: "Ints") -> "Ints":
        found: Ints = np.searchsorted(self._firsts, numbers, "right") - 1
        return found

    def _astray(self, ends: "Ints") -> "Ints":
        """Return the jumps into the middle of an instruction."""
        numbers, targets = self._jumps
        owners = self._owners(numbers)
        inside = np.flatnonzero((targets >= self._starts[owners]) & (targets < ends[self._firsts[1:] - 1][owners]))
        found: Ints = numbers[inside[places_in(ends - self._lengths, targets[inside]) < 0]]
        return found

    def hand_out(self) -> None:
        """Tell the functions that what was found of them is here, unless something about them is odd."""
        ends = self._ends(0, len(self._functions))[self._firsts[1:] - 1].tolist()
        for place, function in enumerate(self._functions):
            if not self._is_odd[place]:
                function.take(self, place, ends[place])

    # -- what one function asks for

    def body(self, place: int) -> Body:
        """Return the instructions of a function."""
        first, end = self._firsts[place : place + 2].tolist()
        codes, lengths = self._codes[first:end], self._lengths[first:end]
        flows, ends = _FLOWS[codes], lengths.cumsum(dtype=np.int64)
        ends += self._starts[place]
        facts = Facts(
            _branches(self._jumps, first, self._jumps_of[place], self._jumps_of[place + 1]),
            _branches(self._calls, first, self._calls_of[place], self._calls_of[place + 1]),
            np.flatnonzero(flows == Flow.INDIRECT_JUMP).tolist() if self._has_indirect[place] else [],
            array("Q", ends[_IS_CALL[flows]].tobytes()),
            None,
            array("H", codes.tobytes()),
        )
        addresses = array("Q", (ends - lengths).tobytes())
        return Body(None, facts, addresses, int(ends[-1]), frozenset(), None, None, has_gaps=False)

    def mask_numbers(self, place: int) -> "array[int]":
        """Return what each instruction of a function does, by number in ``instruction_masks.MASKS``."""
        return array("i", self._masks[self._firsts[place] : self._firsts[place + 1]].tobytes())

    def has_indirect_jumps(self, place: int) -> bool:
        """Return whether a function has indirect jumps."""
        return bool(self._has_indirect[place])

    # -- what many functions are asked for at once

    def stretch(self, low: int, high: int) -> Stretch:
        """Return the instructions of the functions from one to before another."""
        first, end = self._firsts[[low, high]].tolist()
        jumps, calls = (
            (numbers[bounds[low] : bounds[high]] - first, targets[bounds[low] : bounds[high]])
            for (numbers, targets), bounds in ((self._jumps, self._jumps_of), (self._calls, self._calls_of))
        )
        rows = slice(first, end)
        sizes = np.diff(self._firsts[low : high + 1])
        lengths, ends = self._lengths[rows], self._ends(low, high)
        return Stretch(sizes, self._codes[rows], self._masks[rows], ends, lengths, jumps, calls)


def _branches(column: "Column", first: int, low: int, high: int) -> Branches:
    found = Branches()
    if low < high:
        numbers, targets = column
        found.numbers.frombytes((numbers[low:high] - first).astype(np.uint32).tobytes())
        found.targets.frombytes(targets[low:high].tobytes())
    return found
