"""What functions are called in results: names that mean just them, and nothing else, when they are pasted as specs."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import SpecError
from anyprobe.core.quoting import QUOTE, quoted
from anyprobe.probes.specs.spec import parse

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.resolve import ResolvedSite

_SIMPLE = re.compile(r"[A-Za-z_][\w.$@]*", re.ASCII).fullmatch
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_EXACT = ("(", "[", "operator")
"""In names that have one of these, signs of globs are looked for as they stand first."""


def as_spec(name: str) -> str:
    """Return a function's name as a spec may have it: in quotes where it would be read as something else without."""
    if _SIMPLE(name) or _reads_as(_OFFSET.sub("", name)):
        return name
    return quoted(name)


def _reads_as(name: str) -> bool:
    is_glob = any(sign in name for sign in "*?[") and not any(sign in name for sign in _EXACT)
    if is_glob or not name.isprintable():
        return False
    try:
        alone, behind = parse(name), parse(f"pid:a.out:{name}:entry")
    except SpecError:
        return False
    texts = {alone.function.text, behind.function.text}
    return texts == {name} and alone.name == "entry" and alone.line is None and not alone.module


def distinguished(sites: "Sequence[ResolvedSite]") -> "list[ResolvedSite]":
    """Return sites with the addresses of their functions behind the names that several of one module have."""
    if len({(id(site.object), site.shown) for site in sites}) == len(sites):
        return list(sites)
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
