"""Counts of edges that follow from those of runs: of walks through random graphs, whose steps are counted."""

import random
from collections import Counter

from anyprobe.binary.edges.edge_counts import EdgeCounts
from anyprobe.binary.edges.flow_edges import EdgeKind, FlowEdge

SIZE = 10
ENTRY = 0


def graph(chance):
    """Return edges of runs at 0, 10, 20 …, which by chance jump, branch or go on; the last one leaves."""
    edges = []
    for start in range(0, SIZE * 12, SIZE):
        at, after = start + SIZE - 2, start + SIZE
        target = chance.randrange(1, 13) * SIZE
        kind = chance.choice(["jump", "branch", "branch", "next", "table", "call"])
        if kind == "jump":
            edges.append(FlowEdge(start, at, max(target, after), EdgeKind.JUMP))
        elif kind == "branch":
            edges += [FlowEdge(start, at, target, EdgeKind.TAKEN), FlowEdge(start, at, after, EdgeKind.NOT_TAKEN)]
        elif kind == "next":
            edges.append(FlowEdge(start, at, after, EdgeKind.NEXT))
        elif kind == "call":
            edges += [FlowEdge(start, at, ENTRY, EdgeKind.CALL), FlowEdge(start, at, after, EdgeKind.AFTER_CALL)]
        else:
            edges += [FlowEdge(start, at, each, EdgeKind.TABLE) for each in {after, SIZE * 12, target}]
    return edges


def walked(edges, chance):
    """Return how often runs were entered and edges gone along in some walks from the entry."""
    runs, gone = Counter(), Counter()
    ways = {}
    for each in edges:
        ways.setdefault(each.start, []).append(each)
    for _ in range(20):
        at = ENTRY
        for _ in range(200):
            runs[at] += 1
            out = ways.get(at, [])
            gone.update(each for each in out if each.kind is EdgeKind.CALL)
            out = [each for each in out if each.kind is not EdgeKind.CALL]
            if not out or (out[0].kind is EdgeKind.AFTER_CALL and chance.random() < 0.05):
                break  # the call threw
            each = chance.choice(out)
            gone[each] += 1
            at = each.to
        else:
            return None  # it may go round for ever
    return runs, gone


def test_what_follows_is_what_was_walked():
    told, jumps = map(sum, zip(*(told_of_jumps(random.Random(seed)) for seed in range(200)), strict=True))
    assert 0 < told < jumps / 2


def told_of_jumps(chance):
    """Compare what follows with what was walked; return how many jumps had to be told, and how many there are."""
    while (walk := walked(edges := graph(chance), chance)) is None:
        pass
    runs, gone = walk
    counts = EdgeCounts(edges, {at: runs[at] for at in range(0, SIZE * 13, SIZE)}, lambda at: at != ENTRY)
    told = 0
    for number, edge in enumerate(edges):
        if counts.counts[number] is None and edge.kind is EdgeKind.TAKEN:
            counts.tell(number, gone[edge])
            told += 1
    known = {edge: count for edge, count in zip(edges, counts.counts, strict=True) if count is not None}
    assert known == {edge: gone[edge] for edge in known}
    if not any(edge.kind is EdgeKind.TABLE for edge in edges):
        assert len(known) == len(edges)
    return told, sum(edge.kind is EdgeKind.TAKEN for edge in edges)


def test_what_may_be_entered_otherwise_tells_nothing_of_its_edges():
    edges = [
        FlowEdge(0, 4, 20, EdgeKind.TAKEN),
        FlowEdge(0, 4, 8, EdgeKind.NOT_TAKEN),
        FlowEdge(8, 12, 20, EdgeKind.JUMP),
    ]
    runs = {0: 5, 8: 2, 20: 9}
    assert EdgeCounts(edges, runs, lambda at: at not in {8, 20}).counts == [None, None, 2]
    assert EdgeCounts(edges, runs, lambda at: at == 8).counts == [3, 2, 2]
    assert EdgeCounts(edges, {**runs, 8: None}, lambda at: at == 8).counts == [None, None, None]
