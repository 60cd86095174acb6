"""In which order functions are to lie: each after what calls it most, and what runs most in least room first.

As call-chain clustering does it (Ottoni and Maher, 2017), with exact counts: functions in descending order of calls are
put at the end of the cluster of what calls them most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.binary.flow.blocks import block_at

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.probes.providers.function.optimising.relayout import Moved

_MOST = 1 << 20
"""Bytes of a cluster, above which it takes no other."""


def in_order(
    functions: "Sequence[Moved]", calls: "Mapping[Moved, int]", blocks: "Mapping[FunctionCode, Mapping[int, int]]"
) -> "list[Moved]":
    """Return functions in the order in which they are to lie.

    Args:
        functions: The functions, with what calls them.
        calls: How often each was called.
        blocks: How often each block has run, of functions of which that is known.

    """
    cluster_of = {each.code: _Cluster([each], len(each.code.content)) for each in functions}
    best = {each: _hottest(each, blocks) for each in functions}
    for each in sorted(functions, key=lambda each: (-calls[each], *best[each][1:3])):
        caller, own = best[each][3], cluster_of[each.code]
        other = own if caller is None else cluster_of.setdefault(caller, _Cluster([], 0))
        if other is own or other.size + own.size > _MOST:
            continue
        other.functions += own.functions
        other.size += own.size
        for moved in own.functions:
            cluster_of[moved.code] = other
    clusters = {id(cluster): cluster for cluster in cluster_of.values()}.values()
    ordered = sorted(
        clusters, key=lambda cluster: -sum(calls[each] for each in cluster.functions) / max(cluster.size, 1)
    )
    return [each for cluster in ordered for each in cluster.functions]


@dataclass(eq=False, slots=True)
class _Cluster:
    functions: "list[Moved]"
    size: int


def _hottest(
    moved: "Moved", blocks: "Mapping[FunctionCode, Mapping[int, int]]"
) -> "tuple[int, int, int, FunctionCode | None]":
    """Return how often the call runs that calls a function most (negative), where its function and it are, and that."""
    found: tuple[int, int, int, FunctionCode | None] = (0, 0, 0, None)
    for caller, want in moved.calls:
        counts = blocks.get(caller)
        if counts is None or caller is moved.code:
            continue
        here = (-counts.get(block_at(caller.blocks, want.address), 0), caller.start, want.address, caller)
        if found[3] is None or here[:3] < found[:3]:
            found = here
    return found
