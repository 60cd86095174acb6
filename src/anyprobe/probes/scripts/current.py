"""The current session: what ``from anyprobe import session`` means.

It is the session of the innermost ``with`` block that this thread (or asynchronous task) is in; outside of all of them,
the one that ``anyprobe script`` has opened, for all threads. So scripts run unchanged under the command and the API.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from anyprobe.core.errors import UsageError
from anyprobe.probes.scripts.entering import enter, entered, innermost, leave

if TYPE_CHECKING:
    from anyprobe.probes.session import Session

__all__ = ["CurrentSession", "current", "enter", "entered", "for_script", "is_there_for_scripts", "leave", "session"]
_scripts: "list[Session]" = []


@contextmanager
def for_script(opened: "Session") -> Iterator[None]:
    """Make a session the current one of this thread, and of all threads that have not entered another."""
    _scripts.append(opened)
    enter(opened)
    try:
        yield
    finally:
        leave(opened)
        _scripts.remove(opened)


def is_there_for_scripts() -> bool:
    """Return whether there is a session for threads that have not entered one."""
    return bool(_scripts)


def current() -> "Session":
    """Return the current session; raise ``UsageError`` if there is none."""
    own = innermost()
    if own is not None or _scripts:
        return cast("Session", own) if own is not None else _scripts[-1]
    raise UsageError(
        "there is no session here: run this file with 'anyprobe script FILE -p PID', "
        "or inside of 'with anyprobe.attach(PID):'"
    )


class CurrentSession:
    """Stands for the session that is the current one at each use."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever sessions have
        """Return what the current session has under this name."""
        if name.startswith("__"):
            raise AttributeError(name)  # what Python asks of any object; not worth an error of its own
        return getattr(current(), name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set it on the current session."""
        setattr(current(), name, value)

    def __dir__(self) -> list[str]:
        """List what sessions have."""
        from anyprobe.probes.session import Session

        return dir(Session)

    def __repr__(self) -> str:
        """Say which session that is."""
        own = innermost() or next(reversed(_scripts), None)
        return f"<the current session: {own!r}>" if own is not None else "<the current session: none>"


session: "Session" = cast("Session", CurrentSession())
