"""Moments in which the controller must not be kept waiting: the target's threads stand still meanwhile."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def urgent() -> Iterator[None]:
    """Let no ordinary thread run instead of this one for a ``with`` block, where that is permitted.

    Threads that were just let go would otherwise take the processor while others still wait to be let go, and on a
    machine with more to do than it has processors others would run for tenths of a second while the target stands
    still. Where the block waits for another thread it has to sleep (``thread.looks``).
    """
    try:
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:  # not permitted: no harm, only slower
        yield
        return
    try:
        yield
    finally:
        try:
            os.sched_setscheduler(0, policy, parameters)
        except (
            OSError
        ):  # who may be urgent without being root may not take back what children do not inherit (sched(7))
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)
