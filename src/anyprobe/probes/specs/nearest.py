"""Which of many names a mistyped one probably means."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

_POOL = 400
"""Names that are compared letter by letter."""
_LEAST = 0.5
"""What part of the letters must be the same."""


def nearest_names(wanted: str, names: Iterable[str], count: int = 5) -> tuple[str, ...]:
    """Return the names that are most like ``wanted``: a few of the same letters first, then by difference."""
    import difflib

    lowered = wanted.lower().strip("*?_")
    if not lowered:
        return ()
    unique = list(dict.fromkeys("\n".join(names).split("\n")))
    pool = unique if len(unique) <= _POOL else _likely(lowered, unique)
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(lowered)
    best: list[tuple[float, int, str]] = []
    for name in pool:
        matcher.set_seq1(name.lower().strip("_"))
        least = -best[-1][0] if len(best) == count else _LEAST
        if matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least and matcher.ratio() >= least:
            best = sorted([*best, (-matcher.ratio(), len(name), name)])[:count]
    return tuple(name for _, _, name in best)


def _likely(wanted: str, names: Sequence[str]) -> list[str]:
    """Return the names with the least of a cheap lower bound of how many letters differ.

    The bound is of the lengths, and of the pairs of letters that both have. All names are looked at as one text, which
    takes a tenth of a second where the names of a kernel one by one take a second.
    """
    import numpy as np

    from anyprobe.core.arrays import unique

    joined = "\n".join(["", *names, ""]).lower()
    text = np.frombuffer(joined.encode("utf-8", "replace"), np.uint8)
    letters = wanted.encode("utf-8", "replace")
    pairs = list(dict.fromkeys(pairwise(letters)))
    which = np.zeros(1 << 16, np.uint16)
    which[[first << 8 | second for first, second in pairs]] = np.arange(1, len(pairs) + 1)
    found = which[text[:-1].astype(np.uint16) << 8 | text[1:]]
    ends = np.flatnonzero(text == ord("\n"))
    at = np.flatnonzero(found)
    owners = np.searchsorted(ends, at) - 1
    both = unique(owners * (len(pairs) + 1) + found[at])
    shared = np.bincount(both // (len(pairs) + 1), minlength=len(names))
    bound = abs(np.diff(ends) - 1 - len(letters)) + 3 * (len(pairs) - shared)
    return [names[each] for each in np.argsort(bound, kind="stable")[:_POOL].tolist()]
