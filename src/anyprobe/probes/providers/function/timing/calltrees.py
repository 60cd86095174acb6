"""From the nodes of banks to trees of timed calls."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.data.findings.calltree import NOT_KEPT, UNSURE, CallNode, merged, ordered
from anyprobe.data.layouts.layout import NO_CALLER, NODE_KEY_SHIFT, UNSURE_CALLER

DEEPEST = 100
"""Levels of a tree that is shown."""
_CALLER = (1 << NODE_KEY_SHIFT) - 1
_Node = tuple[int, int, int, int, int]
"""The key of a node, its calls, their ticks, and those of the function itself, on processors and off."""

if TYPE_CHECKING:
    from anyprobe.data.snapshots.processes import ProcessInfo
    from anyprobe.probes.providers.function.forks.children import Children
    from anyprobe.probes.providers.function.probe import Probe, Timed
    from anyprobe.probes.providers.function.reading import BankValues
    from anyprobe.splice.regions.code_region import SlotBank


def trees_of(
    probes: "Iterable[Probe]", values: "BankValues", children: "Children", ns_per_tick: float
) -> "dict[ProcessInfo | None, tuple[CallNode, ...]]":
    """Return the trees of all timed calls of a session: those of the target under None, and of each fork child."""
    functions: dict[int, tuple[SlotBank, dict[int, Timed]]] = {}
    for timed in (timed for probe in probes for timed in probe.timed):
        for group in (timed.group, *timed.earlier):
            if group.bank is not None and group.bank.layout.nodes:
                functions.setdefault(id(group.bank), (group.bank, {}))[1][group.offset] = timed
    found: dict[ProcessInfo | None, list[tuple[CallNode, ...]]] = {None: []}
    for bank, known in functions.values():
        reader = values.reader(bank)
        found[None].append(_forest(reader.tree("target"), known, ns_per_tick, bank.layout.on_processors))
        for child in reader.copies:
            forest = _forest(reader.tree(child), known, ns_per_tick, bank.layout.on_processors)
            found.setdefault(children.of(bank, child), []).append(forest)
    return {process: merged(*forests) for process, forests in found.items()}


def _forest(
    tree: "dict[int, _Node]", functions: "dict[int, Timed]", ns_per_tick: float, on_processors: bool
) -> tuple[CallNode, ...]:
    nodes = _bounded(tree)
    below: dict[int, list[int]] = {}
    for node, (key, *_) in nodes.items():
        if node:
            below.setdefault(key & _CALLER, []).append(node)

    def made(node: int) -> CallNode:
        site = functions[nodes[node][0] >> NODE_KEY_SHIFT].site
        calls = ordered(map(made, below.get(node, ())))
        return node_of(node, site.object.name, site.label or site.name, calls)

    def node_of(node: int, module: str, name: str, calls: tuple[CallNode, ...] = ()) -> CallNode:
        _, count, *ticks = nodes[node]
        total, own, off = (each * ns_per_tick for each in ticks)
        return CallNode(module, name, count, total, own, calls, off if on_processors else None)

    roots = [made(node) for node in below.get(NO_CALLER, ())]
    unsure = ordered(map(made, below.get(UNSURE_CALLER, ())))
    if unsure:
        roots.append(CallNode("", UNSURE, calls=unsure))
    if 0 in nodes and nodes[0][1]:
        roots.append(node_of(0, "", NOT_KEPT))
    return ordered(roots)


def _bounded(nodes: "dict[int, _Node]") -> "dict[int, _Node]":
    """Return nodes without those of more than ``DEEPEST`` levels, which are in others: recursion has no end.

    A call of the function by which it is made is in that one's node, without a time besides; others are side by side
    one level further down, one node for each function.
    """
    below: dict[int, list[int]] = {}
    for node, (key, *_) in nodes.items():
        below.setdefault(key & _CALLER, []).append(node) if node else None
    found = {0: nodes[0]} if 0 in nodes else {}
    ahead = [(node, root, 1) for root in (NO_CALLER, UNSURE_CALLER) for node in below.get(root, ())]
    deep: dict[tuple[int, int], int] = {}
    """By a node of the deepest level and a function, the node below it that has that function's calls."""
    for node, caller, depth in ahead:  # grows while it runs
        key, count, total, own, off = nodes[node]
        function, into, parent, level = key >> NODE_KEY_SHIFT, node, caller, depth
        if depth > DEEPEST:
            parent = caller if depth == DEEPEST + 1 else found[caller][0] & _CALLER
            same = next((each for each in (caller, parent) if found[each][0] >> NODE_KEY_SHIFT == function), 0)
            into = same or deep.setdefault((parent, function), node)
            level = DEEPEST + (into != parent)
            total = 0 if same else total
        before = found.get(into, (parent | function << NODE_KEY_SHIFT, 0, 0, 0, 0))
        found[into] = before[0], before[1] + count, before[2] + total, before[3] + own, before[4] + off
        ahead += [(each, into, level + 1) for each in below.get(node, ())]
    return found
