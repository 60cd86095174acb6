"""Straight lines: instructions of a function that run one after the other, only the first of which may be entered.

With the bytes after them that never run they are the room that a jump may take.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.objects.padding import ALIGNED, padding_length
from anyprobe.core.cachedproperty import cached_property
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import FLOWS, Flow, Insn

if TYPE_CHECKING:
    from anyprobe.binary.flow.reachability import Reachability

FAR_ENOUGH = 32
"""How far after an instruction a jump that displaces it can reach, in bytes, with room to spare."""


class _Enterable(FunctionView, Protocol):
    """A function of which it can be asked what enters it."""

    @property
    def reachability(self) -> "Reachability": ...

    @property
    def knows_leaders(self) -> bool: ...
    @property
    def leaders(self) -> frozenset[int]: ...
    def enterable(self, low: int, high: int) -> set[int]: ...


class StraightLines:
    """The straight lines of one function, as long as nothing changes about who enters it."""

    def __init__(self, module: ModuleView, function: _Enterable) -> None:
        """Begin with none: each is made when an instruction of it is asked for."""
        self._module, self._function = module, function
        self._whole: dict[int, tuple[int, tuple[Insn, ...]]] = {}
        """By the number of each instruction: that of the first one of its line, and the line."""

    def around(self, address: int, since: int = 0, reach: int = FAR_ENOUGH) -> tuple[Insn, ...]:
        """Return a straight line of instructions around one, of which only the first may be entered.

        It is as long as it can be from ``since`` on to ``reach`` bytes after the instruction's start. Where the control
        flow is not fully known every instruction is a line of its own. A call ends a line, since its return address is
        entered.
        """
        function = self._function
        number = function.index_of(address)
        if number is None or function.reachability.may_be_data(number):
            return ()
        if function.complete is not None or address in function.overlapped:
            return (function.insn(number),)
        if function.knows_leaders:
            return self._part_of_whole(number, since, reach)
        addresses = function.addresses
        first = last = number
        while first > 0 and addresses[first - 1] >= since and self._continues(first - 1):
            first -= 1
        end = addresses[number] + reach
        while last + 1 < len(addresses) and addresses[last + 1] < end and self._continues(last):
            last += 1
        for leader in function.enterable(addresses[first] + 1, addresses[last] + 1):
            place = function.index_of(leader)
            if place is not None and place <= number:
                first = max(first, place)
            elif place is not None:
                last = min(last, place - 1)
        return tuple(function.insn(n) for n in range(first, last + 1))

    def _part_of_whole(self, number: int, since: int, reach: int) -> tuple[Insn, ...]:
        addresses = self._function.addresses
        first, line = self._whole.get(number) or self._make(number)
        low = bisect_left(addresses, since, first, number)
        high = bisect_left(addresses, addresses[number] + reach, number, first + len(line))
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

    # -- bytes that never run

    @cached_property
    def last_bytes(self) -> int:
        """The number of bytes of the line that the code ends with, looked at a jump's length back; 0: there is none."""
        addresses = self._function.addresses
        run = self.around(addresses[-1], addresses[-1] - JUMP_BYTES) if addresses else ()
        return run[-1].end - run[0].address if run else 0

    @cached_property
    def padding_after(self) -> int:
        """The number of bytes after the function that are padding and that nothing enters."""
        module, function = self._module, self._function
        last = function.insn(len(function.addresses) - 1) if function.addresses else None
        if last is None:
            return 0
        ends = last.is_call and last.target in module.text.noreturn  # a jcc there goes on where it is not taken
        if last.falls_through and not ends:
            return 0
        length = module.entries.dead_bytes(function.end)
        if module.layout.start_of(function.end + length) == function.end + length:
            return length
        # more may be the nops that a function begins with of which nothing tells
        return min(length, -function.end & ALIGNED)

    def dead_bytes_after(self, address: int) -> int:
        """Return the number of padding bytes at ``address``, where the instruction above does not fall through."""
        function = self._function
        if address >= function.end:
            return self.padding_after if address == function.end else 0
        if function.complete is not None or address in function.leaders:
            return 0
        above = function.index_of(address)
        if above is None or above == 0 or function.insn(above - 1).may_go_on:
            return 0
        length = padding_length(function.content, address - function.start, zeros=False)
        length = next((i for i in range(length) if address + i in function.leaders), length)
        asked = length and not function.is_plain_code  # nothing reads plain code
        from anyprobe.binary.flow.evidence import Evidence

        read = self._module.analyses.get(Evidence).read_in(address, address + length) if asked else None
        return length if read is None else read - address
