"""What a kind of probes has to be able to do: the interface between sessions and what is installed by whatever means.

A session keeps what a provider has attached and asks nothing else of it, so a provider needs no code of another: probes
of the kernel's own engines, timers and counters of the processor never touch ``splice``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal
    from anyprobe.data.snapshots.snapshot import SiteResult
    from anyprobe.probes.specs.parts import Spec


class Attachment(Protocol):
    """What one provider has, or will have, installed at one place. What it holds is the provider's own affair."""

    @property
    def armed(self) -> bool:
        """Whether it counts at this moment."""
        ...


A = TypeVar("A", bound=Attachment)


@dataclass(frozen=True, slots=True)
class Resolution(Generic[A]):
    """What a spec means: places at which nothing is attached yet, and what cannot be had, by canonical spec."""

    attachments: Sequence[A]
    refused: "Sequence[tuple[str, Refusal]]" = ()


class Provider(Protocol[A]):
    """One kind of probes. Its methods are called with attachments of its own only."""

    name: str
    """How messages call it."""

    def claims(self, spec: "Spec") -> bool:
        """Return whether a spec is this provider's; the function provider has all that no other claims."""
        ...

    def resolve(self, spec: "Spec") -> Resolution[A]:
        """Return what a spec means; nothing is changed.

        Raises:
            SpecError: it means nothing.
        """
        ...

    def attach(self, attachments: Sequence[A]) -> Sequence[str]:
        """Attach at all places in one change, again where something was detached; return what is to be told.

        What cannot be attached is not armed afterwards. What raises has attached nothing.
        """
        ...

    def detach(self, attachments: Sequence[A]) -> Sequence[str]:
        """Take all away; return what had to stay, and why. What was counted can be read afterwards."""
        ...

    def read(self, attachments: Sequence[A]) -> "Sequence[SiteResult]":
        """Return what was counted at each place since it was attached for the first time."""
        ...
