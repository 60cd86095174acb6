"""Changes of probes on a machine that is busy."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from anyprobe.core.errors import StopTimeout
from anyprobe.target.process.process import Process

_P = ParamSpec("_P")
_T = TypeVar("_T")


STOPPING = 15.0
"""Seconds that threads have to stop where these tests ask for it, on a busy machine."""


def stop_patiently() -> None:
    """Give threads more time to stop, from now on in this process: some make way for all others."""
    Process.stop.__defaults__ = (STOPPING,)


def patiently(change: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Make a change, again where a busy machine did not let all threads stop in time."""
    for _ in range(5):
        try:
            return change(*arguments, **options)
        except StopTimeout:
            continue
    return change(*arguments, **options)
