"""Many functions examined together: what one pass over the instructions of each tells, found by arrays for all."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from iced_x86 import Code

from anyprobe.binary.decoding.body import Body, Facts
from anyprobe.binary.decoding.branches import Branches
from anyprobe.binary.decoding.instruction_kinds import codes_of, kinds_of, mask_numbers_of
from anyprobe.core.arrays import places_in
from anyprobe.isa.decode import CALLS, FLOWS, JUMPS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction
    from numpy.typing import NDArray

    from anyprobe.binary.decoding.instructions import Instructions

    Ints = NDArray[np.int64]

_PORTION = 400_000
"""Instructions that are looked at together: fewer than are kept."""
_FLOWS = np.array(FLOWS, np.uint8)
_IS_JUMP = np.array([flow in JUMPS for flow in Flow])
_IS_CALL = np.array([flow in CALLS for flow in Flow])
_IS_SHORT = np.zeros(len(FLOWS), np.bool_)
_IS_SHORT[[value for name, value in vars(Code).items() if isinstance(value, int) and "_REL8_" in name]] = True


def examine_together(functions: "Iterable[Instructions]") -> None:
    """Find the bodies of functions, which ascend. Those that do not decode plainly are left to look for themselves."""
    for portion in _portions(functions):
        _Portion(portion).hand_out()


def _portions(functions: "Iterable[Instructions]") -> "Iterator[list[tuple[Instructions, Sequence[Instruction]]]]":
    found: list[tuple[Instructions, Sequence[Instruction]]] = []
    number = 0
    for each in functions:
        line = () if each.is_examined else each.line
        if line:
            found.append((each, line))
            number += len(line)
        if number >= _PORTION:
            yield found
            found, number = [], 0
    if found:
        yield found


class _Portion:
    def __init__(self, found: "list[tuple[Instructions, Sequence[Instruction]]]") -> None:
        self._functions = [function for function, _ in found]
        instructions: list[Instruction] = list(chain.from_iterable(line for _, line in found))
        lengths = np.frombuffer(bytes(map(len, instructions)), np.uint8)
        self._firsts: Ints = np.cumsum([0, *(len(line) for _, line in found)])
        """The number of the first instruction of each function, and of all."""
        self._content = b"".join(function.content for function in self._functions)
        behind = np.cumsum(lengths, dtype=np.int64)
        starts = np.array([function.start for function in self._functions], np.int64)
        begins = (behind - lengths)[self._firsts[:-1]]
        self._moved: Ints = np.repeat(starts - begins, np.diff(self._firsts))
        """How far before its address the content has each instruction."""
        self._behind, self._ends = behind, behind + self._moved
        self._addresses: Ints = self._ends - lengths
        kinds = kinds_of(instructions, self._content, lengths)
        self._codes, self._masks = codes_of(kinds), mask_numbers_of(kinds)

    def hand_out(self) -> None:
        """Give the functions what was found of them, unless something about them is odd."""
        flows = _FLOWS[self._codes]
        turning = np.flatnonzero(flows)
        flows = flows[turning]
        is_jump, is_call = _IS_JUMP[flows], _IS_CALL[flows]
        jumps, calls = self._branches(turning[is_jump]), self._branches(turning[flows == Flow.CALL])
        after_calls = _Column(turning[is_call], self._ends[turning[is_call]], self._firsts)
        indirect = turning[flows == Flow.INDIRECT_JUMP]
        indirect_jumps = _Column(indirect, indirect, self._firsts)
        odd = self._odd(turning[flows == Flow.INVALID], turning[is_jump], jumps[1].values)
        for number, function in enumerate(self._functions):
            if odd[number]:
                continue
            first, end = int(self._firsts[number]), int(self._firsts[number + 1])
            facts = Facts(
                _branches(jumps, number),
                _branches(calls, number),
                [at - first for at in indirect_jumps.values[indirect_jumps.within(number)].tolist()],
                array("Q", after_calls.values[after_calls.within(number)].tobytes()),
                None,
                array("H", self._codes[first:end].tobytes()),
            )
            addresses = array("Q", self._addresses[first:end].tobytes())
            body = Body(None, facts, addresses, int(self._ends[end - 1]), frozenset(), None, None, has_gaps=False)
            function.take(body, array("i", self._masks[first:end].tobytes()))

    def _branches(self, numbers: "Ints") -> "tuple[_Column, _Column]":
        """Return the numbers in their functions of direct branches, and where they lead."""
        content, behind = np.frombuffer(self._content, np.uint8), self._behind[numbers]
        words = np.ndarray((len(content) - 3,), "<i4", buffer=content, strides=(1,)) if len(content) > 3 else content
        near = words[np.maximum(behind - 4, 0)].astype(np.int64)
        short = content.view(np.int8)[behind - 1].astype(np.int64)
        targets = self._ends[numbers] + np.where(_IS_SHORT[self._codes[numbers]], short, near)
        owners = np.searchsorted(self._firsts, numbers, "right") - 1
        within = (numbers - self._firsts[owners]).astype(np.uint32)
        return _Column(numbers, within, self._firsts), _Column(numbers, targets, self._firsts)

    def _odd(self, invalid: "Ints", jumps: "Ints", targets: "Ints") -> list[bool]:
        """Return of which functions not all decodes, or where a jump leads into the middle of an instruction."""
        owners = np.searchsorted(self._firsts, jumps, "right") - 1
        starts, ends = self._addresses[self._firsts[:-1]], self._ends[self._firsts[1:] - 1]
        inside = np.flatnonzero((targets >= starts[owners]) & (targets < ends[owners]))
        astray = inside[places_in(self._addresses, targets[inside]) < 0]
        found = np.zeros(len(self._functions), np.bool_)
        found[owners[astray]] = True
        found[np.searchsorted(self._firsts, invalid, "right") - 1] = True
        return found.tolist()


class _Column:
    """Values of some instructions, by function."""

    def __init__(self, numbers: "Ints", values: "NDArray[Any]", firsts: "Ints") -> None:
        self.values = values
        self._bounds: list[int] = np.searchsorted(numbers, firsts).tolist()

    def within(self, number: int) -> slice:
        """Return where the values of one function are."""
        return slice(self._bounds[number], self._bounds[number + 1])


def _branches(columns: tuple[_Column, _Column], number: int) -> Branches:
    numbers, targets = columns
    within = numbers.within(number)
    found = Branches()
    if within.start < within.stop:
        found.numbers.frombytes(numbers.values[within].tobytes())
        found.targets.frombytes(targets.values[within].tobytes())
    return found
