"""What is live at the nodes of a graph, once all is that is live where its edges lead."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.arrays import joined, unique
from anyprobe.core.checkpoints import checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Masks = NDArray[np.int32]
    """Registers and flags of nodes or edges: of a large library there are millions, so no more bits than are needed."""

_NUMBER_BITS = 31
"""For numbers of nodes and of edges."""


class Edges:
    """Edges from nodes to where control goes from there, and what may pass along each of them."""

    def __init__(self, pairs: "Iterable[tuple[Ints, Ints]]", masks: "Masks | None" = None) -> None:
        """Take edges as pairs of sources and targets; without masks all may pass."""
        columns = list(zip(*pairs, strict=True)) or [(), ()]
        self.sources, self.targets = (joined(each).astype(np.int32) for each in columns)
        self.masks = np.int32(-1) if masks is None else masks

    def reach(self, values: "Masks", count: int) -> "Masks":
        """Return what comes along the edges to each of ``count`` nodes from the values of those they lead to."""
        found = np.zeros(count, np.int32)
        np.bitwise_or.at(found, self.sources, values[self.targets] & self.masks)
        return found


def settled(live: "Masks", pending: "Masks", *edges: Edges) -> "Masks":
    """Return what is live at each node once all is that is live where its edges lead, as far as it is undecided."""
    live = live.copy()
    sources, targets = (np.concatenate([getattr(each, name) for each in edges]) for name in ("sources", "targets"))
    passing = np.concatenate([pending[each.sources] & each.masks for each in edges])
    begins, by_target = _by_target(targets, len(live))
    there = np.flatnonzero(passing)
    while len(there):
        checkpoint()
        arriving = live[targets[there]] & passing[there]
        news = np.flatnonzero(arriving & ~live[sources[there]])
        changed = unique(sources[there[news]])
        np.bitwise_or.at(live, sources[there[news]], arriving[news])
        there = _all_of(begins[changed], begins[changed + 1], by_target)
    return live


def _by_target(targets: "Ints", count: int) -> "tuple[Ints, Ints]":
    """Return where the edges to each node begin among those that are sorted by nodes, and the sorted edges."""
    begins = np.append(0, np.cumsum(np.bincount(targets, minlength=count)))
    ordered: Ints = targets.astype(np.int64)
    ordered <<= _NUMBER_BITS  # in place: of a large library each copy would take a hundred megabytes
    ordered |= np.arange(len(targets))
    ordered.sort()
    ordered &= (1 << _NUMBER_BITS) - 1
    return begins, ordered


def _all_of(begins: "Ints", ends: "Ints", items: "Ints") -> "Ints":
    """Return the items of several ranges."""
    sizes = ends - begins
    after = np.cumsum(sizes)
    places: Ints = np.arange(np.sum(sizes)) + np.repeat(ends - after, sizes)
    return items[places]
