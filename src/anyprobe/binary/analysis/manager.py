"""Where the results of analyses are: each is made when it is first asked for, once, and kept in one place.

An analysis is a class, or a function, that is called with what it analyses; it is its own name. Code that wants a
result says which: ``module.analyses.get(NoReturnFunctions)``. No analysis is known here, nor to what is analysed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar, TypeVarTuple

from anyprobe.core.checkpoints import checkpoint

Subjects = TypeVarTuple("Subjects")
Result = TypeVar("Result")


class Analyses(Generic[*Subjects]):
    """The results of all analyses of one module, or of one function of a module."""

    __slots__ = ("_lock", "_results", "_subjects")

    def __init__(self, *subjects: *Subjects, lock: AbstractContextManager[object] | None = None) -> None:
        """Name what is analysed; nothing is yet. Who analyses holds the lock, so that it is done once."""
        self._subjects, self._lock = subjects, lock or nullcontext()
        self._results: dict[object, Any] = {}

    def get(self, analysis: Callable[[*Subjects], Result]) -> Result:
        """Return what an analysis has found."""
        try:
            found: Result = self._results[analysis]
        except KeyError:
            checkpoint()
            with self._lock:
                if analysis not in self._results:
                    self._results[analysis] = analysis(*self._subjects)
            found = self._results[analysis]
        return found
