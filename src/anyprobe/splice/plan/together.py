"""Functions that are planned together: what ends one has no room of its own, and the next begins right after it.

A splice at such an end needs bytes of the next function, whose entry is then spliced in a way that suits both. So the
two share one plan: what is wanted of either is planned anew with what is wanted of the other.
"""

from collections.abc import Sequence

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import page_floor
from anyprobe.isa.assemble import JUMP_BYTES

_MOST = 64
"""Functions of a few bytes each may follow one another."""


def first_of(code_map: CodeMap, function: FunctionCode) -> FunctionCode:
    """Return the first of the functions that are planned together with one."""
    for _ in range(_MOST):
        before = _in_front(code_map, function)
        if before is None:
            break
        function = before
    return function


def all_of(code_map: CodeMap, function: FunctionCode) -> tuple[FunctionCode, ...]:
    """Return all functions that are planned together with one, in address order."""
    found = [first_of(code_map, function)]
    while len(found) <= _MOST and (after := _after(code_map, found[-1])) is not None:
        found.append(after)
    return tuple(found)


def member_at(members: Sequence[FunctionCode], address: int) -> FunctionCode:
    """Return which of some functions an instruction belongs to, parts elsewhere included."""
    if len(members) == 1:
        return members[0]
    inside = (each for each in members if each.start <= address < each.end)
    found = next(inside, None) or next(
        (each for each in members if any(part.start <= address < part.end for part in each.parts)), None
    )
    return found or members[0]


def _in_front(code_map: CodeMap, function: FunctionCode) -> FunctionCode | None:
    alone = code_map.text.is_go or function.is_nameless
    start = None if alone else code_map.layout.start_of(function.start - 1)
    before = code_map.function_at(start) if start is not None else None
    if not isinstance(before, FunctionCode) or before.end != function.start:
        return None
    return before if _is_cramped(function) or _ends_without_room(before) else None


def _after(code_map: CodeMap, function: FunctionCode) -> FunctionCode | None:
    if code_map.text.is_go or function.is_nameless or code_map.layout.start_of(function.end) != function.end:
        return None
    after = code_map.function_at(function.end)
    if not isinstance(after, FunctionCode):
        return None
    return after if _is_cramped(after) or _ends_without_room(function) else None


def _is_cramped(function: FunctionCode) -> bool:
    """Return whether nothing in a function can be evicted for its entry: it is too small, or a page ends."""
    start = function.entry
    return function.end - start < 2 * JUMP_BYTES or page_floor(start) != page_floor(start + JUMP_BYTES - 1)


def _ends_without_room(function: FunctionCode) -> bool:
    """Return whether the straight line that a function ends with is shorter than a jump."""
    return (
        bool(function.iced)
        and function.end - function.iced[-1].ip < JUMP_BYTES
        and function.lines.last_bytes < JUMP_BYTES
    )
