"""Basic blocks: where the straight pieces of a function begin.

A block begins at the entry, where a jump, a table, a stored pointer or an exception leads, and behind every branch. A
call does not end a block: as a rule it comes back. Padding that nothing reaches is no block.
"""

from typing import TYPE_CHECKING

from anyprobe.binary.padding import padding_length
from anyprobe.isa.decode import Flow

if TYPE_CHECKING:
    from anyprobe.binary.cfg import CodeMap
    from anyprobe.binary.function import FunctionCode

_GOES_ON = frozenset({Flow.NEXT, Flow.CALL, Flow.INDIRECT_CALL, Flow.SYSCALL})


def block_starts(code_map: "CodeMap", function: "FunctionCode") -> tuple[int, ...]:
    """Return where the function's basic blocks begin, ascending; the first one behind ``endbr64``, as entry probes."""
    entered = code_map.entered(function.start + 1, function.end) | function.table_targets
    for insn in function.special:
        if insn.flow not in _GOES_ON and insn.end < function.end and not _is_padding(function, insn.end):
            entered.add(insn.end)
    found = {address for address in entered if address > function.entry and function.is_site(address)}
    return tuple(sorted({function.entry, *found}))


def calls_of(function: "FunctionCode") -> tuple[int, ...]:
    """Return the addresses of the function's call instructions, ascending."""
    return tuple(insn.address for insn in function.special if insn.is_call and function.is_site(insn.address))


def _is_padding(function: "FunctionCode", address: int) -> bool:
    number = function.index_of(address)
    return number is not None and padding_length(function.raw_at(number), 0) > 0
