"""The tree of calls in a narrow terminal."""

import io

from rich.console import Console

from anyprobe.data.findings.calltree import CallNode
from anyprobe.reports.calltree import print_branches
from support.sample_snapshots import snapshot


def shown(tree, width):
    stream = io.StringIO()
    print_branches(snapshot(tree=tree), Console(file=stream, width=width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def node(name, *calls):
    return CallNode("a.out", name, count=1, sum_ns=1000.0, self_ns=10.0, calls=calls)


def test_the_tree_goes_on_beside_names_that_take_several_lines():
    long = "ab" * 20
    lines = shown((node("main", node(long, node("x")), node("last", node(long))),), 54)
    assert lines[1:] == [
        "calls    total     self  function               module",
        "    1  1.00 µs  10.0 ns  main                   a.out",
        "    1  1.00 µs  10.0 ns  ├─ ababababababababab  a.out",
        "                         │  ababababababababab",
        "                         │  abab",
        "    1  1.00 µs  10.0 ns  │  └─ x                a.out",
        "    1  1.00 µs  10.0 ns  └─ last                a.out",
        "    1  1.00 µs  10.0 ns     └─ abababababababa  a.out",
        "                               bababababababab",
        "                               ababababab",
    ]


def test_names_that_fit_are_in_one_line():
    lines = shown((node("main", node("work", node("leaf"))),), 80)
    assert lines[2:] == [
        "    1  1.00 µs  10.0 ns  main        a.out",
        "    1  1.00 µs  10.0 ns  └─ work     a.out",
        "    1  1.00 µs  10.0 ns     └─ leaf  a.out",
    ]
