"""Edges: where control goes at the end of each run of instructions."""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.isa.decode import Flow


class EdgeKind(Enum):
    """By what control goes from one run to another."""

    TAKEN = "conditional jump that is taken"
    NOT_TAKEN = "conditional jump that is not taken"
    JUMP = "jump"
    TABLE = "jump through a table"
    NEXT = "no branch: another run begins"
    CALL = "call"
    AFTER_CALL = "after a call that comes back"

    @property
    def falls_through(self) -> bool:
        """Whether control goes on to the next instruction without a jump that could have gone elsewhere."""
        return self in {EdgeKind.NEXT, EdgeKind.AFTER_CALL}


class FlowEdge(NamedTuple):
    """One way from a run of instructions to another, by link-time addresses."""

    start: int
    """Where the run begins."""
    at: int
    """Its last instruction."""
    to: int
    kind: EdgeKind


def edges_of(function: FunctionView, starts: Sequence[int]) -> Iterator[FlowEdge]:
    """Yield the edges of the runs of a function that begin at ``starts`` (ascending).

    Returns, indirect calls and jumps through pointers lead to nothing that is known here.
    """
    turns = [(number, flow) for number, flow in function.turns if flow is not Flow.SYSCALL]
    numbers = [number for number, _ in turns]
    targets = dict(zip(function.jumps.numbers, function.jumps.targets, strict=True))
    targets |= dict(zip(function.calls.numbers, function.calls.targets, strict=True))
    for start, following in pairwise([*starts, function.end]):
        turn = bisect_left(numbers, bisect_left(function.addresses, start))
        last, flow = bisect_left(function.addresses, following) - 1, Flow.NEXT
        if turn < len(turns) and numbers[turn] <= last:
            last, flow = turns[turn]
        at, after = function.addresses[last], function.ends[last]
        if following < function.end:
            after = following  # there may be padding in between, which runs and is no run of its own
        if flow is Flow.NEXT:
            yield FlowEdge(start, at, after, EdgeKind.NEXT)
        elif flow is Flow.JCC:
            yield FlowEdge(start, at, targets[last], EdgeKind.TAKEN)
            yield FlowEdge(start, at, after, EdgeKind.NOT_TAKEN)
        elif flow is Flow.JUMP:
            yield FlowEdge(start, at, targets[last], EdgeKind.JUMP)
        elif flow is Flow.INDIRECT_JUMP:
            table = function.table_of(at)
            for target in dict.fromkeys(table.targets if table is not None else ()):
                yield FlowEdge(start, at, target, EdgeKind.TABLE)
        elif flow in {Flow.CALL, Flow.INDIRECT_CALL}:
            if flow is Flow.CALL:
                yield FlowEdge(start, at, targets[last], EdgeKind.CALL)
            if following < function.end:
                yield FlowEdge(start, at, after, EdgeKind.AFTER_CALL)


def closing(
    module: ModuleView, edges: Iterable[FlowEdge], entries: Container[int], covers: Callable[[int], bool]
) -> Callable[[int], bool]:
    """Return what tells of a run whether control certainly comes to it along some edges alone.

    By no exception and no pointer, that is; where a known jump table leads there, what is stored may be that table's.

    Args:
        module: the code.
        edges: the edges.
        entries: where functions are entered.
        covers: tells of the address of a branch whether its edges are among these.
    """
    tables = {edge.to for edge in edges if edge.kind is EdgeKind.TABLE}

    def is_closed(address: int) -> bool:
        if address in entries:
            return False
        stored = module.entries.static_entries(address, address + 1)
        if stored and not (address in tables and address in module.text.pointed):
            return False
        return all(
            kind not in {Kind.LEA, Kind.ABSOLUTE} and covers(source)
            for _, source, kind in module.entries.references_into(address, address + 1)
        )

    return is_closed
