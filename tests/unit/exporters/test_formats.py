"""Files for other tools, from trees of calls that are known."""

import io
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, TargetInfo
from anyprobe.data.snapshots.profile import Profile, ProfiledStack, ProfileFrame
from anyprobe.exporters import base
from anyprobe.exporters.flame import walk
from anyprobe.exporters.icicle import inverted
from anyprobe.exporters.pprof import number, numbers, part
from anyprobe.exporters.profiles import measurement_of
from anyprobe.exporters.stacks import stacks
from support.sample_snapshots import snapshot

READ = CallNode("libc.so.6", "read", 7, 300.4, 300.4)
PARSE = CallNode("server", "parse(char const*; int)", 3, 500.0, 0.0, (READ,))
MAIN = CallNode("server", "main", 1, 1000.0, 199.6, (PARSE, CallNode("libc.so.6", "re;ad\n", 2, 500.0, 500.0)))


def written(name, **parts):
    stream = io.StringIO()
    base.exporter_of(name).write(base.Measurement(**{"snapshots": (), **parts}), stream)
    return stream.getvalue()


def deep(levels):
    node = CallNode("server", "last", 1, 1.0, 1.0)
    for _ in range(levels):
        node = CallNode("server", "again", 1, 1.0, 1.0, (node,))
    return node


def test_each_stack_is_a_line_with_its_own_nanoseconds():
    assert written("folded", together=snapshot(tree=(MAIN,))).splitlines() == [
        "main 200",
        "main;parse(char const*: int);read 300",
        "main;re:ad\\n 500",
    ]


def test_stacks_as_json_have_whole_names_and_modules():
    document = json.loads(written("collapsed-json", together=snapshot(tree=(MAIN,))))
    assert (document["unit"], document["counted"]) == ("ns", "calls")
    found = [([each["function"] for each in one["frames"]], one["value"], one["count"]) for one in document["stacks"]]
    assert found == [
        (["main"], 200, 1),
        (["main", "parse(char const*; int)", "read"], 300, 7),
        (["main", "re;ad\n"], 500, 2),
    ]
    assert document["stacks"][1]["frames"][2] == {"function": "read", "module": "libc.so.6"}
    processes = tuple(ProcessCounts(ProcessInfo(pid, "/usr/bin/a"), {}, (), (READ,)) for pid in (71, 72))
    told = json.loads(written("collapsed-json", together=snapshot(tree=(READ,), processes=processes), by="pid"))
    assert [(each["process"], each["value"]) for each in told["stacks"]] == [("a (71)", 300), ("a (72)", 300)]


def test_processes_are_told_apart_on_demand():
    processes = tuple(ProcessCounts(ProcessInfo(pid, "/usr/bin/a;b"), {}, (), (READ,)) for pid in (71, 72))
    whole = snapshot(tree=(READ,), processes=processes)
    assert written("folded", together=whole, by="pid") == "a:b (71);read 300\na:b (72);read 300\n"
    profiles = json.loads(written("speedscope", together=whole, by="pid"))["profiles"]
    assert [(each["name"], each["endValue"]) for each in profiles] == [("a;b (71)", 300), ("a;b (72)", 300)]


def test_of_results_that_follow_each_other_each_has_what_was_added():
    assert written("folded", together=snapshot(tree=(MAIN,)), last=snapshot(tree=(READ,))) == "read 300\n"


def test_both_formats_say_the_same():
    whole = snapshot(tree=(MAIN, deep(3)))
    document = json.loads(written("speedscope", together=whole))
    (profile,) = document["profiles"]
    names = [each["name"] for each in document["shared"]["frames"]]
    stacks = Counter()
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        stacks[";".join(names[each].replace(";", ":") for each in sample)] += weight
    lines = written("folded", together=whole).splitlines()
    assert stacks == Counter({line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines})
    assert profile["endValue"] == sum(profile["weights"]) == 1004
    assert document["shared"]["frames"][0] == {"name": "main", "file": "server"}


def data_of(page):
    """Return what a page of a flame graph shows."""
    return json.loads(page.partition('<script type="application/json" id="profile">')[2].partition("</script>")[0])


def test_a_flame_graph_has_the_stacks_of_the_other_formats():
    whole = snapshot(tree=(MAIN, deep(3)))
    data = data_of(written("flame", together=whole))
    path, stacks = [], Counter()
    for depth, name, own, _ in data["nodes"]:
        path[depth:] = [data["names"][name][0].replace(";", ":")]
        stacks[";".join(path)] += own
    lines = written("folded", together=whole).splitlines()
    assert +stacks == Counter({line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines})
    assert data["names"][0] == ["main", "server"]


def test_no_stack_has_less_than_no_time():
    """What probes take is known within an error, and may be more than what was measured."""
    short = CallNode("server", "main", 1, 5.0, 7.0, (CallNode("server", "leaf", 3, -2.0, -2.0),))
    assert written("folded", together=snapshot(tree=(short,))) == "main 7\n"
    assert json.loads(written("speedscope", together=snapshot(tree=(short,))))["profiles"][0]["weights"] == [7]
    assert [own for _, _, own, _ in data_of(written("flame", together=snapshot(tree=(short,))))["nodes"]] == [7, 0]


def test_names_with_markup_stay_names_in_a_flame_graph():
    name = '</script><script>alert("1")</script><!--'
    page = written("flame", together=snapshot(tree=(CallNode("server", name, 1, 1.0, 1.0),)))
    assert data_of(page)["names"] == [[name, "server"]]
    assert page.count("</script>") == written("flame", together=snapshot(tree=())).count("</script>")


@pytest.mark.parametrize("name", ["folded", "speedscope", "flame"])
def test_recursion_may_be_deep(name):
    lines = written(name, together=snapshot(tree=(deep(2_000),))).count("\n")
    assert lines == {"folded": 2_001, "speedscope": 1}.get(name, written(name, together=snapshot(tree=())).count("\n"))


def test_numbers_are_written_as_protocol_buffers_write_them():
    """The examples of the encoding's own documentation."""
    assert number(1, 150) == bytes.fromhex("089601")
    assert part(2, b"testing") == bytes.fromhex("120774657374696e67")
    assert numbers(6, (3, 270, 86942)) == bytes.fromhex("3206038e029ea705")
    assert number(1, -2) == bytes.fromhex("08feffffffffffffffff01")


def test_a_profile_by_samples_has_its_samples_in_pprof():
    main, leaf = ProfileFrame("server", "main"), ProfileFrame("server", "leaf")
    found = Profile(
        (TargetInfo(7, "/bin/server"),), (), 1.0, 100,
        (ProfiledStack((leaf, main), 3), ProfiledStack((main,), 2)), lost=0, kernel=True, processor_s=0.05,
    )  # fmt: skip
    measured = measurement_of(found)
    assert [(each.calls[-1].count, each.self_ns) for each in stacks(measured.together.tree)] == [(2, 2e7), (3, 3e7)]
    assert measured.counted == "samples"


TREES = st.recursive(
    st.builds(lambda name, own: CallNode("m", name, 1, own, own), st.sampled_from("abc"), st.integers(0, 9)),
    lambda below: st.builds(
        lambda name, own, calls: CallNode("m", name, 1, 0.0, own, tuple(calls)),
        st.sampled_from("abc"),
        st.integers(0, 9),
        st.lists(below, max_size=3),
    ),
)


@given(st.lists(TREES, max_size=3))
def test_turned_the_other_way_round_no_time_and_no_call_is_lost(trees):
    nodes = list(walk(trees, {}, 0))
    found = inverted(nodes)
    assert sum(own for _, _, own, _ in found) == sum(own for _, _, own, _ in nodes)
    own, calls = Counter(), Counter()
    for _, name, ns, count in nodes:
        own[name] += ns
        calls[name] += count
    totals, name_of = Counter(), 0
    for depth, name, ns, count in found:
        if not depth:
            name_of = name
            calls[name] -= count
        totals[name_of] += ns
    assert not +calls
    assert +totals == +own
    assert Counter(_chains(found)) == Counter(chain[::-1] for chain in _chains(nodes))


def _chains(nodes):
    """Return the names of each chain from the outermost on, once for each nanosecond at its end."""
    path = []
    for depth, name, own, _ in nodes:
        path[depth:] = [name]
        yield from [tuple(path)] * own
