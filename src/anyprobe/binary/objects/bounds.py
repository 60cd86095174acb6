"""Where the functions of an object begin and end, and which symbols name them."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SymbolColumns:
    """The function symbols of all tables in columns, ascending by address."""

    value: NDArray[np.int64]
    size: NDArray[np.int64]
    table: NDArray[np.int64]
    index: NDArray[np.int64]
    kind: NDArray[np.int64]
    bind: NDArray[np.int64]

    def where(self, mask: NDArray[Any]) -> "SymbolColumns":
        """Return some of the rows."""
        return SymbolColumns(
            self.value[mask], self.size[mask], self.table[mask], self.index[mask], self.kind[mask], self.bind[mask]
        )


@dataclass(frozen=True, eq=False)
class Bounds:
    """The functions' starts, ascending, and ends, the symbols that name them, and every address with any symbol."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    symbols: SymbolColumns
    unlisted: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The starts of those that neither a symbol nor an unwind entry tells of, ascending."""
    called: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The starts of those of them that calls lead to."""

    def and_between(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> "Bounds":
        """Return the bounds together with those of something between the functions."""
        every = np.concatenate([self.starts, starts])
        order = np.argsort(every)
        return replace(self, starts=every[order], ends=np.concatenate([self.ends, ends])[order])
