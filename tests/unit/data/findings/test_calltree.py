from anyprobe.data.findings.calltree import CallNode, by_caller, folded, merged, since


def node(name, count, total, own, *calls):
    return CallNode("a", name, count, total, own, calls)


TREE = (
    node("top", 1, 100.0, 10.0, node("mid", 2, 60.0, 20.0, node("leaf", 4, 40.0, 40.0)), node("leaf", 3, 30.0, 30.0)),
)


def test_trees_are_added_node_by_node():
    (top,) = merged(TREE, TREE, (node("top", 1, 5.0, 5.0),))
    assert (top.count, top.sum_ns, top.self_ns) == (3, 205.0, 25.0)
    assert [(each.function, each.count) for each in top.calls] == [("mid", 4), ("leaf", 6)]


def test_what_was_added_since_leaves_out_what_was_not():
    later = merged(TREE, (node("top", 0, 0.0, 0.0, node("leaf", 1, 9.0, 9.0)),))
    (top,) = since(later, TREE)
    assert (top.count, [(each.function, each.count, each.sum_ns) for each in top.calls]) == (0, [("leaf", 1, 9.0)])
    assert since(TREE, TREE) == ()


def test_calls_are_summed_by_function_and_caller():
    found = {(each.caller, each.function): (each.count, each.sum_ns) for each in by_caller(TREE)}
    assert found == {
        ("", "top"): (1, 100.0), ("top", "mid"): (2, 60.0), ("mid", "leaf"): (4, 40.0), ("top", "leaf"): (3, 30.0),
    }  # fmt: skip


def test_calls_of_a_function_to_itself_are_one_node():
    deep = node("f", 1, 90.0, 10.0, node("f", 2, 80.0, 20.0, node("f", 4, 60.0, 50.0, node("g", 1, 10.0, 10.0))))
    found = folded(deep)
    assert (found.count, found.sum_ns, found.self_ns) == (7, 90.0, 80.0)
    assert [each.function for each in found.calls] == ["g"]
