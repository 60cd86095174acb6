"""Functions of which nothing but a symbol without a type tells: assemblers give such to data in the code, too."""

from typing import TYPE_CHECKING

from anyprobe.binary.analysis.views import ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.stack_depth import Balance, balance, seen_in
from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions

if TYPE_CHECKING:
    from collections.abc import Collection


def unproven_starts(code_map: ModuleView, starts: "Collection[int]") -> frozenset[int]:
    """Return which of some functions no branch of others leads to, and no other one runs on into.

    Those that data points to have to keep their stack in balance.
    """
    left = set(starts)
    before = -1
    while before != len(left):
        before = len(left)
        for start in sorted(left):  # one may run on into the next
            if _is_led_to(code_map, start, left):
                left.discard(start)
    return frozenset(left)


def _is_led_to(code_map: ModuleView, start: int, unproven: set[int]) -> bool:
    if start in code_map.text.pointed and _looks_like_function(code_map, start):
        return True
    above = code_map.containing(start - 1)
    if above is not None and above.start not in unproven and above.runs_past_end is not None:
        return True
    for source, kind in code_map.entries.references_to(start):
        home = code_map.containing(source)
        if kind in (Kind.NEAR, Kind.SHORT) and home is not None and home.start not in unproven:
            return True
    return False


def _looks_like_function(code_map: ModuleView, start: int) -> bool:
    function = code_map.containing(start)
    if function is None or function.broken is not None:
        return False
    code = {one.ip: one for one in function.iced}
    return balance(start, code.get, seen_in([function], code_map.analyses.get(NoReturnFunctions))) is not Balance.BROKEN
