"""One line of ``doctor``."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "limited", "no"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, whether it permits probing, what was found, and what to do about it."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return asdict(self)
