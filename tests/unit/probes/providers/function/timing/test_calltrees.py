"""Trees of calls from the nodes of a bank, however deep these are."""

from types import SimpleNamespace

import pytest

from anyprobe.data.findings.calltree import by_caller
from anyprobe.data.layouts.layout import NO_CALLER, NODE_KEY_SHIFT
from anyprobe.probes.providers.function.timing.calltrees import DEEPEST, trees_of

NAMES = ("f", "g", "h")


def forest(rows):
    """Return the tree of nodes that are given as (caller's node, function, calls, ticks, own ticks); off are twice."""
    nodes = {
        number: (caller | (NAMES.index(name) + 1) * 64 << NODE_KEY_SHIFT, *values, 2 * values[-1])
        for number, (caller, name, *values) in enumerate(rows, 1)
    }
    bank = SimpleNamespace(layout=SimpleNamespace(nodes=4096, on_processors=True))
    timed = [
        SimpleNamespace(
            group=SimpleNamespace(bank=bank, offset=(number + 1) * 64), earlier=[],
            site=SimpleNamespace(object=SimpleNamespace(name="a.out"), label=name, name=name),
        )
        for number, name in enumerate(NAMES)
    ]  # fmt: skip
    values = SimpleNamespace(reader=lambda _: SimpleNamespace(tree={"target": nodes}.get, copies=()))
    return trees_of([SimpleNamespace(timed=timed)], values, SimpleNamespace(), 1.0)[None]


def depth_of(nodes):
    return 1 + max(map(depth_of, (node.calls for node in nodes))) if nodes else 0


def test_a_tree_is_as_it_was_called():
    (root,) = forest([(NO_CALLER, "f", 2, 100, 40), (1, "g", 5, 50, 50), (1, "h", 1, 10, 10)])
    assert (root.function, root.count, root.sum_ns, root.self_ns) == ("f", 2, 100, 40)
    assert [(each.function, each.count) for each in root.calls] == [("g", 5), ("h", 1)]
    assert (root.self_off_ns, root.off_ns) == (80, 200)


@pytest.mark.parametrize("functions", ["f", "fg", "fgh"])
def test_recursion_without_end_has_an_end_in_the_tree(functions):
    """All calls and all self times are in it, and the time of the outermost is what it was."""
    levels = 4000
    names = [functions[level % len(functions)] for level in range(levels)]
    rows = [(level or NO_CALLER, names[level], 1, levels - level, 1) for level in range(levels)]
    found = forest(rows)
    assert depth_of(found) == DEEPEST + (len(functions) > 1)
    assert found[0].sum_ns == levels
    assert sum(each.off_ns for each in found) == 2 * levels
    calls = by_caller(found)
    for name in functions:
        assert sum(each.count for each in calls if each.function == name) == names.count(name)
    assert sum(each.self_ns for each in calls) == levels


def test_what_is_called_at_the_end_of_a_recursion_is_there_once():
    levels = DEEPEST + 50
    rows = [(level or NO_CALLER, "f", 1, 1000 - level, 1) for level in range(levels)]
    rows += [(level + 1, "g", 1, 3, 3) for level in range(levels)]
    calls = {(each.caller, each.function): each for each in by_caller(forest(rows))}
    assert calls["f", "g"].count == levels
    assert calls["f", "g"].sum_ns == calls["f", "g"].self_ns == 3 * levels
    assert calls["f", "f"].count + calls["", "f"].count == levels
