"""Methods and properties of a session that one of its parts has: a façade is a table of these."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

if TYPE_CHECKING:
    from anyprobe.probes.composed import ComposedHost
    from anyprobe.probes.session import Session

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def forwarded(
    part: "Callable[[ComposedHost], S]", method: Callable[Concatenate[S, P], R]
) -> "Callable[Concatenate[Session, P], R]":
    """Return a method that calls one of a part, with its signature and documentation."""
    name = cast("str", getattr(method, "__name__"))  # noqa: B009 - a Callable has no name for mypy

    @wraps(method)
    def forward(self: "Session", *args: P.args, **named: P.kwargs) -> R:
        return cast("R", getattr(part(self.host), name)(*args, **named))

    return cast("Callable[Concatenate[Session, P], R]", forward)  # else it has no first argument without a name


class Shown(property, Generic[R]):
    """A property of a session that the host, or one of its parts, has."""

    def __init__(self, get: "Callable[[ComposedHost], R]", doc: str) -> None:
        """Show what ``get`` returns; ``doc`` says what it is."""
        super().__init__(lambda session: get(session.host), doc=doc)

    @overload
    def __get__(self, session: None, owner: type, /) -> Self: ...

    @overload
    def __get__(self, session: "Session", owner: type | None = None, /) -> R: ...

    def __get__(self, session: "Session | None", owner: type | None = None, /) -> Self | R:
        """Return it as it is now."""
        return cast("Self | R", super().__get__(session, owner))
