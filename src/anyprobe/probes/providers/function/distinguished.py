"""Names of sites in results, where several functions of one module have the same."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.quoting import QUOTE

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.resolve import ResolvedSite


def distinguished(sites: "Sequence[ResolvedSite]") -> "list[ResolvedSite]":
    """Return sites with the addresses of their functions behind the names that several of one module have."""
    starts: dict[tuple[int, str], set[int]] = {}
    for site in sites:
        starts.setdefault((id(site.object), site.name), set()).add(site.function.start)
    shared = {key for key, found in starts.items() if len(found) > 1}
    return [_with_start(site) if (id(site.object), site.name) in shared else site for site in sites]


def _with_start(site: "ResolvedSite") -> "ResolvedSite":
    if site.note:
        return site
    body, quote = (site.name[:-1], QUOTE) if site.name.startswith(QUOTE) else (site.name, "")
    name = f"{body}@{site.function.start:#x}{quote}"
    head, found, tail = site.canonical.rpartition(f":{site.name}:")
    canonical = f"{head}:{name}:{tail}" if found else site.canonical
    return site._replace(shown=name, canonical=canonical)
