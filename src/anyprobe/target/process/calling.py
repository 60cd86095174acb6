"""Stopping one thread only, to call a function of the program in it while the others run on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from anyprobe.target.process.borrowing import borrowed
from anyprobe.target.process.tracee import Tracee
from anyprobe.target.remote.function_calls import ROOM, FunctionCalls
from anyprobe.target.remote.thread import Thread


@contextmanager
def calling(process: Tracee, timeout: float, fits: Callable[[Thread], str]) -> Iterator[FunctionCalls]:
    """Borrow a thread on a stack of its own to which ``fits`` has no objection."""
    with borrowed(process, timeout, own_stack=True, room=ROOM, fits=fits, kind=FunctionCalls) as calls:
        yield cast("FunctionCalls", calls)
