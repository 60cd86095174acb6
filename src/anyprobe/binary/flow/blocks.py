"""Basic blocks: where the straight pieces of a function begin.

A block begins at the entry, where a jump, a table, a stored pointer or an exception leads, and after every branch. A
call does not end a block: as a rule it comes back. Padding that nothing reaches is no block.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import pairwise

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.objects.padding import PADDING_BEGINS, is_padding
from anyprobe.isa.decode import Flow, flow_of

_GOES_ON = frozenset({Flow.NEXT, Flow.CALL, Flow.INDIRECT_CALL, Flow.SYSCALL})


def block_starts(code_map: ModuleView, function: FunctionView) -> tuple[int, ...]:
    """Return where the function's basic blocks begin, ascending; the first one after ``endbr64``, as entry probes."""
    entered = code_map.entries.entered(function.start + 1, function.end) | function.table_targets
    entry, start, end, ends, content = function.entry, function.start, function.end, function.ends, function.content
    aligned: list[int] = []
    for number, flow in function.turns:
        if flow in _GOES_ON or (flow is Flow.OTHER and flow_of(function.iced[number]) in _GOES_ON):
            continue
        after = ends[number]
        if after >= end:
            continue
        if content[after - start] in PADDING_BEGINS and _is_padding(function, after, number + 1):
            if flow is Flow.JCC:
                aligned.append(number + 1)
            continue
        entered.add(after)
    # assemblers keep branches apart by padding: what runs after it, and nothing else leads to, is a block as well
    entered.update([at for number in aligned if (at := _code_from(function, number, entered)) is not None])
    return tuple(sorted({entry, *function.sites_among(at for at in entered if at > entry)}))


def block_at(blocks: Sequence[int], address: int) -> int:
    """Return where the block begins in which an instruction is; what is before the first one is taken for that."""
    return blocks[max(bisect_right(blocks, address) - 1, 0)]


def run_starts(function: FunctionView, blocks: Collection[int]) -> tuple[int, ...]:
    """Return where what runs as a whole begins, ascending: ``blocks``, and what follows calls: these may not return."""
    after = {insn.end for insn in function.special if insn.is_call and insn.end < function.end}.difference(blocks)
    return tuple(function.sites_among({*blocks, *(at for at in after if _has_code(function, at, blocks))}))


def run_sizes(function: FunctionView, starts: Sequence[int]) -> list[int]:
    """Return how many bytes run as a whole from each of ``run_starts`` on: to the next branch, call, or start."""
    turns = [number for number, flow in function.turns if flow is not Flow.SYSCALL]
    found = []
    for start, following in pairwise([*starts, function.end]):
        turn = bisect_left(turns, bisect_left(function.addresses, start))
        end = function.ends[turns[turn]] if turn < len(turns) else following
        found.append(min(end, following) - start)
    return found


def _has_code(function: FunctionView, address: int, blocks: Collection[int]) -> bool:
    """Return whether there is more than padding up to the next block: calls that never return have that after them."""
    return _code_from(function, bisect_left(function.addresses, address), blocks) is not None


def _code_from(function: FunctionView, number: int, blocks: Collection[int]) -> int | None:
    """Return where code begins after padding from an instruction on, by its number; None: a block comes first."""
    for at in function.addresses[number:]:
        if at in blocks:
            return None
        if not is_padding(function.raw_at(number)):
            return at
        number += 1
    return None


def calls_of(function: FunctionView) -> tuple[int, ...]:
    """Return the addresses of the function's call instructions, ascending."""
    return tuple(function.sites_among(insn.address for insn in function.special if insn.is_call))


def conditional_jumps(function: FunctionView) -> tuple[int, ...]:
    """Return the addresses of the function's conditional jumps, ascending; not those of ``loop`` and ``jrcxz``."""
    jumps = (insn.address for insn in function.special if insn.flow is Flow.JCC and insn.condition is not None)
    return tuple(function.sites_among(jumps))


def _is_padding(function: FunctionView, address: int, number: int) -> bool:
    """Return whether the instruction with a number, if it starts at an address at all, is padding."""
    if number >= len(function.addresses) or function.addresses[number] != address:
        return False
    return is_padding(function.raw_at(number))
