"""Trees of timed calls: which functions made which, how often, and how long they took there."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from anyprobe.core.quoting import shown_module

UNSURE = "(caller not known)"
"""In place of a function: after an exception or ``longjmp`` it is not known which calls were left behind."""
NOT_KEPT = "(in no node of their own)"
"""In place of a function: calls for which the tree had no room."""
NONE = frozenset[tuple[str, str]]()
"""No function."""


@dataclass(frozen=True, slots=True)
class CallNode:
    """The calls of one function that were made the same way: by the same callers, up to the outermost that is timed."""

    module: str
    function: str
    count: int = 0
    sum_ns: float = 0.0
    self_ns: float = 0.0
    calls: "tuple[CallNode, ...]" = ()
    """What they called, of functions that are timed, the longest first."""
    self_off_ns: float | None = None
    """How long threads were not on processors in the function itself, where times are those on processors."""

    @property
    def shown_module(self) -> str:
        """The module's name as a spec may have it."""
        return shown_module(self.module) if self.module else ""

    @property
    def off_ns(self) -> float:
        """How long threads were not on processors in the function and in what it called."""
        return (self.self_off_ns or 0.0) + sum(each.off_ns for each in self.calls)

    def as_json(self, partial: "AbstractSet[tuple[str, str]]" = NONE) -> dict[str, Any]:
        """Return the JSON object; ``partial``: the functions of which not all calls were timed, with their modules."""
        from anyprobe.data.findings.documents import NODE

        complete = (self.module, self.function) not in partial
        return {**NODE.of(self), "complete": complete, "calls": [each.as_json(partial) for each in self.calls]}


@dataclass(frozen=True, slots=True)
class Calls:
    """What one function called of another one, or itself."""

    caller: str
    caller_module: str
    function: str
    module: str
    count: int
    sum_ns: float
    self_ns: float

    def as_json(self, partial: "AbstractSet[tuple[str, str]]" = NONE) -> dict[str, Any]:
        """Return the JSON object; ``caller`` is null where no timed function was. ``partial``: as of ``CallNode``."""
        from anyprobe.data.findings.documents import CALLS

        return {**CALLS.of(self), "complete": (self.module, self.function) not in partial}


def folded(node: CallNode) -> CallNode:
    """Return a node with direct recursion in one: its calls to itself count as its own, and take no time besides."""
    calls = [folded(each) for each in node.calls]
    own = [each for each in calls if (each.module, each.function) == (node.module, node.function)]
    others = [each for each in calls if each not in own]
    return replace(
        node,
        count=node.count + sum(each.count for each in own),
        self_ns=node.self_ns + sum(each.self_ns for each in own),
        self_off_ns=_off_of((node, *own)),
        calls=merged(others, *(each.calls for each in own)),
    )


def _off_of(nodes: Iterable[CallNode]) -> float | None:
    known = [node.self_off_ns for node in nodes if node.self_off_ns is not None]
    return sum(known) if known else None


def merged(*forests: Iterable[CallNode]) -> tuple[CallNode, ...]:
    """Return the sum of trees, the longest first."""
    same: dict[tuple[str, str], list[CallNode]] = {}
    for node in (node for forest in forests for node in forest):
        same.setdefault((node.module, node.function), []).append(node)
    return ordered(
        replace(
            nodes[0],
            count=sum(node.count for node in nodes),
            sum_ns=sum(node.sum_ns for node in nodes),
            self_ns=sum(node.self_ns for node in nodes),
            self_off_ns=_off_of(nodes),
            calls=merged(*(node.calls for node in nodes)),
        )
        for nodes in same.values()
    )


def since(after: Iterable[CallNode], before: Iterable[CallNode]) -> tuple[CallNode, ...]:
    """Return what has been added to trees; nodes to which nothing was added are left out."""
    earlier = {(node.module, node.function): node for node in before}
    found = []
    for node in after:
        then = earlier.get((node.module, node.function), CallNode(node.module, node.function))
        more = replace(
            node,
            count=node.count - then.count,
            sum_ns=node.sum_ns - then.sum_ns,
            self_ns=node.self_ns - then.self_ns,
            self_off_ns=None if node.self_off_ns is None else node.self_off_ns - (then.self_off_ns or 0.0),
            calls=since(node.calls, then.calls),
        )
        if more.count or more.calls:
            found.append(more)
    return ordered(found)


def ordered(nodes: Iterable[CallNode]) -> tuple[CallNode, ...]:
    """Return nodes with the longest first; one whose own calls go on counts by what they have called."""
    return tuple(sorted(nodes, key=lambda node: (-time_of(node), node.module, node.function)))


def time_of(node: CallNode) -> float:
    """Return the time of a node; of one whose own calls go on, their own so far, and that of what they have called."""
    return max(node.sum_ns, node.self_ns, sum(map(time_of, node.calls)))


def by_caller(forest: Sequence[CallNode]) -> list[Calls]:
    """Return what each function called of each other one, the longest first."""
    sums: dict[tuple[str, str, str, str], tuple[int, float, float]] = {}
    for caller, node in _pairs(None, forest):
        key = (caller.function, caller.module) if caller is not None else ("", "")
        count, total, own = sums.get((*key, node.function, node.module), (0, 0.0, 0.0))
        sums[*key, node.function, node.module] = count + node.count, total + node.sum_ns, own + node.self_ns
    found = (Calls(*key, *values) for key, values in sums.items() if values[0] or values[2])
    return sorted(found, key=lambda each: (-each.sum_ns, each.function, each.caller))


def _pairs(caller: CallNode | None, forest: Iterable[CallNode]) -> Iterator[tuple[CallNode | None, CallNode]]:
    for node in forest:
        yield caller, node
        yield from _pairs(node, node.calls)
