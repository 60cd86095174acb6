"""The sessions that this thread, or asynchronous task, is in: by ``with`` blocks, and as functions of a script."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_entered: ContextVar[tuple[object, ...]] = ContextVar("entered", default=())


def enter(opened: object) -> None:
    """Make a session the current one of this thread or task."""
    _entered.set((*_entered.get(), opened))


def leave(opened: object) -> None:
    """Forget a session that was entered, whichever others were since."""
    entered = list(reversed(_entered.get()))
    if opened in entered:
        entered.remove(opened)
    _entered.set(tuple(reversed(entered)))


@contextmanager
def entered(opened: object) -> Iterator[None]:
    """Make a session the current one of this thread or task, within a ``with`` block."""
    enter(opened)
    try:
        yield
    finally:
        leave(opened)


def innermost() -> object | None:
    """Return the session that was entered last and not left, None if there is none."""
    return next(reversed(_entered.get()), None)
