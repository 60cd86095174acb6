"""Whether an address in code that nothing lists is where a function begins.

What data has the address of may be an entry of a jump table, or in a fixed-address object any number; what only an
instruction takes the address of may be a table.
"""

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Mnemonic

from anyprobe.binary.decoding.stack_depth import Balance, balance, is_zeros
from anyprobe.binary.objects.padding import ALIGNED, padding_length
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import CALLS, FLOWS, JUMPS, Flow

if TYPE_CHECKING:
    from anyprobe.binary.discovery.gap_code import GapCode

ENDS = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.INVALID, Flow.TRAP, Flow.OTHER})
TAKERS = frozenset({Code.MOV_R32_IMM32, Code.MOV_RM64_IMM32, Code.MOV_R64_IMM64, Code.PUSHQ_IMM32})
"""What takes an address as a number."""
_LEADING = frozenset({Flow.CALL, Flow.JUMP})
"""What leads to functions and stubs that are known; conditional jumps hardly do."""
_CALL_BYTES = 5
_MOST_SEEN = 2000
_RET, _CALL_OR_JUMP = b"\xc3", b"\xe8\xe9"


class _Look(NamedTuple):
    """What the bytes at an address show, decoded as control would come to them."""

    makes_sense: bool
    refers: bool = False
    """Whether they call what is known to be a function, or read or write data."""
    end: int = 0


_NONSENSE = _Look(makes_sense=False)


class Judge:
    """Knows the signs by which starts are told from labels, tables and numbers."""

    def __init__(self, code: "GapCode", text: ModuleText, known: Container[int]) -> None:
        """Judge by what ``code`` has come to so far; ``known`` are functions that are listed, and stubs."""
        self._code, self._text, self._known = code, text, known
        self._balances: dict[int, Balance] = {}

    def looks_like_start(self, address: int, *, is_stored: bool) -> bool:
        """Return whether a function begins at an address that is stored, or that an instruction takes."""
        if address in self._code.labels or address in self._code.refused or address in self._code.middles:
            return False
        if self._code.gaps.number(address) is None:
            return False
        if address in self._code.reached and not self._is_after_call(address):
            return False
        if not self._may_begin(address, is_stored=is_stored):
            return False
        code = self._look(address)
        return code.makes_sense and (code.refers or (is_stored and self._is_set_apart(address, code.end)))

    def _may_begin(self, address: int, *, is_stored: bool) -> bool:
        """Return whether the stack is kept, and the code in front ends there."""
        if address not in self._balances:
            self._balances[address] = balance(address, self._code.gaps.instruction_at, self._code.seen)
        kept = self._balances[address]
        if not is_stored:
            certain = self._text.is_pie or not address & ALIGNED or self._code.above(address) is not None
            return kept is not Balance.BROKEN and certain and self._is_after_end(address)
        return kept is Balance.KEPT and (self._is_after_end(address) or self._seems_after_end(address))

    def _is_set_apart(self, address: int, end: int) -> bool:
        """Return whether what begins and ends at some addresses is aligned, as is what follows, by padding for code.

        A table may begin with bytes that decode to a small function, but has no such padding after them.
        """
        if address & ALIGNED:
            return False
        if self._code.gaps.number(end) is None:
            return True  # something else that is known begins there, or the section ends
        after = end + self._code.gaps.padding_at(end)
        return not after & ALIGNED and (after > end or after in self._code.starts)

    def _is_after_end(self, address: int) -> bool:
        """Return whether code may begin at an address: after padding, or after what does not go on."""
        above = self._code.above(address)
        if above is not None:
            return FLOWS[above.code] in CALLS | ENDS
        front = self._code.gaps.front(address, ALIGNED)
        if not front:
            return True
        starts = range(len(front)) if not address & ALIGNED else ()
        return any(padding_length(front, at, zeros=False) == len(front) - at for at in starts)

    def _seems_after_end(self, address: int) -> bool:
        """Return whether the bytes in front look like a return, a jump or a call (which may never return)."""
        front = self._code.gaps.front(address, _CALL_BYTES)
        if front[-1:] == _RET or len(front) < _CALL_BYTES or front[0] not in _CALL_OR_JUMP:
            return front[-1:] == _RET
        aim = address + int.from_bytes(front[1:], "little", signed=True)
        return any(aim in part for part in self._text.ranges)

    def _look(self, address: int) -> "_Look":
        """Return whether code, as which the bytes at an address decode, refers to what there is, and to nothing else.

        Displacements of 32 bits in what is no code lead nowhere, or beside it. It may not run on into what is known.
        """
        seen: set[int] = set()
        todo, is_meant, end = [address], False, address
        while todo:
            at, falls = todo.pop(), False
            while at not in seen:
                one = self._code.gaps.instruction_at(at)
                if falls and (at in self._code.starts or at in self._code.reached):
                    return _NONSENSE
                if one is None or one.code == Code.INVALID or one.is_privileged or is_zeros(one):
                    return _NONSENSE
                seen.add(at)
                end = max(end, one.next_ip)
                if len(seen) > _MOST_SEEN:
                    return _NONSENSE
                falls, flow = True, FLOWS[one.code]
                if flow in JUMPS or flow is Flow.CALL:
                    aim = one.near_branch_target
                    if not any(aim in part for part in self._text.ranges):
                        return _NONSENSE
                    is_listed = flow in _LEADING and self._code.gaps.number(aim) is None
                    is_meant = is_meant or is_listed or aim in self._code.starts or aim in self._known
                    if flow in JUMPS and self._code.gaps.number(aim) is not None and aim not in self._code.starts:
                        todo.append(aim)
                elif one.is_ip_rel_memory_operand:
                    if not self._memory_holds(one.memory_displacement):
                        return _NONSENSE
                    is_meant = is_meant or not any(one.memory_displacement in part for part in self._text.ranges)
                elif one.code in TAKERS and not self._text.is_pie:
                    number = one.immediate(one.op_count - 1) & 0xFFFF_FFFF
                    is_data = not any(number in part for part in self._text.ranges)
                    is_meant = is_meant or (is_data and self._memory_holds(number))
                if flow in ENDS:
                    break
                at = one.next_ip
                if flow in CALLS and (self._padded(at) or at in self._code.starts):
                    break
        return _Look(makes_sense=True, refers=is_meant, end=end)

    def _memory_holds(self, address: int) -> bool:
        try:
            return bool(self._text.memory.read(address, 1))
        except MemoryFault:
            return False

    def _padded(self, address: int) -> bool:
        one = self._code.gaps.instruction_at(address)
        return one is not None and one.mnemonic == Mnemonic.NOP

    def _is_after_call(self, address: int) -> bool:
        """Return whether control comes to an aligned instruction only from a call, which may never return."""
        one = self._code.above(address) if not address & ALIGNED and address not in self._code.aims else None
        return one is not None and FLOWS[one.code] in CALLS
