"""The calls and system calls of one function behind which control does not go on, or may not."""

from typing import TYPE_CHECKING

from anyprobe.binary.oddends import SYSTEM_CALLS, comes_back, hops, is_system_call, system_call_line
from anyprobe.core.cachedproperty import cached_property

if TYPE_CHECKING:
    from iced_x86 import Instruction

    from anyprobe.binary.cfg import CodeMap
    from anyprobe.binary.function import FunctionCode


class LastCalls:
    """By the numbers of the instructions."""

    def __init__(self, code_map: "CodeMap", function: "FunctionCode") -> None:
        """Look at nothing before it is asked for."""
        self._map, self._function = code_map, function

    @cached_property
    def certain(self) -> frozenset[int]:
        """The calls that only push where data is, and the system calls that never come back."""
        function = self._function
        found = {
            number
            for number, target in function.calls
            if function.start < target < function.end and hops(function.iced[number], self._instruction_at)
        }
        return frozenset(found.union(number for number, back in self._system_calls.items() if back is False))

    @cached_property
    def possible(self) -> frozenset[int]:
        """What may not come back, that included: behind it may be data.

        But nothing that is not known well is taken for that in functions that hold no data.
        """
        function, code_map = self._function, self._map
        found = self.certain.union(number for number, target in function.calls if code_map.takes_return(target))
        if function.is_plain_code:
            return found
        found = found.union(number for number, back in self._system_calls.items() if back is None)
        return found.union(number for number, target in function.calls if target in code_map.endless)

    @cached_property
    def _system_calls(self) -> dict[int, bool | None]:
        """The system calls, and whether they come back."""
        function, found = self._function, dict[int, bool | None]()
        if not any(opcode in function.content for opcode in SYSTEM_CALLS):  # nearly all
            return found
        for number, _ in function.turns:
            if is_system_call(function.iced[number]):
                line = system_call_line(function.addresses[number], self._above, self._is_aim)
                behind = function.iced[number + 1] if number + 1 < len(function.iced) else None
                found[number] = comes_back(function.iced[number], line, behind)
        return found

    def _instruction_at(self, address: int) -> "Instruction | None":
        number = self._function.index_of(address)
        return None if number is None else self._function.iced[number]

    def _above(self, address: int) -> "Instruction | None":
        number = self._function.index_of(address)
        above = self._function.iced[number - 1] if number else None
        return above if above is not None and above.next_ip == address else None

    def _is_aim(self, address: int) -> bool:
        return bool(self._function.branches_to(address))
