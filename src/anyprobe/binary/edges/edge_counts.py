"""How often control went along each edge: what goes into a run of instructions is what goes out of it.

Where all edges but one into a run, or out of it, are known, so is that one. Of 100 conditional jumps three to
six need a counter of their own then.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.edges.flow_edges import EdgeKind, FlowEdge, closing, edges_of
from anyprobe.binary.flow.blocks import block_starts, conditional_jumps, run_starts

Count = int | None
"""None: that is not known."""

_AS_THE_RUN = frozenset({EdgeKind.JUMP, EdgeKind.NEXT, EdgeKind.CALL})
"""Edges that each run which ends so has gone along."""
_ALL_WAYS = frozenset({EdgeKind.TAKEN, EdgeKind.NOT_TAKEN, EdgeKind.TABLE})
"""Edges of runs that go along one of their edges each time."""


class EdgeCounts:
    """The counts of edges that follow from those of runs, and from the counts of edges that are told."""

    def __init__(self, edges: Sequence[FlowEdge], runs: Mapping[int, Count], is_closed: Callable[[int], bool]) -> None:
        """Tell what follows from how often runs were entered.

        Args:
            edges: all edges of some functions.
            runs: how often each run was entered, by its link-time address.
            is_closed: whether a run is entered along these edges alone.
        """
        self.edges = edges
        self.counts: list[Count] = [runs.get(edge.start) if edge.kind in _AS_THE_RUN else None for edge in edges]
        """How often each edge was gone along, in their order."""
        self._runs, self._is_closed = runs, is_closed
        self._groups: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
        for number, edge in enumerate(edges):
            if edge.kind is not EdgeKind.CALL:
                self._groups[True, edge.to].append(number)
            if edge.kind in _ALL_WAYS:
                self._groups[False, edge.start].append(number)
        self._follow(list(self._groups))

    def tell(self, number: int, count: int) -> None:
        """Take note of how often one edge was gone along."""
        if self.counts[number] is None:
            self.counts[number] = count
            self._follow(self._groups_of(number))

    def _groups_of(self, number: int) -> list[tuple[bool, int]]:
        edge = self.edges[number]
        return [each for each in ((True, edge.to), (False, edge.start)) if each in self._groups]

    def _follow(self, todo: list[tuple[bool, int]]) -> None:
        while todo:
            is_in, address = key = todo.pop()
            total, group = self._runs.get(address), self._groups[key]
            unknown = [each for each in group if self.counts[each] is None]
            if total is None or len(unknown) != 1 or (is_in and not self._is_closed(address)):
                continue
            # what is read while the program runs may be ahead of what comes after it
            self.counts[unknown[0]] = max(total - sum(self.counts[each] or 0 for each in group), 0)
            todo += self._groups_of(unknown[0])


def undecided_jumps(module: ModuleView, function: FunctionView) -> tuple[int, ...]:
    """Return the conditional jumps of a function of which the counts of its runs do not tell how often each is taken.

    As few as will do: what follows from the counts of the others is left out.
    """
    jumps = set(conditional_jumps(function))
    if not jumps:
        return ()
    starts = run_starts(function, frozenset(function.analyses.get(block_starts)))
    edges = list(edges_of(function, starts))

    def covers(address: int) -> bool:
        return function.start <= address < function.end

    is_closed = closing(module, edges, {function.start, function.entry}, covers)
    counts = EdgeCounts(edges, dict.fromkeys(starts, 0), is_closed)
    found: list[int] = []
    for number, edge in enumerate(edges):
        if edge.kind is EdgeKind.TAKEN and edge.at in jumps and counts.counts[number] is None:
            counts.tell(number, 0)
            found.append(edge.at)
    return tuple(found)
