"""Sets of addresses as sorted arrays.

numpy has functions for these, but its ``unique`` (and what is built on it) imports ``numpy.ma``, which takes longer
than everything that we look up in a library.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np


def unique(values: "NDArray[Any]") -> "NDArray[Any]":
    """Return the distinct values, ascending."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    first = np.empty(len(ordered), np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def joined(arrays: "Iterable[NDArray[np.int64]]") -> "NDArray[np.int64]":
    """Return the arrays joined in their order, an empty one if there are none."""
    return np.concatenate([*arrays, np.empty(0, np.int64)])


def places_in(ordered: "NDArray[Any]", values: "NDArray[Any]") -> "NDArray[np.int64]":
    """Return where values stand in an ascending array, -1 where they do not."""
    found: NDArray[np.int64] = np.searchsorted(ordered, values)
    there = found < len(ordered)
    there[there] = ordered[found[there]] == values[there]
    return np.where(there, found, -1)


def among(values: "NDArray[Any]", wanted: "NDArray[Any]") -> "NDArray[np.bool_]":
    """Return which values are some of the wanted ones."""
    return places_in(np.sort(wanted), values) >= 0
