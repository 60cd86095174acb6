"""Straight lines: instructions of a function that run one after the other, only the first of which may be entered."""

from bisect import bisect_left
from typing import Protocol

from anyprobe.binary.analysis.views import FunctionView
from anyprobe.isa.decode import FLOWS, Flow, Insn

FAR_ENOUGH = 32
"""How far after an instruction a jump that displaces it can reach, in bytes, with room to spare."""


class _Enterable(FunctionView, Protocol):
    """A function of which it can be asked what enters it."""

    @property
    def knows_leaders(self) -> bool: ...
    @property
    def leaders(self) -> frozenset[int]: ...
    def enterable(self, low: int, high: int) -> set[int]: ...


class StraightLines:
    """The straight lines of one function, as long as nothing changes about who enters it."""

    def __init__(self, function: _Enterable) -> None:
        """Begin with none: each is made when an instruction of it is asked for."""
        self._function = function
        self._whole: dict[int, tuple[int, tuple[Insn, ...]]] = {}
        """By the number of each instruction: that of the first one of its line, and the line."""

    def around(self, number: int, since: int) -> tuple[Insn, ...]:
        """Return the line of an instruction from ``since`` on, to ``FAR_ENOUGH`` bytes after its start at least."""
        function = self._function
        if function.knows_leaders:
            return self._part_of_whole(number, since)
        addresses = function.addresses
        first = last = number
        while first > 0 and addresses[first - 1] >= since and self._continues(first - 1):
            first -= 1
        end = addresses[number] + FAR_ENOUGH
        while last + 1 < len(addresses) and addresses[last + 1] < end and self._continues(last):
            last += 1
        for leader in function.enterable(addresses[first] + 1, addresses[last] + 1):
            place = function.index_of(leader)
            if place is not None and place <= number:
                first = max(first, place)
            elif place is not None:
                last = min(last, place - 1)
        return tuple(function.insn(n) for n in range(first, last + 1))

    def _part_of_whole(self, number: int, since: int) -> tuple[Insn, ...]:
        addresses = self._function.addresses
        first, line = self._whole.get(number) or self._make(number)
        low = bisect_left(addresses, since, first, number)
        high = bisect_left(addresses, addresses[number] + FAR_ENOUGH, number, first + len(line))
        return line[low - first : high - first]

    def _make(self, number: int) -> tuple[int, tuple[Insn, ...]]:
        function = self._function
        addresses, leaders = function.addresses, function.leaders
        first = last = number
        while first > 0 and addresses[first] not in leaders and self._continues(first - 1):
            first -= 1
        while last + 1 < len(addresses) and addresses[last + 1] not in leaders and self._continues(last):
            last += 1
        found = first, tuple(function.insn(n) for n in range(first, last + 1))
        self._whole.update(dict.fromkeys(range(first, last + 1), found))
        return found

    def _continues(self, number: int) -> bool:
        """Return whether a line goes on after an instruction and neither side is entered in its middle."""
        function = self._function
        overlapped = function.overlapped
        if overlapped and {function.addresses[number], function.ends[number]} & overlapped:
            return False
        if FLOWS[function.codes[number]] is Flow.NEXT:
            return True
        insn = function.insn(number)
        return insn.falls_through and not insn.is_call
