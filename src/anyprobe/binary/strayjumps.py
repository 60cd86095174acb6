"""Jumps of one function that may lead to any place in it, though they look like ends of it.

A jump through a pointer is a tail call where control comes to all of the function without it, and to its labels where
data or instructions name these. What only a distance names (LuaJIT adds it to a base at run time), nothing does: there
is code, then, to which nothing leads. Retpolines and ``push rdx; ret`` are such jumps in disguise.
"""

import re
from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING

from iced_x86 import Mnemonic

from anyprobe.core.cachedproperty import cached_property
from anyprobe.isa.decode import Flow

if TYPE_CHECKING:
    from anyprobe.binary.cfg import CodeMap
    from anyprobe.binary.function import FunctionCode

_PUSH_RET = re.compile(rb"[\x50-\x57]\xc3")
_THUNK_BYTES = 4
"""Bytes of a thunk in front of its return."""


def may_be_pushed(content: bytes) -> bool:
    """Return whether there may be ``push rdx; ret``."""
    return _PUSH_RET.search(content) is not None


class StrayJumps:
    """By the numbers of the instructions."""

    def __init__(self, code_map: "CodeMap", function: "FunctionCode") -> None:
        """Look at nothing before it is asked for."""
        self._map, self._function = code_map, function

    @cached_property
    def through_pointers(self) -> list[int]:
        """The indirect jumps that may lead to what nothing else leads to."""
        function = self._function
        jumps = function.pointer_jumps
        return jumps if jumps and not function.is_led_to else []

    @cached_property
    def disguised(self) -> list[int]:
        """What jumps where a pointer says and looks like a return, or like a jump out of the function."""
        function, thunks = self._function, self._map.thunks
        found: list[int] = []
        if may_be_pushed(function.content):
            found = [number for number, flow in function.turns if flow is Flow.RET and self._is_pushed(number)]
        if thunks:
            inside = thunks[bisect_left(thunks, function.start) : bisect_left(thunks, function.end)]
            places = (function.index_of(thunk + _THUNK_BYTES) for thunk in inside)
            through = (number for number, target in function.jumps if self._is_thunk(target))
            found = [*found, *(number for number in places if number is not None), *through]
        return found

    @cached_property
    def doubt(self) -> int | None:
        """The first of those, if it may stay inside; then nobody knows what is entered where."""
        function = self._function
        if not self.disguised:
            return None
        low, high = function.entry + 1, function.end
        named = chain(self._map.static_entries(low, high), self._map.references.addresses_into(low, high))
        if any(True for _ in named) or not function.leads_everywhere:
            return function.addresses[self.disguised[0]]
        return None

    @cached_property
    def own_labels(self) -> list[int]:
        """The pieces of the function of which it takes the address, those of its jump tables aside."""
        function = self._function
        if function.start not in self._map.self_takers:
            return []
        taken = self._map.taken_within(function.entry + 1, function.end)
        return sorted(at for at in taken - function.table_targets if function.is_boundary(at))

    def _is_pushed(self, number: int) -> bool:
        function = self._function
        above = function.iced[number - 1] if number else None
        return above is not None and above.mnemonic == Mnemonic.PUSH and not function.branches_to(above.next_ip)

    def _is_thunk(self, target: int) -> bool:
        """Return whether a function elsewhere does nothing but jump where a register says (a retpoline)."""
        start = self._map.start_of(target)
        if start is None or start == self._function.start:
            return False
        thunks, end = self._map.thunks, self._map.end_of(start)
        place = bisect_left(thunks, start)
        return place < len(thunks) and thunks[place] < end
