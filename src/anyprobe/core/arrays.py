"""Sets of addresses as sorted arrays.

numpy has functions for these, but its ``unique`` (and what is built on it) imports ``numpy.ma``, which takes longer
than everything that we look up in a library.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unique(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values, ascending."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    first = np.empty(len(ordered), np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def among(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are some of the wanted ones."""
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(wanted)
    place = np.searchsorted(ordered, values)
    place[place == len(ordered)] = 0
    return np.asarray(ordered[place] == values, np.bool_)
