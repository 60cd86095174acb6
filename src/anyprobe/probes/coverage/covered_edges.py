"""The edges of covered functions: how often control went from one block to another."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anyprobe.binary.edges.edge_counts import EdgeCounts
from anyprobe.binary.edges.flow_edges import EdgeKind, closing, edges_of
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.data.findings.coverage import Edge, Hits

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap


def covered_edges(
    code: "CodeMap", runs: Mapping[int, Mapping[int, Hits]], taken: Mapping[int, Hits]
) -> tuple[dict[int, list[Edge]], dict[int, tuple[Hits, Hits]]]:
    """Return the edges of functions by their starts, and which ways their conditional jumps have gone.

    Args:
        code: the module's code.
        runs: how often each run of instructions of each function was entered, by the start of the function and the
            run's offset from it.
        taken: how often some conditional jumps were taken, by their link-time addresses.
    """
    functions = {start: code.function_at(start) for start in runs}
    known = {start: each for start, each in functions.items() if isinstance(each, FunctionCode)}
    of_functions = [
        (start, edge)
        for start, each in known.items()
        for edge in edges_of(each, sorted(start + offset for offset in runs[start]))
    ]
    edges = [edge for _, edge in of_functions]
    joined = {edge.to for edge in edges if edge.kind is not EdgeKind.CALL and not edge.kind.falls_through}
    entries = {address for each in known.values() for address in (each.start, each.entry)}
    starts = sorted(known)

    def covers(address: int) -> bool:
        number = bisect_right(starts, address) - 1
        return number >= 0 and address < known[starts[number]].end

    hits = {start + offset: hits for start in known for offset, hits in runs[start].items()}
    counts = EdgeCounts(edges, hits, closing(code, edges, entries, covers))
    for number, edge in enumerate(edges):
        told = taken.get(edge.at)
        if edge.kind is EdgeKind.TAKEN and told is not None:
            counts.tell(number, told)
    found: dict[int, list[Edge]] = {start: [] for start in runs}
    ways: dict[int, dict[EdgeKind, Hits]] = {}
    for (start, edge), count in zip(of_functions, counts.counts, strict=True):
        if edge.to in joined or not edge.kind.falls_through:  # else it is in the middle of a block
            found[start].append(Edge(edge.at - start, edge.to, count, edge.kind is EdgeKind.CALL))
        if edge.kind in {EdgeKind.TAKEN, EdgeKind.NOT_TAKEN}:
            ways.setdefault(edge.at, {})[edge.kind] = count
    return found, {at: (each[EdgeKind.TAKEN], each[EdgeKind.NOT_TAKEN]) for at, each in ways.items()}
