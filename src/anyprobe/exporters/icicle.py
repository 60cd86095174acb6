"""Icicles: flame graphs the other way round, with each function by its own time, and below it what called it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TextIO

from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.flame import page, profile


class Icicle:
    """Writes the page of flame graphs the other way round."""

    name = "icicle"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the page; what several trees have in common is one."""
        shown = profile(replace(found, before=None))
        width = "the number" if found.counts else "own time"
        seconds = (found.last or found.together).duration_s
        shown |= {
            "facts": f"{found.what}, for {seconds:.2f} s; at the top is what ran, below it what called it; "
            f"the width is {width}.",
            "nodes": inverted(shown["nodes"]),
            "inverted": True,
        }
        stream.write(page("flame", shown, style=("flame.css",), script=("flame.js",)))
        stream.flush()


class _Callers:
    """Calls of a function that came by the same callers."""

    __slots__ = ("above", "count", "own", "total")

    def __init__(self) -> None:
        self.own = self.total = self.count = 0
        self.above: dict[int, _Callers] = {}


def inverted(nodes: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return what ``walk`` yields the other way round: what was called first, and what called it below.

    Own time is where a chain of callers ends, calls are those of the function at its beginning.
    """
    root, path = _Callers(), list[int]()
    for depth, name, own, count in nodes:
        path[depth:] = [name]
        if not own and not count:
            continue
        place = root
        for each in reversed(path):
            place = place.above.setdefault(each, _Callers())
            place.count += count
            place.total += own
        place.own += own
    found: list[tuple[int, int, int, int]] = []
    waiting = [(-1, -1, root)]
    while waiting:
        depth, name, one = waiting.pop()
        if one is not root:
            found.append((depth, name, one.own, one.count))
        callers = sorted(one.above.items(), key=lambda item: item[1].total)  # the widest comes first
        waiting += [(depth + 1, caller, each) for caller, each in callers]
    return found


EXPORTER = Icicle()
