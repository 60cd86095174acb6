"""The tree of timed calls as stacks, each with the time that its innermost function took itself."""

import posixpath
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anyprobe.data.findings.calltree import CallNode
from anyprobe.exporters.base import Measurement


class Stack(NamedTuple):
    """A chain of calls, the outermost first."""

    calls: tuple[CallNode, ...]
    self_ns: int
    """Nanoseconds in the innermost function itself, in all calls that were made this way."""


def trees(found: Measurement) -> Iterator[tuple[str, tuple[CallNode, ...]]]:
    """Yield each tree with the name of its process, which is empty where processes are not told apart."""
    shown = found.last or found.together
    if found.by != "pid":
        yield "", shown.tree
        return
    for each in shown.processes:
        yield f"{posixpath.basename(each.process.exe)} ({each.process.pid})", each.tree


def stacks(nodes: Iterable[CallNode]) -> Iterator[Stack]:
    """Yield the stacks of a tree in which a function took time itself, the longest branches first."""
    waiting: list[tuple[CallNode, ...]] = [(node,) for node in reversed(tuple(nodes))]
    while waiting:  # trees of recursion are deeper than Python's own stack
        calls = waiting.pop()
        if (own := round(calls[-1].self_ns)) > 0:  # what probes take is known within an error
            yield Stack(calls, own)
        waiting += [(*calls, each) for each in reversed(calls[-1].calls)]


def pairs(
    before: Iterable[CallNode], after: Iterable[CallNode]
) -> Iterator[tuple[int, CallNode | None, CallNode | None]]:
    """Yield the nodes of two trees with their depths, those that are the same in both together, callers first."""
    waiting = [(0, *pair) for pair in reversed(_same(before, after))]
    while waiting:  # trees of recursion are deeper than Python's own stack
        depth, one, other = waiting.pop()
        yield depth, one, other
        below = _same(one.calls if one else (), other.calls if other else ())
        waiting += [(depth + 1, *pair) for pair in reversed(below)]


def _same(before: Iterable[CallNode], after: Iterable[CallNode]) -> list[tuple[CallNode | None, CallNode | None]]:
    one, other = ({(each.module, each.function): each for each in nodes} for nodes in (before, after))
    return [(one.get(key), other.get(key)) for key in dict.fromkeys((*other, *one))]
