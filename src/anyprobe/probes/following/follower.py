"""What follows the programs that a session's program executes, as sessions see it."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from anyprobe.probes.handlers.callbacks import Hit


class Follower(Protocol):
    """What follows programs that are executed."""

    def executes(self, session: Any, function: str, hit: "Hit", takes: bool) -> None:  # noqa: ANN401 - a session
        """Follow a thread that waits before it executes by a function of the C library.

        ``takes``: it is in the sample of those that are followed, else it is let be.
        """
        ...

    def watches(self, session: Any) -> None:  # noqa: ANN401 - a session
        """Take note that threads of a program wait before they execute, as far as they can."""
        ...
