"""From the nodes of banks to trees of timed calls."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.data.calltree import NOT_KEPT, UNSURE, CallNode, merged, ordered
from anyprobe.data.layout import NO_CALLER, NODE_KEY_SHIFT, UNSURE_CALLER

if TYPE_CHECKING:
    from anyprobe.data.reader import BankReader
    from anyprobe.probes.probe import Probe, Timed
    from anyprobe.probes.reading import BankValues
    from anyprobe.splice.regions.code_region import SlotBank


def tree_of(probes: "Iterable[Probe]", values: "BankValues", ns_per_tick: float) -> tuple[CallNode, ...]:
    """Return the tree of all timed calls of a session, where there is one."""
    functions: dict[int, tuple[SlotBank, dict[int, Timed]]] = {}
    for timed in (timed for probe in probes for timed in probe.timed):
        for group in (timed.group, *timed.earlier):
            if group.bank is not None and group.bank.layout.nodes:
                functions.setdefault(id(group.bank), (group.bank, {}))[1][group.offset] = timed
    return merged(*(_forest(values.reader(bank), known, ns_per_tick) for bank, known in functions.values()))


def _forest(reader: "BankReader", functions: "dict[int, Timed]", ns_per_tick: float) -> tuple[CallNode, ...]:
    nodes = reader.tree()
    below: dict[int, list[int]] = {}
    for node, (key, *_) in nodes.items():
        if node:
            below.setdefault(key & (1 << NODE_KEY_SHIFT) - 1, []).append(node)

    def made(node: int) -> CallNode:
        key, count, total, own = nodes[node]
        site = functions[key >> NODE_KEY_SHIFT].site
        calls = ordered(map(made, below.get(node, ())))
        return CallNode(site.object.name, site.label or site.name, count, total * ns_per_tick, own * ns_per_tick, calls)

    roots = [made(node) for node in below.get(NO_CALLER, ())]
    unsure = ordered(map(made, below.get(UNSURE_CALLER, ())))
    if unsure:
        roots.append(CallNode("", UNSURE, calls=unsure))
    if 0 in nodes and nodes[0][1]:
        _, count, total, own = nodes[0]
        roots.append(CallNode("", NOT_KEPT, count, total * ns_per_tick, own * ns_per_tick))
    return ordered(roots)
