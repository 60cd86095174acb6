"""Long work that may be ended: it asks now and then whether it is still wanted, and says how far it is."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], object]
"""Told what is being done to functions, one after the other; of how many that is done; and of how many it will be."""


class _Asked(threading.local):
    """What the work of one thread asks and tells."""

    check: Callable[[], object] | None = None
    progress: Progress | None = None


_asked = _Asked()


@contextmanager
def interruptible(check: Callable[[], object], progress: Progress | None = None) -> Iterator[None]:
    """Have ``check`` called now and then by what this thread does in a ``with`` block; what it raises ends that.

    ``progress`` is told how far it is. Both must be quick.
    """
    before = _asked.check, _asked.progress
    _asked.check, _asked.progress = check, progress
    try:
        yield
    finally:
        _asked.check, _asked.progress = before


def checkpoint(doing: str = "", done: int = 0, total: int = 0) -> None:
    """Give the caller of ``interruptible`` the chance to end what is being done, of which nothing half made is kept.

    Args:
        doing: what is being done to functions; "" is not told.
        done: of how many functions that is done.
        total: of how many it will be.
    """
    if doing and _asked.progress is not None:
        _asked.progress(doing, done, total)
    if _asked.check is not None:
        _asked.check()
