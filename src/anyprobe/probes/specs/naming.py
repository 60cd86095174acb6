"""What functions are called in results: names that mean just them, and nothing else, when they are pasted as specs."""

import re
from functools import lru_cache

from anyprobe.core.errors import SpecError
from anyprobe.core.quoting import quoted
from anyprobe.probes.specs.parts import PROVIDERS
from anyprobe.probes.specs.spec import parse

_SIMPLE = re.compile(r"[A-Za-z_][\w.$@]*", re.ASCII).fullmatch
_WORDS = r"[\w :&*,]*"
_NESTED = rf"{_WORDS}(?:<{_WORDS}(?:<{_WORDS}(?:<{_WORDS}>{_WORDS})*>{_WORDS})*>{_WORDS})*"
_HEAD = rf"(?:[pr]\d*|pid\d*|ur?|uprobe|uretprobe|{'|'.join(PROVIDERS)})::"
_SCOPED = re.compile(
    rf"(?!{_HEAD}|.*(?:usdt|sdt_|operator)|.*::(?:entry|return|insn|block|call)$)(?=[^*]*$|.*\()"
    rf"[A-Za-z_]\w*(?:<{_NESTED}>)?(?:::(?:\(anonymous namespace\)::)?~?[A-Za-z_]\w*(?:<{_NESTED}>)?)*"
    rf"(?:\({_NESTED}\)(?: const)?)?(?:\.(?:part|cold|constprop|isra)(?:\.\d+)?)*",
    re.ASCII,
).fullmatch
"""Most names of C++, which read as they stand, so that it need not be tried with a hundred thousand of them."""
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_EXACT = ("(", "[", "operator")
"""In names that have one of these, signs of globs are looked for as they stand first."""


def as_spec(name: str) -> str:
    """Return a function's name as a spec may have it: in quotes where it would be read as something else without."""
    if _SIMPLE(name) or _SCOPED(name) or _reads_as(_OFFSET.sub("", name)):
        return name
    return quoted(name)


@lru_cache(1 << 14)
def _reads_as(name: str) -> bool:
    is_glob = any(sign in name for sign in "*?[") and not any(sign in name for sign in _EXACT)
    if is_glob or not name.isprintable():
        return False
    try:
        alone, rest = parse(name), parse(f"pid:a.out:{name}:entry")
    except SpecError:
        return False
    texts = {alone.function.text, rest.function.text}
    return texts == {name} and alone.name == "entry" and alone.line is None and not alone.module
