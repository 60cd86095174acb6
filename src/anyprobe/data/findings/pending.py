"""Specs that wait for libraries."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PendingSpec:
    """A spec that has meant nothing yet, and may in what is loaded later."""

    spec: str
    module: str = ""
    """What it waits for; nothing where it names no module."""
    nearest: tuple[str, ...] = field(default=(), compare=False)
    """Modules that are loaded and have similar names."""

    def __str__(self) -> str:
        """Return one sentence."""
        similar = f"; {self.nearest[0]} is" if self.nearest else ""
        return f"{self.spec} is pending: no {self.module or 'function of that name'} has been loaded{similar}"

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        from anyprobe.data.findings.documents import PENDING

        return PENDING.of(self)
