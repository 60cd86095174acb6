"""What functions are called in results: names that mean just them, and nothing else, when they are pasted as specs."""

import re
from functools import lru_cache

from anyprobe.core.errors import SpecError
from anyprobe.core.quoting import quoted
from anyprobe.probes.specs.spec import parse

_SIMPLE = re.compile(r"[A-Za-z_][\w.$@]*", re.ASCII).fullmatch
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_EXACT = ("(", "[", "operator")
"""In names that have one of these, signs of globs are looked for as they stand first."""


def as_spec(name: str) -> str:
    """Return a function's name as a spec may have it: in quotes where it would be read as something else without."""
    if _SIMPLE(name) or _reads_as(_OFFSET.sub("", name)):
        return name
    return quoted(name)


@lru_cache(1 << 14)
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
