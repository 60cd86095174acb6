"""What a session asks of those on its fork children that have loaded libraries themselves."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.providers.function.wanted.desired import Desired


class ForkChildren(Protocol):
    """The probes of fork children in what they have loaded; a protocol, since what has them is made of sessions."""

    def loads(self, pid: int, wanted: "Sequence[Desired]", let_go: Callable[[], object]) -> None:
        """Place what is wanted in a child that waits where it has loaded something."""
        ...

    def change(self, probes: "Sequence[Probe]", *, armed: bool) -> None:
        """Arm or disarm what children have of some probes."""
        ...

    def with_theirs(self, own: "Snapshot") -> "Snapshot":
        """Return what the session has counted, and its children in what they have loaded themselves."""
        ...

    def look(self) -> None:
        """Learn which processes count, and end the sessions on children of which nothing is left."""
        ...

    def end(self) -> None:
        """Remove all probes from the children; what was counted stays."""
        ...

    def notes(self) -> Sequence[str]:
        """Return what could not be placed, in words."""
        ...
