"""What follows the programs that a session's program executes, as sessions see it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.callbacks import Hit
    from anyprobe.probes.providers.function.host import ProbeHost


class Follower(Protocol):
    """What follows programs that are executed."""

    def executes(
        self, session: "ProbeHost", function: str, hit: "Hit", takes: bool, waits_at: Callable[[int], bool]
    ) -> None:
        """Follow a thread that waits before it executes by a function of the C library.

        ``takes``: it is in the sample of those that are followed, else it is let be. ``waits_at`` says whether threads
        that are about to execute sleep at an address.
        """
        ...

    def watches(self, session: "ProbeHost") -> None:
        """Take note that threads of a program wait before they execute, as far as they can."""
        ...
