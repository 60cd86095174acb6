"""``explain`` and ``list``: plans without a change."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.data.explanation import Explanation, ListedSite
    from anyprobe.probes.session import Session


def explain(session: "Session", spec: str) -> "Explanation":
    """Return the plan for one site."""
    raise AssertionError(spec, session)


def listed(session: "Session", specs: Sequence[str]) -> "list[ListedSite]":
    """Return the plans of many sites."""
    raise AssertionError(specs, session)
