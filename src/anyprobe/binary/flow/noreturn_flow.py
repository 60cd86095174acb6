"""Functions that never return, by what they do: every way through them ends in a trap, or in a call that never returns.

Names tell of the ones in libraries (``images.noreturn``). Programs have their own: ``serverPanic`` writes a report and
calls ``abort``. After calls of those nothing runs, whatever the bytes there seem to do.
"""

from bisect import bisect_left

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.handwritten_calls import changes_return
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow

_DEPTH = 4
_MOST_PIECES = 200
_LEAVING = frozenset({Flow.RET, Flow.INDIRECT_JUMP, Flow.OTHER, Flow.INVALID})


class NoReturnFunctions:
    """What is known of one module's functions; each is looked at once."""

    is_certain = False
    """Whether neither names count, which a function may bear by chance, nor traps, which a handler may skip."""

    def __init__(self, code_map: ModuleView) -> None:
        """Know nothing but the names yet."""
        self._map = code_map
        self._named = frozenset() if self.is_certain else code_map.text.noreturn
        self._known: dict[int, bool] = {}

    def __contains__(self, start: object) -> bool:
        """Return whether the function that starts at an address certainly never returns."""
        return isinstance(start, int) and self._never_returns(start, _DEPTH)

    def _never_returns(self, start: int, depth: int) -> bool:
        if not self.is_certain:
            start = self._map.text.own_stubs.get(start, start)
        if start in self._named:
            return True
        known = self._known.get(start)
        if known is None:
            if depth == 0:
                return False
            self._known[start] = False  # recursion proves nothing
            function = self._map.function_at(start) if self._map.layout.start_of(start) == start else None
            known = not (function is None or isinstance(function, Refusal)) and self._never_leaves(function, depth - 1)
            self._known[start] = known
        return known

    def _goes_elsewhere(self, target: int) -> bool:
        """Return whether what is called does not come back after the call, but leads somewhere else (a retpoline)."""
        home = self._map.containing(target)
        number = home.index_of(target) if home is not None else None
        return home is not None and number is not None and changes_return(home.iced[number])

    def _never_leaves(self, function: FunctionView, depth: int) -> bool:
        """Return whether no way through a function leads out of it."""
        special, seen, todo = function.special, set[int](), [function.entry]
        places = [insn.address for insn in special]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            place = bisect_left(places, at)
            if len(seen) > _MOST_PIECES or place == len(places) or not function.is_boundary(at):
                return False
            last = special[place]
            if last.flow in _LEAVING:
                return False
            if last.target is not None and last.flow is not Flow.CALL:
                if function.start <= last.target < function.end:
                    todo.append(last.target)
                elif not self._never_returns(last.target, depth):
                    return False
            if last.flow is Flow.CALL and last.target is not None and self._goes_elsewhere(last.target):
                return False
            ends = last.flow is Flow.CALL and last.target is not None and self._never_returns(last.target, depth)
            if (last.may_go_on if self.is_certain else last.falls_through) and not ends:
                todo.append(last.end)
        return True


class CertainlyNoReturn(NoReturnFunctions):
    """Functions proven not to return, whatever their names are and whichever traps are skipped."""

    is_certain = True
