"""The calls and system calls of one function after which control does not go on, or may not."""

from typing import TYPE_CHECKING, NamedTuple

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.flow.first_bytes import FirstBytes
from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions

if TYPE_CHECKING:
    from iced_x86 import Instruction


class LastCalls(NamedTuple):
    """By the numbers of the instructions."""

    certain: frozenset[int]
    """The calls that only push where data is, and the system calls that never come back."""
    possible: frozenset[int]
    """What may not come back, that included: after it may be data."""


_NONE = LastCalls(frozenset(), frozenset())


def last_calls(code_map: ModuleView, function: FunctionView) -> LastCalls:
    """Return them; nothing that is not known well is taken for one in functions that hold no data."""
    from anyprobe.binary.decoding.handwritten_calls import SYSTEM_CALLS, hops

    low, high, calls = function.start, function.end, function.calls
    places = _Places(function)
    found = [n for n, target in calls if low < target < high and hops(function.one(n), places.instruction_at)]
    takers = code_map.analyses.get(FirstBytes).taking_return({target for _, target in calls})
    taking = [number for number, target in calls if target in takers] if takers else []
    # nearly no function asks the kernel itself
    asking = any(opcode in function.content for opcode in SYSTEM_CALLS)
    system_calls = places.system_calls() if asking else {}
    if not found and not taking and not system_calls and function.is_plain_code:
        return _NONE
    certain = frozenset(found).union(number for number, back in system_calls.items() if back is False)
    possible = certain.union(taking)
    if function.is_plain_code:
        return LastCalls(certain, possible)
    possible = possible.union(number for number, back in system_calls.items() if back is None)
    never_back = code_map.analyses.get(NoReturnFunctions)
    return LastCalls(certain, possible.union(number for number, target in calls if target in never_back))


class _Places:
    def __init__(self, function: FunctionView) -> None:
        self._function = function

    def system_calls(self) -> dict[int, bool | None]:
        """Return the system calls, and whether they come back."""
        from anyprobe.binary.decoding.handwritten_calls import comes_back, is_system_call, system_call_line

        function, found = self._function, dict[int, bool | None]()
        for number, _ in function.turns:
            if is_system_call(function.one(number)):
                line = system_call_line(function.addresses[number], self._above, self._is_aim)
                after = function.iced[number + 1] if number + 1 < len(function.iced) else None
                found[number] = comes_back(function.iced[number], line, after)
        return found

    def instruction_at(self, address: int) -> "Instruction | None":
        number = self._function.index_of(address)
        return None if number is None else self._function.one(number)

    def _above(self, address: int) -> "Instruction | None":
        number = self._function.index_of(address)
        above = self._function.one(number - 1) if number else None
        return above if above is not None and above.next_ip == address else None

    def _is_aim(self, address: int) -> bool:
        return bool(self._function.branches_to(address))
