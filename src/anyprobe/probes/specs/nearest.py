"""Which of many names a mistyped one probably means."""

from collections.abc import Iterable


def nearest_names(wanted: str, names: Iterable[str], count: int = 5) -> tuple[str, ...]:
    """Return the names that are most like ``wanted``: a few of the same letters first, then by difference."""
    import difflib

    unique = list(dict.fromkeys(names))
    lowered = wanted.lower().strip("*?_")
    if not lowered:
        return ()
    pool = sorted(unique, key=lambda name: _distance_bound(lowered, name.lower()))[:400]
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(lowered)
    scored: list[tuple[float, int, str]] = []
    for name in pool:
        matcher.set_seq1(name.lower().strip("_"))
        scored.append((-matcher.ratio(), len(name), name))
    return tuple(name for score, _, name in sorted(scored)[:count] if score <= -0.5)


def _distance_bound(wanted: str, name: str) -> int:
    """Return a cheap lower bound of how many letters differ, by the pairs of letters that both have."""
    pairs = {wanted[at : at + 2] for at in range(len(wanted) - 1)} or {wanted}
    shared = sum(pair in name for pair in pairs)
    return abs(len(name) - len(wanted)) + 3 * (len(pairs) - shared)
