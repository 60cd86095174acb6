"""Changes of probes on a machine that is busy."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from anyprobe.core.errors import StopTimeout

_P = ParamSpec("_P")
_T = TypeVar("_T")


def patiently(change: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Make a change, again where a busy machine did not let all threads stop in time."""
    for _ in range(5):
        try:
            return change(*arguments, **options)
        except StopTimeout:
            continue
    return change(*arguments, **options)
