"""Functions that are wanted and whose blocks get their probes when they are entered for the first time."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.splice.edits import Module


@dataclass(eq=False, slots=True)
class Unentered:
    """A function, or a part of one, whose blocks have no probes yet."""

    site: "ResolvedSite"
    code: "FunctionCode"
    module: "Module"
    is_waiting: bool = True


class Entrances(Protocol):
    """Where threads wait that enter functions for the first time; a protocol, since what has them makes changes."""

    @property
    def is_used(self) -> bool:
        """Whether any function has waited for its probes."""
        ...

    def placing(self) -> AbstractContextManager[None]:
        """Place gates together with what is placed within a ``with`` block, then what cannot wait for an entry."""
        ...

    def is_whole(self) -> bool:
        """Return whether it is certain of what was not found hit that it has not run."""
        ...

    def missed(self) -> list[str]:
        """Return in words how often functions were entered without the probes of their blocks."""
        ...

    def end(self) -> None:
        """Let all threads go; none waits from here on. The caller does not hold the session's lock."""
        ...
