"""What was asked for and is not in place: what was refused, and what has gone with its library."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anyprobe.core.refusal import Reason


@dataclass(frozen=True, slots=True)
class RefusedSite:
    """A probe that was asked for and not placed, and why."""

    spec: str
    address: int
    reason: str
    detail: str
    timed: bool = False
    """Whether both ends of the function's calls were wanted."""
    in_kernel: bool = False
    """Whether it is in the kernel, of which there is no more to explain."""

    @property
    def is_gone(self) -> bool:
        """Whether it was in place until its library was unmapped, which is no refusal."""
        return self.reason == Reason.GONE

    @property
    def is_left_out(self) -> bool:
        """Whether there was no time to place it, of which there is no more to explain."""
        return self.reason == Reason.LEFT_OUT

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        from anyprobe.data.findings.documents import REFUSED

        return REFUSED.of(self)


def documents_of(refused: Iterable[RefusedSite]) -> dict[str, Any]:
    """Return the members of a document: ``refused``, and ``gone`` if anything has gone."""
    gone: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for each in refused:
        (gone if each.is_gone else others).append(each.as_json())
    return {"refused": others, **({"gone": gone} if gone else {})}
